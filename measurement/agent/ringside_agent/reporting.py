"""How the agent's functions are called: what goes wrong in them is one line on stderr, and torch.compile leaves them alone."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any, Callable

from .users_lines import message_of


def say(sentence: str) -> None:
    """Print a line on stderr, where there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed, or there is none
        print(f"ringside: {sentence}", file=sys.stderr, flush=True)


def guarded(act: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the agent's; where it fails, say so and go on."""
    try:
        return act(*arguments)
    except Exception as error:  # noqa: BLE001 - the agent must not break a script
        say(f"the agent failed: {message_of(error)}")
        return None


def never_compile(*functions: Any) -> None:
    """Have torch.compile leave these functions as they are; nothing where it was not imported."""
    skip: Any = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    for function in functions if skip is not None else ():
        code = getattr(function, "__code__", None)
        if isinstance(code, types.CodeType):
            skip(code)


def uncompiled(act: Callable[..., Any]) -> Callable[..., Any]:
    """A function for which, and for all that it calls, torch.compile does nothing."""
    disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
    return act if disable is None else disable(act)
