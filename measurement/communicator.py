"""Communication between ranks outside training.

Backends implement it and micro-benchmarks use it, neither knows the other.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from torch import Tensor


ReduceOp = Literal["sum", "prod", "min", "max", "avg"]


class Communicator(ABC):
    """Operations among ``ranks``; an implementation leaves out what its library does not offer.

    Every one of ``ranks`` calls them, except ``unsupported_reason``; the two ranks concerned call
    ``send`` and ``recv``. Tensors are contiguous and on this rank's device. Ranks are numbered as
    in the world. On CPU an operation has ended when it returns; on GPU it is then in the current
    stream.
    """

    library: ClassVar[str]
    """Its name in messages."""

    def __init__(self, *, rank: int, ranks: Sequence[int]) -> None:
        self.rank = rank
        self.ranks = tuple(ranks)

    def unsupported_reason(
        self, operation: str, *, op: ReduceOp | None = None, dtype: str = "float32"
    ) -> str | None:
        """Why an operation, named as its method here, cannot be had; None where it can.

        Not collective, the same on every rank.

        ``op``: the reduction; None: it reduces nothing.
        """
        if getattr(type(self), operation) is getattr(Communicator, operation):
            return f"not offered by {self.library}"
        return None

    def all_reduce(self, tensor: Tensor, *, op: ReduceOp = "sum") -> None:
        """The reduction of all ranks' tensors, in place."""
        raise NotImplementedError

    def reduce(self, tensor: Tensor, *, op: ReduceOp, root: int) -> None:
        """As ``all_reduce``, on rank ``root`` only, in place there; other ranks' tensors are
        undefined afterwards.
        """
        raise NotImplementedError

    def broadcast(self, tensor: Tensor, *, root: int) -> None:
        """Rank ``root``'s, in place."""
        raise NotImplementedError

    def all_gather(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        """All ranks' tensors, one after another.

        In ``out`` where the library can write there, else in a tensor of its own.
        """
        raise NotImplementedError

    def reduce_scatter(self, tensor: Tensor, *, out: Tensor, op: ReduceOp = "sum") -> Tensor:
        """This rank's equal share of the reduction of all ranks' tensors; ``out`` as in
        ``all_gather``.
        """
        raise NotImplementedError

    def gather(self, tensor: Tensor, *, root: int, out: Tensor) -> None:
        """All ranks' tensors, one after another, in rank ``root``'s ``out``; other ranks' is not
        used.
        """
        raise NotImplementedError

    def scatter(self, tensor: Tensor, *, root: int, out: Tensor) -> None:
        """This rank's equal share of rank ``root``'s tensor; other ranks' is not used."""
        raise NotImplementedError

    def all_to_all(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        """This rank's equal share of every rank's tensor, one after another; ``out`` as in
        ``all_gather``.
        """
        raise NotImplementedError

    def send(self, tensor: Tensor, *, to: int) -> None:
        """To one rank."""
        raise NotImplementedError

    def recv(self, tensor: Tensor, *, source: int) -> None:
        """From one rank."""
        raise NotImplementedError

    def group(self, ranks: Sequence[int]) -> Communicator:
        """A communicator of some ranks only: one of the groups that were declared before the
        backend's ``setup``.
        """
        raise NotImplementedError
