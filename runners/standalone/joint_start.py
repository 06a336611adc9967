"""Ends all ranks of a standalone run, with the reason, if one fails while they start.

Launchers end only the ranks of their own host, and a rank that waits for a peer in a library notices nothing for minutes.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from backends.base import Store
from measurement.agent.ringside_agent.place import World
from measurement.agent.ringside_agent.reporting import leave
from measurement.errors import RingsideError, printable

FAILED = "failed-to-start"
LOOK_S = 0.5
TELL_S = 4 * LOOK_S
"""How long a rank that failed keeps its host's launcher, which may serve the store, so that others can read the error."""


@contextmanager
def joint_start(store: Store | None, world: World, *, say: Callable[[Exception], None]) -> Iterator[None]:
    """Report an error that the block raises to the other ranks, and end this rank at once when another reports one.

    Args:
        store: the store of the ranks' rendezvous; None: they have none, and nothing is watched.
        world: this rank's place.
        say: prints an error. It is called first: this rank's launcher may end it as soon as others have read the error.
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
            reason = "the store of the ranks' rendezvous, which is gone; see the messages of the other hosts"
    if reason and not over.is_set():
        print(f"ringside: {_who(world)} ends, since it cannot start without {reason}", file=sys.stderr)
        leave(1)


def _who(world: World) -> str:
    return f"rank {world.rank} on {socket.gethostname()}"
