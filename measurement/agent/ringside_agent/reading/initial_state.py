"""One start for all scripts (``same_start``): the baseline saves its parameters and buffers before
the first forward pass, and the others load them.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from ..place import find_world
from ..settings import Settings
from . import models
from .script import Script

START_TIMEOUT_S = 600.0
"""How long to wait for the baseline's first parameters, which its rank 0 saves and other arms load
(``same_start``)."""


def share_start(settings: Settings, script: Script) -> None:
    """Save or load the start, where the driver asked for it."""
    if not settings.state or not settings.state_file:
        return
    if script.is_sharded:
        script.notes.append(
            "each rank has a share of the parameters, so the baseline's start was not loaded"
        )
    elif settings.state == "load":
        load_state(settings.state_file, script)
    elif find_world(settings).rank == 0:
        save_state(settings.state_file, models.state_of(script.roots))


def save_state(path: str, state: dict[str, Any]) -> None:
    """Write parameters and buffers, atomically."""
    torch: Any = sys.modules["torch"]
    new = f"{path}.{os.getpid()}"
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in state.items()}, new)
    os.replace(new, path)


def load_state(path: str, script: Script) -> None:
    """Copy the baseline's parameters and buffers into this script's models, by name.

    Raises:
        RuntimeError: the baseline has written none in time.
    """
    torch: Any = sys.modules["torch"]
    deadline = time.monotonic() + START_TIMEOUT_S
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"the baseline has not written its first parameters within {START_TIMEOUT_S:g} s"
            )
        time.sleep(0.1)
    saved: dict[str, Any] = torch.load(path, map_location="cpu")
    state = models.state_of(script.roots)
    matching = [
        name
        for name, tensor in state.items()
        if name in saved and saved[name].shape == tensor.shape
    ]
    with torch.no_grad():
        for name in matching:
            state[name].copy_(saved[name])
    missing = sorted({*state, *saved} - set(matching))
    if missing:
        script.notes.append(
            f"{len(missing)} tensors were not loaded from the baseline, since the other has none of"
            f" this name and shape, such as {missing[0]}"
        )
