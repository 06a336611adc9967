"""While the ranks of a standalone run start: where one fails, all end and say why, on every host.

Launchers end the ranks of their own host only, and a rank that waits for a peer in a library notices nothing for minutes.
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
"""How long a rank that failed keeps its host's launcher, which may serve the store, so that others see what it told."""


@contextmanager
def joint_start(store: Store | None, world: World, *, say: Callable[[Exception], None]) -> Iterator[None]:
    """Tell the other ranks of an error that the block raises, and end this rank at once when another tells of one.

    Args:
        store: in which the ranks have met; None: they have none, and nothing is watched.
        world: this rank's place.
        say: prints an error, which comes first: this rank's launcher may end it as soon as others have heard.
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
    told = None
    while not (told or over.wait(LOOK_S)):
        try:
            told = store.get(FAILED).decode(errors="replace") if store.check([FAILED]) else None
        except RuntimeError:  # whoever served it has ended
            told = "the place where the ranks met is gone; see what the other hosts say"
    if told and not over.is_set():
        print(f"ringside: {_who(world)} ends, since it cannot start without {told}", file=sys.stderr)
        leave(1)


def _who(world: World) -> str:
    return f"rank {world.rank} on {socket.gethostname()}"
