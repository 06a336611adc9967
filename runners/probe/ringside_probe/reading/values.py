"""Settings of a script's as plain JSON."""

from __future__ import annotations

import math
import sys
from typing import Any, Iterable, Iterator

LONGEST = 200


def plain(value: Any) -> Any:
    """A setting as a number, a string or a short list of them; a tensor of one element is its number."""
    torch: Any = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return plain(value.item()) if value.numel() == 1 else f"tensor of {value.numel()}"
    if value is None or isinstance(value, (bool, int, str)):
        return value[:LONGEST] if isinstance(value, str) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value[:16]]
    return str(value)[:LONGEST] if type(value).__module__ in ("torch", "builtins") else type(value).__name__


def numbers(values: Iterable[Any]) -> Iterator[float]:
    """All numbers in values and lists of them."""
    torch: Any = sys.modules["torch"]
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from numbers(value)
        elif isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1):
            yield float(value)
