"""Finds scripts that train by another framework than PyTorch, by what they import."""

from __future__ import annotations

import re
from pathlib import Path

from measurement.errors import PlanError

IMPORT = re.compile(r"^\s*(?:import|from)\s+(?:horovod(?:\.|\s+import\s+))?(tensorflow|keras|mxnet|jax|flax)\b", re.MULTILINE)
IMPORTED = re.compile(r"^\s*(?:import|from)\s+(\.|\w+)", re.MULTILINE)
TORCH = re.compile(r"torch|lightning|transformers|accelerate|deepspeed|timm|composer|fastai|KERAS_BACKEND", re.IGNORECASE)
"""A word of any of these, anywhere, and a script may train by PyTorch."""
NAMES = {"tensorflow": "TensorFlow", "keras": "Keras", "mxnet": "MXNet", "jax": "JAX", "flax": "JAX"}


def require_torch(script: Path, name: str) -> None:
    """Refuse a script that imports another framework and does not speak of PyTorch. One with modules beside it may do so there.

    Raises:
        PlanError: it trains by that framework.
    """
    text = script.read_text(encoding="utf-8", errors="replace")
    found = IMPORT.search(text)
    beside = {".", *(path.stem for path in script.parent.iterdir())} - {script.stem}
    if found and not TORCH.search(text) and not beside & set(IMPORTED.findall(text)):
        raise PlanError(f"'{name}' trains by {NAMES[found[1]]}, and Ringside times scripts of PyTorch")
