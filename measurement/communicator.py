"""What ranks can say to each other outside training. Backends implement it, micro-benchmarks speak it, neither knows the other."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import Tensor


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

    def unsupported_reason(self, operation: str) -> str | None:
        """Why an operation, named as its method here, cannot be had; None where it can. Not collective."""
        is_offered = getattr(type(self), operation) is not getattr(Communicator, operation)
        return None if is_offered else f"not offered by {self.library}"

    def all_reduce(self, tensor: Tensor) -> None:
        """The sum over all ranks, in place."""
        raise NotImplementedError

    def broadcast(self, tensor: Tensor, *, root: int) -> None:
        """Rank ``root``'s, in place."""
        raise NotImplementedError

    def all_gather(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        """All ranks' tensors, one after another: in ``out`` where the library can write there, else in a tensor of its own."""
        raise NotImplementedError

    def reduce_scatter(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        """This rank's equal share of the sum over all ranks; ``out`` as in ``all_gather``."""
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
        """The same operations among some ranks only: one of the groups that were announced before the backend's ``setup``."""
        raise NotImplementedError
