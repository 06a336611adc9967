"""Keeps torch.compile away from the probe, whose hooks may be called in the middle of what it compiles."""

from __future__ import annotations

import sys
import types
from typing import Any, Callable


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
