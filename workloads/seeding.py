"""Seeds the generators that models and losses draw from: PyTorch's on every device, NumPy's and Python's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch

Drawn = TypeVar("Drawn")


def seed_generators(seed: int) -> None:
    """Seed all three, those that belong to the process; generators of a workload's own stay as they are. Not collective."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


class OwnDraws:
    """A context whose draws go on from its last ones, beginning at a seed. Draws outside do not notice them, nor they those."""

    def __init__(self, seed: int) -> None:
        before = _states()
        seed_generators(seed)
        self._own = _states()
        _put_back(before)

    def __enter__(self) -> None:
        self._others = _states()
        _put_back(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = _states()
        _put_back(self._others)

    def iterate(self, begin: Callable[[], Iterator[Drawn]]) -> Iterator[Drawn]:
        """Yield what the iterator yields that ``begin`` makes; both draw in this context."""
        with self:
            values = begin()
        while True:
            with self:
                try:
                    value = next(values)
                except StopIteration:
                    return
            yield value


def torch_states() -> list[torch.Tensor]:
    """Of PyTorch's generators: the CPU's and, once it is in use, the current GPU's."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]


def _states() -> tuple[list[torch.Tensor], Any, Any]:
    return torch_states(), np.random.get_state(), random.getstate()


def _put_back(states: tuple[list[torch.Tensor], Any, Any]) -> None:
    (cpu, *gpu), numpys, pythons = states
    torch.set_rng_state(cpu)
    for state in gpu:
        torch.cuda.set_rng_state(state)
    np.random.set_state(numpys)
    random.setstate(pythons)
