"""What is said where something goes wrong in the probe: one line on stderr. It never raises."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable


def say(sentence: str) -> None:
    """Print a line on stderr, where there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed, or there is none
        print(f"ringside: {sentence}", file=sys.stderr, flush=True)


def flat(error: BaseException) -> str:
    """An exception on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:600]}" if text else type(error).__name__


def guarded(act: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the probe's; where it fails, say so and go on."""
    try:
        return act(*arguments)
    except Exception as error:  # noqa: BLE001 - the probe must not break a script
        say(f"the probe failed: {flat(error)}")
        return None
