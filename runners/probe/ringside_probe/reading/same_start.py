"""Same start: rank 0 of the baseline saves its first parameters and buffers, and the other arms' ranks load them."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from ..place import find_place
from ..settings import Settings
from . import models
from .script import Script

PATIENCE_S = 600.0


def carry_out(settings: Settings, script: Script) -> None:
    """Save or load what the driver asked for, where it did."""
    if not settings.state or not settings.state_file:
        return
    if script.is_sharded:
        script.notes.append("each rank has a share of the parameters, so the baseline's start was not loaded")
    elif settings.state == "load":
        load(settings.state_file, script)
    elif find_place().rank == 0:
        save(settings.state_file, models.state_of(script.roots))


def save(path: str, state: dict[str, Any]) -> None:
    """Write parameters and buffers whole."""
    torch: Any = sys.modules["torch"]
    new = f"{path}.{os.getpid()}"
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in state.items()}, new)
    os.replace(new, path)


def load(path: str, script: Script) -> None:
    """Copy the baseline's parameters and buffers into this script's models, by name.

    Raises:
        RuntimeError: the baseline has written none in time.
    """
    torch: Any = sys.modules["torch"]
    deadline = time.monotonic() + PATIENCE_S
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the baseline has not written its first parameters within {PATIENCE_S:g} s")
        time.sleep(0.1)
    saved: dict[str, Any] = torch.load(path, map_location="cpu")
    state = models.state_of(script.roots)
    fitting = [name for name, one in state.items() if name in saved and saved[name].shape == one.shape]
    with torch.no_grad():
        for name in fitting:
            state[name].copy_(saved[name])
    missing = sorted({*state, *saved} - set(fitting))
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        script.notes.append(f"not loaded from the baseline, since the other has none of this name and shape: {shown}")
