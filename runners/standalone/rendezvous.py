"""The start of a standalone run: where its ranks meet, who is missing, and what ends them all if
one fails.

Launchers end only the ranks of their own host, and a rank that waits for a peer in a library
notices nothing for minutes. So each rank reports an error at its start in the store where they met.
"""

from __future__ import annotations

import contextlib
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
from measurement.errors import LaunchError, printable
from runners.launchers import meeting_place
from runners.protocol import Job

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
        return store
    return open_store(load_mpi().COMM_WORLD, timeout=timeout) if MPI in world.gives else None


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
    store.set(keys[world.rank], socket.gethostname())
    try:
        store.wait(keys, timeout)
    except RuntimeError:
        missing = ", ".join(str(rank) for rank, key in enumerate(keys) if not store.check([key]))
        raise LaunchError(
            f"of {world.world_size} ranks these did not come within {timeout.total_seconds():g} s:"
            f" {missing}; start every host's ranks with the same number of ranks in all and the"
            " same address, or wait longer with --timeout"
        ) from None


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
        says, *_ = printable(f"{type(error).__name__}: {error}").splitlines()
        with contextlib.suppress(RuntimeError):
            store.set(FAILED, f"{_who(world)}, which says: {says}")
            time.sleep(TELL_S)
        raise
    finally:
        over.set()


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
