"""How the agent's functions are called: their errors become one line on stderr, and torch.compile
does not compile them.

Also how a process ends without the interpreter's own teardown.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
from typing import Any, Callable, NoReturn

MAX_CHARACTERS = 600
"""Characters of a message; PyTorch's longest explain themselves in their first lines."""
STARTED = os.getpid()
"""This process, or the one that forked it."""
at_exit: list[Callable[[], Any]] = []
"""What is done after all functions that the script registered with ``atexit``."""
FROM_LOADER = "Original Traceback"
"""What PyTorch writes before the traceback of an error in a loader process."""


def say(sentence: str) -> None:
    """Print a line on stderr, where there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed, or there is none
        print(f"ringside: {sentence}", file=sys.stderr, flush=True)


def leave(code: int) -> NoReturn:
    """End this process at once."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def run_at_exit() -> None:
    """Do what ``at_exit`` holds."""
    for act in at_exit:
        call_safely(act)


def message_of(error: BaseException) -> str:
    """The error's class and what it says, on one line: the first paragraph, or the last line of a
    loader process's traceback.
    """
    text = str(error).strip()
    if FROM_LOADER in text:
        return f"{text.splitlines()[-1].strip()} (in a loader process)"
    first = " ".join(text.partition("\n\n")[0].split())
    shortened = first if len(first) <= MAX_CHARACTERS else f"{first[:MAX_CHARACTERS]} ..."
    return f"{type(error).__name__}: {shortened}" if shortened else type(error).__name__


def call_safely(act: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the agent's; where it fails, say so and go on."""
    try:
        return act(*arguments)
    except Exception as error:  # noqa: BLE001 - the agent must not break a script
        say(f"the agent failed: {message_of(error)}")
        return None


def never_compile(*functions: Any) -> None:
    """Exclude these functions from torch.compile, where that was imported."""
    skip: Any = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    for function in functions if skip is not None else ():
        code = getattr(function, "__code__", None)
        if isinstance(code, types.CodeType):
            skip(code)


def uncompiled(act: Callable[..., Any]) -> Callable[..., Any]:
    """A function for which, and for all that it calls, torch.compile does nothing."""
    disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
    return act if disable is None else disable(act)
