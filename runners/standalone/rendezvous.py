"""The start of a standalone run: where its ranks meet, who is missing, and what ends them all if
one fails.

Launchers end only the ranks of their own host, and a rank that waits for a peer in a library
notices nothing for minutes. So each rank reports an error at its start in the store where they met.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import HashStore, PrefixStore, TCPStore

from backends import Backend, make_backend
from backends.base import Store
from backends.mpi.library import load_mpi, open_store
from measurement.addresses import with_port
from measurement.agent.ringside_agent.place import MPI, RENDEZVOUS, World
from measurement.agent.ringside_agent.reporting import leave
from measurement.errors import LaunchError, RingsideError, printable
from runners.hosts.host_facts import resolve_names, unfindable_hosts
from runners.launchers import meeting_place
from runners.launchers.base import GLOO_INTERFACE
from runners.planning.arm_checks import require_findable
from runners.planning.arms import choose_transport
from runners.protocol.messages import Job

STORE_POLL = timedelta(milliseconds=100)
"""How long the store is asked for a key."""
TRY_S = 0.2
FAILED = "failed-to-start"
LOOK_S = 0.5
TELL_S = 4 * LOOK_S
"""How long a rank that failed keeps its host's launcher, which may serve the store, so that others
can read the error."""


def rendezvous_store(
    job: Job, world: World, *, timeout: timedelta = Backend.timeout
) -> Store | None:
    """Open the store of the ranks' rendezvous and wait for all; None if the backend has its own
    rendezvous. Collective.

    Raises:
        LaunchError: with the ranks that came, or why there is no store.
    """
    needs = make_backend(job.backend, transport=job.transport, options=job.options).needs()
    if RENDEZVOUS not in needs and job.transport != "gloo":
        return None
    if world.world_size == 1:
        return HashStore()
    place = meeting_place(os.environ)
    if "MASTER_ADDR" in place:
        if RENDEZVOUS not in needs and RENDEZVOUS not in world.gives:
            return None
        store = _served_store(world, {**os.environ, **place}, timeout)
        _await_all(store, world, timeout)
    elif MPI in world.gives:
        store = open_store(load_mpi().COMM_WORLD, timeout=timeout)
    else:
        return None
    _require_found_by_all(store, world, job)
    return store


def _served_store(world: World, environment: Mapping[str, str], timeout: timedelta) -> Store:
    """The store at MASTER_ADDR:MASTER_PORT, which torchrun serves, or else rank 0."""
    host, text = environment["MASTER_ADDR"], environment.get("MASTER_PORT", "")
    if not text.isdigit():
        raise LaunchError(
            f"MASTER_ADDR is '{host}' and MASTER_PORT {text!r}; set a free port of that host, the"
            " same for all ranks"
        )
    port, agent_serves = int(text), environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = world.rank == 0 and not agent_serves
    if not serves and not _is_reached(host, port, timeout):
        raise LaunchError(
            f"rank {world.rank} on {socket.gethostname()} did not reach rank 0 at"
            f" {with_port(host, port)} within {timeout.total_seconds():g} s: start all ranks with"
            " the same address, see that no firewall is between, or wait longer with --timeout"
        )
    try:
        store = TCPStore(host, port, is_master=serves, wait_for_workers=False, timeout=timeout)
    except RuntimeError as error:
        raise LaunchError(
            f"rank {world.rank} has no store at {with_port(host, port)}:"
            f" {str(error).splitlines()[0]}; if the port is in use, give another one to all ranks"
        ) from error
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0") if agent_serves else "0"
    return PrefixStore(f"ringside/{attempt}", store)


def _is_reached(host: str, port: int, timeout: timedelta) -> bool:
    """Whether a server is reached in time. c10d is not asked, since it prints pages if there is
    none.
    """
    until = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=TRY_S):
            return True
        time.sleep(TRY_S)
    return False


def _await_all(store: Store, world: World, timeout: timedelta) -> None:
    """Register this rank and wait for the others."""
    keys = [f"came/{rank}" for rank in range(world.world_size)]
    store.set(keys[world.rank], f"{world.world_size} on {socket.gethostname()}")
    try:
        store.wait(keys, timeout)
    except RuntimeError:
        came = [rank for rank, key in enumerate(keys) if _is_there(store, key)]
        missing = [rank for rank in range(world.world_size) if rank not in came]
        raise LaunchError(
            f"only {len(came)} of {world.world_size} ranks came within {timeout.total_seconds():g}"
            f" s: {_ranks(came)}; {_ranks(missing)} did not: start every host's ranks with the same"
            " number of ranks in all and the same address, or wait longer with --timeout"
        ) from None
    counts = {rank: store.get(key).decode() for rank, key in enumerate(keys)}
    other = next(
        (rank for rank, text in counts.items() if text.partition(" ")[0] != str(world.world_size)),
        None,
    )
    if other is not None:
        raise LaunchError(
            f"rank {world.rank} counts {world.world_size} ranks and rank {other} {counts[other]};"
            " start all with the same number"
        )


def _require_found_by_all(store: Store, world: World, job: Job) -> None:
    """Refuse hosts that others would not find over Gloo, on all ranks.

    Collective if ranks are on several hosts.

    Raises:
        LaunchError: with every such host.
    """
    if world.local_world_size == world.world_size:
        return
    host = socket.gethostname()
    keys = [f"hidden/{rank}" for rank in range(world.world_size)]
    store.set(
        keys[world.rank], json.dumps([host, unfindable_hosts({host: resolve_names([])}).get(host)])
    )
    store.wait(keys)
    reports = dict(json.loads(store.get(key)) for key in keys)
    unreachable = {host: why for host, why in reports.items() if why and len(reports) > 1}
    transport = choose_transport(job.backend, job.transport, device=job.device)
    backend = make_backend(job.backend, transport=transport, options=job.options)
    require_findable(unreachable, backend, network_interface=os.environ.get(GLOO_INTERFACE))


def _is_there(store: Store, key: str) -> bool:
    try:
        store.wait([key], STORE_POLL)
    except RuntimeError:
        return False
    return True


def _ranks(ranks: list[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"


@contextmanager
def joint_start(
    store: Store | None, world: World, *, say: Callable[[Exception], None]
) -> Iterator[None]:
    """Report an error that the block raises to the other ranks, and end this rank at once when
    another reports one.

    Args:
        store: the store of the ranks' rendezvous; None: they have none, and nothing is watched.
        world: this rank's place.
        say: prints an error. It is called first: this rank's launcher may end it as soon as others
            have read the error.
    """
    if store is None or world.world_size == 1:
        yield
        return
    over, watching = threading.Event(), store.clone()
    threading.Thread(target=_watch, args=(watching, world, over), daemon=True).start()
    try:
        yield
    except Exception as error:
        say(error)
        over.set()
        _tell(store, world, error)
        raise
    finally:
        over.set()


def _tell(store: Store, world: World, error: Exception) -> None:
    """Only the first error is shown."""
    words = printable(str(error)).strip().splitlines() or [type(error).__name__]
    kind = "" if isinstance(error, RingsideError) else f"{type(error).__name__}: "
    with contextlib.suppress(RuntimeError):
        if store.add(f"{FAILED}/count", 1) == 1:
            store.set(FAILED, f"{_who(world)}, which says: {kind}{words[0]}")
            time.sleep(TELL_S)


def _watch(store: Store, world: World, over: threading.Event) -> None:
    reason = None
    while not (reason or over.wait(LOOK_S)):
        try:
            reason = store.get(FAILED).decode(errors="replace") if store.check([FAILED]) else None
        except RuntimeError:  # the process that served it has ended
            reason = (
                "the store of the ranks' rendezvous, which is gone; see the messages of the other"
                " hosts"
            )
    if reason and not over.is_set():
        print(
            f"ringside: {_who(world)} ends, since it cannot start without {reason}", file=sys.stderr
        )
        leave(1)


def _who(world: World) -> str:
    return f"rank {world.rank} on {socket.gethostname()}"
