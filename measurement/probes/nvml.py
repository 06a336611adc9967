"""NVIDIA's management library, by nvidia-ml-py. Supervisors import this: nothing of size."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def nvml() -> Any:
    """The library, initialised; None where it is missing or finds no driver."""
    try:
        import pynvml  # type: ignore[import-untyped]

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - not installed, or no driver: whatever it says, there is none
        return None
    return pynvml
