"""Where the ranks of a standalone run meet, and who is missing if they do not."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import timedelta

from torch.distributed import HashStore, PrefixStore, TCPStore

from backends import Backend, make_backend
from backends.base import Store
from backends.mpi.library import load_mpi, open_store
from measurement.addresses import holder_of, with_port
from measurement.agent.ringside_agent.place import MPI, RENDEZVOUS, World
from measurement.errors import LaunchError
from runners.hosts.host_facts import resolve_names, unfindable_hosts
from runners.launchers import meeting_place
from runners.launchers.base import GLOO_INTERFACE
from runners.planning.arm_checks import require_findable
from runners.planning.arms import choose_transport
from runners.protocol.messages import Job

STORE_POLL = timedelta(milliseconds=100)
"""To ask the store for a key that is there, or is not."""
TRY_S = 0.2


def rendezvous_store(job: Job, world: World, *, timeout: timedelta = Backend.timeout) -> Store | None:
    """Open a store for ranks to meet, and wait until all have come; None where the backend meets in a way of its own. Collective.

    Raises:
        LaunchError: with the ranks that came, or why there is no store.
    """
    needs = make_backend(job.backend, transport=job.transport, options=job.options).needs()
    if RENDEZVOUS not in needs and job.transport != "gloo":
        return None
    if world.world_size == 1:
        return HashStore()
    store = _meet(world, timeout, needs=needs)
    return None if store is None else _found_by_all(store, world, job)


def _meet(world: World, timeout: timedelta, *, needs: AbstractSet[str]) -> Store | None:
    place = meeting_place(os.environ)
    if "MASTER_ADDR" in place:
        meets = RENDEZVOUS in needs or RENDEZVOUS in world.gives
        return _when_all_came(_served_store(world, {**os.environ, **place}, timeout), world, timeout) if meets else None
    return open_store(load_mpi().COMM_WORLD, timeout=timeout) if MPI in world.gives else None


def _served_store(world: World, environment: Mapping[str, str], timeout: timedelta) -> Store:
    """The store at MASTER_ADDR:MASTER_PORT, which torchrun serves, or else rank 0."""
    host, text = environment["MASTER_ADDR"], environment.get("MASTER_PORT", "")
    if not text.isdigit():
        raise LaunchError(f"MASTER_ADDR is '{host}' and MASTER_PORT {text!r}; set a free port of that host, the same for all ranks")
    port, agent_serves = int(text), environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = world.rank == 0 and not agent_serves
    if not serves and not _is_reached(host, port, timeout):
        raise LaunchError(
            f"rank {world.rank} on {socket.gethostname()} did not reach rank 0 at {with_port(host, port)} within "
            f"{timeout.total_seconds():g} s: start all ranks with the same address, see that no firewall lies between, or wait "
            "longer with --timeout"
        )
    try:
        store = TCPStore(host, port, is_master=serves, wait_for_workers=False, timeout=timeout)
    except RuntimeError as error:
        raise LaunchError(f"rank {world.rank} has no store at {with_port(host, port)}: {_why_not(port, error)}") from error
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0") if agent_serves else "0"
    return PrefixStore(f"ringside/{attempt}", store)


def _is_reached(host: str, port: int, timeout: timedelta) -> bool:
    """Whether somebody serves there in time; asked before c10d tries, which prints pages where nobody does."""
    until = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=TRY_S):
            return True
        time.sleep(TRY_S)
    return False


def _why_not(port: int, error: Exception) -> str:
    holder = holder_of(port)
    if holder is not None:
        return f"the port is in use by {holder}; end it, or give another port to all ranks"
    return str(error).splitlines()[0]


def _when_all_came(store: Store, world: World, timeout: timedelta) -> Store:
    """Say that this rank has come, and wait for the others."""
    keys = [f"came/{rank}" for rank in range(world.world_size)]
    store.set(keys[world.rank], f"{world.world_size} on {socket.gethostname()}")
    try:
        store.wait(keys, timeout)
    except RuntimeError:
        came = [rank for rank, key in enumerate(keys) if _is_there(store, key)]
        missing = [rank for rank in range(world.world_size) if rank not in came]
        raise LaunchError(
            f"only {len(came)} of {world.world_size} ranks came within {timeout.total_seconds():g} s: {_ranks(came)}; "
            f"{_ranks(missing)} did not: start every host's ranks with the same number of ranks in all and the same address, or "
            "wait longer with --timeout"
        ) from None
    told = {rank: store.get(key).decode() for rank, key in enumerate(keys)}
    other = next((rank for rank, text in told.items() if text.partition(" ")[0] != str(world.world_size)), None)
    if other is not None:
        raise LaunchError(
            f"rank {world.rank} counts {world.world_size} ranks and rank {other} {told[other]}; start all with the same number"
        )
    return store


def _found_by_all(store: Store, world: World, job: Job) -> Store:
    """Refuse hosts that others would not find over Gloo, on all ranks alike. Collective where ranks lie on several hosts.

    Raises:
        LaunchError: with every such host.
    """
    if world.local_world_size == world.world_size:
        return store
    host = socket.gethostname()
    keys = [f"hidden/{rank}" for rank in range(world.world_size)]
    store.set(keys[world.rank], json.dumps([host, unfindable_hosts({host: resolve_names([])}).get(host)]))
    store.wait(keys)
    told = dict(json.loads(store.get(key)) for key in keys)
    found = {host: why for host, why in told.items() if why and len(told) > 1}
    transport = choose_transport(job.backend, job.transport, device=job.device)
    backend = make_backend(job.backend, transport=transport, options=job.options)
    require_findable(found, backend, network_interface=os.environ.get(GLOO_INTERFACE))
    return store


def _is_there(store: Store, key: str) -> bool:
    try:
        store.wait([key], STORE_POLL)
    except RuntimeError:
        return False
    return True


def _ranks(ranks: list[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"
