"""What ranks can say to each other outside training. Backends implement it, micro-benchmarks speak it, neither knows the other."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor


ReduceOp = Literal["sum", "prod", "min", "max", "avg"]


class Pending(Protocol):
    """A message under way."""

    def wait(self) -> object:
        """Return when it has been sent, or has arrived."""


class Communicator(ABC):
    """Operations among ``ranks``; an implementation leaves out what its library does not offer.

    All but ``unsupported_reason`` are called by every one of ``ranks`` (``send`` and its kin: by the two concerned), with
    contiguous tensors on this rank's device. Ranks are always told as the world counts them. On CPU an operation has ended when it
    returns; on GPU it is then in the current stream.
    """

    library: ClassVar[str]
    """As it is named where it does not offer an operation."""

    def __init__(self, *, rank: int, ranks: Sequence[int]) -> None:
        self.rank = rank
        self.ranks = tuple(ranks)

    def unsupported_reason(self, operation: str, *, op: ReduceOp | None = None, dtype: str = "float32") -> str | None:
        """Why an operation, named as its method here, cannot be had; None where it can. Not collective, the same on every rank.

        ``op``: that it reduces by; None: it reduces nothing.
        """
        if getattr(type(self), operation) is getattr(Communicator, operation):
            return f"not offered by {self.library}"
        return self.unsupported_type(operation, op=op, dtype=dtype)

    def unsupported_type(self, operation: str, *, op: ReduceOp | None, dtype: str) -> str | None:
        """Why an operation that the library has cannot be had with this ``op`` and ``dtype``; None where it can."""
        return None

    def all_reduce(self, tensor: Tensor, *, op: ReduceOp = "sum") -> None:
        """What all ranks' tensors come to, in place."""
        raise NotImplementedError

    def all_reduce_to(self, tensor: Tensor, *, op: ReduceOp, out: Tensor) -> Tensor:
        """As ``all_reduce``; ``tensor`` stays. In ``out`` where the library can write there, else in a tensor of its own."""
        raise NotImplementedError

    def reduce(self, tensor: Tensor, *, op: ReduceOp, root: int) -> None:
        """As ``all_reduce``, on rank ``root`` only, in place there; other ranks' tensors are of no value afterwards."""
        raise NotImplementedError

    def broadcast(self, tensor: Tensor, *, root: int) -> None:
        """Rank ``root``'s, in place."""
        raise NotImplementedError

    def broadcast_to(self, tensor: Tensor, *, root: int, out: Tensor) -> Tensor:
        """As ``broadcast``; ``tensor`` stays. ``out`` as in ``all_reduce_to``."""
        raise NotImplementedError

    def all_gather(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        """All ranks' tensors, one after another; ``out`` as in ``all_reduce_to``."""
        raise NotImplementedError

    def all_gather_in_place(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        """As ``all_gather``, where ``tensor`` is this rank's part of ``out`` already."""
        raise NotImplementedError

    def reduce_scatter(self, tensor: Tensor, *, out: Tensor, op: ReduceOp = "sum") -> Tensor:
        """This rank's equal share of what all ranks' tensors come to; ``out`` as in ``all_reduce_to``."""
        raise NotImplementedError

    def gather(self, tensor: Tensor, *, root: int, out: Tensor) -> None:
        """All ranks' tensors, one after another, in rank ``root``'s ``out``; other ranks' is not used."""
        raise NotImplementedError

    def scatter(self, tensor: Tensor, *, root: int, out: Tensor) -> None:
        """This rank's equal share of rank ``root``'s tensor; other ranks' is not used."""
        raise NotImplementedError

    def all_to_all(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        """This rank's equal share of every rank's tensor, one after another; ``out`` as in ``all_reduce_to``."""
        raise NotImplementedError

    def send(self, tensor: Tensor, *, to: int) -> None:
        """To one rank."""
        raise NotImplementedError

    def recv(self, tensor: Tensor, *, source: int) -> None:
        """From one rank."""
        raise NotImplementedError

    def isend(self, tensor: Tensor, *, to: int) -> Pending:
        """As ``send``, without waiting."""
        raise NotImplementedError

    def irecv(self, tensor: Tensor, *, source: int) -> Pending:
        """As ``recv``, without waiting."""
        raise NotImplementedError

    def group(self, ranks: Sequence[int]) -> Communicator:
        """A communicator of some ranks only: one of the groups that were announced before the backend's ``setup``."""
        raise NotImplementedError
