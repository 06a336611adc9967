"""Several optimizers as one (Muon for matrices, AdamW for the rest), and the generators that models
and losses draw from.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch.optim import Optimizer


class SeveralOptimizers(Optimizer):
    """Optimizers of disjoint parameters, which step one after another.

    To libraries it is one optimizer: its parameter groups and its state are those of all, the same
    objects. Horovod makes a subclass and calls its constructor with the parameter groups;
    ``optimizers`` is then given as an attribute.

    Args:
        members: the optimizers, or parameter groups.

    Raises:
        ValueError: two of them have a parameter in common.
    """

    optimizers: Sequence[Optimizer] = ()

    def __init__(self, members: Sequence[Optimizer] | Sequence[dict[str, Any]]) -> None:
        optimizers = [member for member in members if isinstance(member, Optimizer)]
        groups: list[Any] = [
            group for optimizer in optimizers for group in optimizer.param_groups
        ] or list(members)
        super().__init__(groups, {})
        if optimizers:
            self.optimizers = optimizers
            for optimizer in optimizers:
                self.state.update(optimizer.state)
            self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Give each optimizer its part of the current parameter groups, and the shared state."""
        first = 0
        for optimizer in self.optimizers:
            last = first + len(optimizer.param_groups)
            optimizer.param_groups, optimizer.state = self.param_groups[first:last], self.state
            first = last


def as_one(built: Optimizer | Sequence[Optimizer]) -> Optimizer:
    """What a workload's ``build_optimizer`` returned, as one optimizer."""
    return built if isinstance(built, Optimizer) else SeveralOptimizers(built)


def members_of(optimizer: Optimizer) -> Sequence[Optimizer]:
    """The optimizer itself, and its members."""
    return [optimizer, *getattr(optimizer, "optimizers", ())]


Drawn = TypeVar("Drawn")


def seed_generators(seed: int) -> None:
    """Seed PyTorch's generators on every device, NumPy's and Python's; a workload's own ones do not
    change. Not collective.
    """
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


class IsolatedRng:
    """A context with its own random state, which starts from a seed and continues at each entry.

    Draws outside are independent.
    """

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
        """Yield the values of the iterator that ``begin`` makes; both draw in this context."""
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
    """Return the states of PyTorch's generators: the CPU's and, once it is in use, the current
    GPU's.
    """
    return [
        torch.get_rng_state(),
        *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []),
    ]


def _states() -> tuple[list[torch.Tensor], Any, Any]:
    return torch_states(), np.random.get_state(), random.getstate()


def _put_back(states: tuple[list[torch.Tensor], Any, Any]) -> None:
    (cpu, *gpu), numpys, pythons = states
    torch.set_rng_state(cpu)
    for state in gpu:
        torch.cuda.set_rng_state(state)
    np.random.set_state(numpys)
    random.setstate(pythons)
