"""Several optimizers as one, such as Muon for matrices and AdamW for the rest. A step is one of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer


class SeveralOptimizers(Optimizer):
    """Optimizers of parameters that they do not share, one of which steps after another.

    To libraries it is one optimizer: its parameter groups are those of all, the same objects, and so is its state. Horovod makes a
    subclass and calls its constructor with the parameter groups; ``optimizers`` is then given as an attribute.

    Args:
        members: the optimizers, or parameter groups.

    Raises:
        ValueError: two of them have a parameter in common.
    """

    optimizers: Sequence[Optimizer] = ()

    def __init__(self, members: Sequence[Optimizer] | Sequence[dict[str, Any]]) -> None:
        optimizers = [member for member in members if isinstance(member, Optimizer)]
        groups: list[Any] = [group for one in optimizers for group in one.param_groups] or list(members)
        super().__init__(groups, {})
        if optimizers:
            self.optimizers = optimizers
            for one in optimizers:
                self.state.update(one.state)
            self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        for one in self.optimizers:
            one.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Give each its part of the parameter groups in force, and the state of all, in which each finds that of its parameters."""
        first = 0
        for one in self.optimizers:
            last = first + len(one.param_groups)
            one.param_groups, one.state = self.param_groups[first:last], self.state
            first = last


def as_one(built: Optimizer | Sequence[Optimizer]) -> Optimizer:
    """What a workload's ``build_optimizer`` returned, as one optimizer."""
    return built if isinstance(built, Optimizer) else SeveralOptimizers(built)


def members_of(optimizer: Optimizer) -> Sequence[Optimizer]:
    """The optimizer itself, and those that it is made of."""
    return [optimizer, *getattr(optimizer, "optimizers", ())]
