"""The operations that ``workloads.collectives`` repeats, each with its tensors, its right result and its bandwidth factor.

Sizes and bandwidths as nccl-tests defines them (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): the size of an all_gather
is that of its result, of a reduce_scatter that of its input; algbw = size / time; busbw = algbw × what each link must carry
of the size, so that the figures of several operations and numbers of ranks can be held against the hardware's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from measurement.communicator import Communicator
from workloads.micro_benchmark import Repetition

PERIOD = 31
"""Of the inputs' values: a prime, so that no share of a power of two begins as another does; small, so that sums are exact."""


class Operation(Repetition):
    """One operation on one of the ranks that take part."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    """Methods of the communicator."""
    messages: ClassVar[int] = 1
    in_shares: ClassVar[bool] = False
    """The message is the ranks' equal shares together."""
    least_ranks: ClassVar[int] = 2

    def __init__(self, communicator: Communicator, *, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self.communicator = communicator
        self.ranks = communicator.ranks
        self.input = self.result = torch.zeros(elements, dtype=dtype, device=device)

    @classmethod
    def group(cls, world_size: int) -> Sequence[int]:
        """The ranks that take part."""
        return range(world_size)

    @classmethod
    def busbw_factor(cls, ranks: int) -> float:
        """For so many ranks that take part."""
        return 1.0

    def values(self, rank: int) -> Tensor:
        """What a rank puts in: 0, 1, ... PERIOD - 1 over and over, plus its rank."""
        elements = len(self.input)
        period = torch.arange(PERIOD, dtype=self.input.dtype, device=self.input.device) + rank
        return period.repeat(elements // PERIOD + 1)[:elements]

    def sums(self) -> Tensor:
        """The sum of all ranks' values."""
        return self.values(0) * len(self.ranks) + sum(self.ranks)

    @abstractmethod
    def wanted(self) -> Tensor:
        """The right ``result``."""

    def fill(self) -> None:
        """This rank's values."""
        self.input.copy_(self.values(self.communicator.rank))

    def check(self) -> str | None:
        """The first element that is wrong."""
        wanted = self.wanted()
        if self.result.shape != wanted.shape:
            return f"{len(self.result)} elements where {len(wanted)} are right"
        if torch.equal(self.result, wanted):
            return None
        wrong = (self.result != wanted).nonzero()
        first = int(wrong[0])
        return (
            f"{self.result[first].item():g} where {wanted[first].item():g} is right "
            f"(element {first}; {len(wrong)} of {len(wanted)} elements are wrong)"
        )


class AllReduce(Operation):
    """The sum, in place."""

    name = "all_reduce"
    needs: ClassVar[tuple[str, ...]] = ("all_reduce",)

    @classmethod
    def busbw_factor(cls, ranks: int) -> float:
        """2(n − 1)/n: every element is sent to be added and sent again as a sum."""
        return 2 * (ranks - 1) / ranks

    def run(self) -> None:
        """Once."""
        self.communicator.all_reduce(self.input)

    def wanted(self) -> Tensor:
        """The sum."""
        return self.sums()

    def clear(self) -> None:
        """Zeros, whose sum is zero."""
        self.input.zero_()


class GroupAllReduce(AllReduce):
    """The same among all ranks but the last."""

    name, needs, least_ranks = "group_all_reduce", ("all_reduce", "group"), 3

    @classmethod
    def group(cls, world_size: int) -> Sequence[int]:
        """All but the last."""
        return range(world_size - 1)


class Broadcast(Operation):
    """From rank 0, in place."""

    name, needs = "broadcast", ("broadcast",)

    def run(self) -> None:
        """Once."""
        self.communicator.broadcast(self.input, root=0)

    def wanted(self) -> Tensor:
        """Rank 0's."""
        return self.values(0)


class InShares(Operation):
    """Whole message on one side, one share of it on the other."""

    in_shares = True

    def __init__(self, communicator: Communicator, *, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(communicator, elements=elements, dtype=dtype, device=device)
        self.whole, self.share = self.input, self.input.new_zeros(elements // len(self.ranks))

    @classmethod
    def busbw_factor(cls, ranks: int) -> float:
        """(n − 1)/n: a rank has its own share already."""
        return (ranks - 1) / ranks


class AllGather(InShares):
    """Every rank's share to all."""

    name, needs = "all_gather", ("all_gather",)

    def __init__(self, communicator: Communicator, *, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(communicator, elements=elements, dtype=dtype, device=device)
        self.input = self.share

    def run(self) -> None:
        """Once."""
        self.result = self.communicator.all_gather(self.input, out=self.whole)

    def wanted(self) -> Tensor:
        """All shares in order of rank."""
        return torch.cat([self.values(rank) for rank in self.ranks])


class ReduceScatter(InShares):
    """Every rank its share of the sum."""

    name, needs = "reduce_scatter", ("reduce_scatter",)

    def run(self) -> None:
        """Once."""
        self.result = self.communicator.reduce_scatter(self.input, out=self.share)

    def wanted(self) -> Tensor:
        """This rank's."""
        return self.sums().chunk(len(self.ranks))[self.ranks.index(self.communicator.rank)]


class SendRecv(Operation):
    """A ping-pong by blocking calls: rank 0's message to rank 1 and back. The other ranks take no part."""

    name, needs, messages = "send_recv", ("send", "recv"), 2

    def __init__(self, communicator: Communicator, *, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(communicator, elements=elements, dtype=dtype, device=device)
        if communicator.rank == 0:
            self.result = torch.zeros_like(self.input)

    @classmethod
    def group(cls, world_size: int) -> Sequence[int]:
        """The first two."""
        return range(2)

    def fill(self) -> None:
        """Nothing lies already where it shall arrive."""
        self.result.zero_()
        if self.communicator.rank == 0:
            super().fill()

    def run(self) -> None:
        """There and back."""
        if self.communicator.rank == 0:
            self.communicator.send(self.input, to=1)
            self.communicator.recv(self.result, source=1)
        else:
            self.communicator.recv(self.result, source=0)
            self.communicator.send(self.result, to=0)

    def wanted(self) -> Tensor:
        """Rank 0's message, at both ends."""
        return self.values(0)


class IsendIrecv(SendRecv):
    """The same ping-pong, each message begun without waiting and then waited for."""

    name, needs = "isend_irecv", ("isend", "irecv")

    def run(self) -> None:
        """There and back."""
        if self.communicator.rank == 0:
            self.communicator.isend(self.input, to=1).wait()
            self.communicator.irecv(self.result, source=1).wait()
        else:
            self.communicator.irecv(self.result, source=0).wait()
            self.communicator.isend(self.result, to=0).wait()


class Idle(Repetition):
    """A rank that takes no part."""

    def fill(self) -> None:
        """Nothing."""

    def run(self) -> None:
        """Nothing."""

    def check(self) -> str | None:
        """Nothing can be wrong."""


OPERATIONS: dict[str, type[Operation]] = {
    one.name: one for one in (AllReduce, Broadcast, AllGather, ReduceScatter, GroupAllReduce, SendRecv, IsendIrecv)
}
