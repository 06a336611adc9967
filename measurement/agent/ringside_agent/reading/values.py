"""Settings as plain JSON, numbers that must be equal on all ranks, and losses, fetched from their
device after the timed steps.

Ringside's own ranks report the numbers that must be equal in this way, too.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Iterable, Iterator, Sequence

MAX_CHARACTERS = 200


def plain(value: Any) -> Any:
    """A setting as a number, a string or a short list of them; a tensor of one element is its
    number.
    """
    torch: Any = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return plain(value.item()) if value.numel() == 1 else f"tensor of {value.numel()}"
    if value is None or isinstance(value, (bool, int, str)):
        return value[:MAX_CHARACTERS] if isinstance(value, str) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value[:16]]
    return (
        str(value)[:MAX_CHARACTERS]
        if type(value).__module__ in ("torch", "builtins")
        else type(value).__name__
    )


def hyperparameters(groups: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """The numbers in all parameter groups, by name."""
    names = sorted({name for group in groups for name in group} - {"params"})
    return {name: list(numbers(group.get(name) for group in groups)) for name in names}


def some_elements(parameter: Any, max_count: int) -> list[float]:
    """Some elements, the same ones on all ranks; a complex one counts as two.

    It allocates almost nothing: memory that is freed before the last block would change the page
    faults of later steps.
    """
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        flat = parameter.detach().reshape(-1)
        elements = flat[:: max(1, flat.numel() // max_count)][:max_count]
        if elements.is_complex():
            elements = torch.view_as_real(elements.resolve_conj())
        values: list[float] = elements.double().reshape(-1).tolist()
        return values


def numbers(values: Iterable[Any]) -> Iterator[float]:
    """All numbers in values and lists of them."""
    torch: Any = sys.modules["torch"]
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from numbers(value)
        elif isinstance(value, (int, float)) or (
            isinstance(value, torch.Tensor) and value.numel() == 1
        ):
            yield float(value)


def losses_of(recorder: Any) -> list[float]:
    """The values of the kept losses; NaN where a script has changed one since."""
    return [
        value if loss._version == version else math.nan
        for value, loss, version in zip(
            values_of(recorder.losses), recorder.losses, recorder.versions
        )
    ]


def values_of(losses: Sequence[Any]) -> list[float]:
    """Numbers of one-element tensors; those of a device are fetched at once."""
    if not losses:
        return []
    torch: Any = sys.modules["torch"]
    try:
        with torch.no_grad():
            values: list[float] = torch.stack(
                [loss.reshape(()).double() for loss in losses]
            ).tolist()
            return values
    except (RuntimeError, TypeError):  # on several devices, or overwritten by a CUDA graph
        return [value_of(loss) for loss in losses]


def value_of(loss: Any) -> float:
    """The number in a one-element tensor; NaN where it cannot be read any more."""
    try:
        return float(loss)
    except (RuntimeError, TypeError, ValueError):
        return math.nan


def means(rows: Sequence[tuple[int, ...]], losses: Sequence[float]) -> list[float]:
    """Mean loss of each iteration; NaN where there was none."""
    mean_losses, begin = [], 0
    for row in rows:
        step_losses = losses[begin : begin + row[6]]
        mean_losses.append(sum(step_losses) / len(step_losses) if step_losses else math.nan)
        begin += row[6]
    return mean_losses


def synchronize(device: Any) -> None:
    """Wait for a device's work; nothing on a CPU."""
    torch: Any = sys.modules["torch"]
    wait = (
        getattr(getattr(torch, device.type, None), "synchronize", None)
        if device is not None and device.type != "cpu"
        else None
    )
    if wait is not None:
        wait()
