"""The operations that ``workloads.collectives`` repeats, each with its tensors, its right result and its bandwidth factor.

Sizes and bandwidths follow nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). The size of an all_gather is that
of its result; the size of a reduce_scatter is that of its input. algbw = size / time. busbw = algbw × the share of the size
that each link must carry, so that it can be compared with the hardware's bandwidth for any operation and number of ranks.
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
"""Period of the inputs' values: a prime, so that equal shares start with different values; small, so that sums are exact."""


class Operation(Repetition):
    """One operation, on a rank that takes part in it."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    """Methods of the communicator that it calls."""
    messages: ClassVar[int] = 1
    in_shares: ClassVar[bool] = False
    """Whether the message consists of one equal share for each rank."""
    least_ranks: ClassVar[int] = 2

    def __init__(self, communicator: Communicator, *, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self.communicator = communicator
        self.ranks = communicator.ranks
        self.input = self.result = torch.zeros(elements, dtype=dtype, device=device)

    @classmethod
    def group(cls, world_size: int) -> Sequence[int]:
        """Return the ranks that take part."""
        return range(world_size)

    @classmethod
    def busbw_factor(cls, ranks: int) -> float:
        """Return busbw / algbw for ``ranks`` ranks that take part."""
        return 1.0

    def values(self, rank: int) -> Tensor:
        """Return a rank's input: 0, 1, ... PERIOD - 1 over and over, plus its rank."""
        elements = len(self.input)
        period = torch.arange(PERIOD, dtype=self.input.dtype, device=self.input.device) + rank
        return period.repeat(elements // PERIOD + 1)[:elements]

    def sums(self) -> Tensor:
        """Return the sum of all ranks' inputs."""
        return self.values(0) * len(self.ranks) + sum(self.ranks)

    @abstractmethod
    def wanted(self) -> Tensor:
        """Return the right ``result``."""

    def fill(self) -> None:
        self.input.copy_(self.values(self.communicator.rank))

    def check(self) -> str | None:
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
    """All-reduce with SUM, in place."""

    name = "all_reduce"
    needs: ClassVar[tuple[str, ...]] = ("all_reduce",)

    @classmethod
    def busbw_factor(cls, ranks: int) -> float:
        """Return 2(n − 1)/n: every element is sent once to be added and once as a part of the sum."""
        return 2 * (ranks - 1) / ranks

    def run(self) -> None:
        self.communicator.all_reduce(self.input)

    def wanted(self) -> Tensor:
        return self.sums()

    def clear(self) -> None:
        self.input.zero_()


class GroupAllReduce(AllReduce):
    """All-reduce in the group of all ranks but the last."""

    name, needs, least_ranks = "group_all_reduce", ("all_reduce", "group"), 3

    @classmethod
    def group(cls, world_size: int) -> Sequence[int]:
        return range(world_size - 1)


class Broadcast(Operation):
    """Broadcast from rank 0, in place."""

    name, needs = "broadcast", ("broadcast",)

    def run(self) -> None:
        self.communicator.broadcast(self.input, root=0)

    def wanted(self) -> Tensor:
        return self.values(0)


class InShares(Operation):
    """An operation between a whole message and one rank's share of it."""

    in_shares = True

    def __init__(self, communicator: Communicator, *, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(communicator, elements=elements, dtype=dtype, device=device)
        self.whole, self.share = self.input, self.input.new_zeros(elements // len(self.ranks))

    @classmethod
    def busbw_factor(cls, ranks: int) -> float:
        """Return (n − 1)/n: a rank has its own share already."""
        return (ranks - 1) / ranks


class AllGather(InShares):
    """Gather every rank's share on all ranks, in order of rank."""

    name, needs = "all_gather", ("all_gather",)

    def __init__(self, communicator: Communicator, *, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(communicator, elements=elements, dtype=dtype, device=device)
        self.input = self.share

    def run(self) -> None:
        self.result = self.communicator.all_gather(self.input, out=self.whole)

    def wanted(self) -> Tensor:
        return torch.cat([self.values(rank) for rank in self.ranks])


class ReduceScatter(InShares):
    """Sum over all ranks, of which every rank keeps its share."""

    name, needs = "reduce_scatter", ("reduce_scatter",)

    def run(self) -> None:
        self.result = self.communicator.reduce_scatter(self.input, out=self.share)

    def wanted(self) -> Tensor:
        return self.sums().chunk(len(self.ranks))[self.ranks.index(self.communicator.rank)]


class SendRecv(Operation):
    """A ping-pong with blocking calls: rank 0 sends a message to rank 1, which sends it back. Other ranks take no part."""

    name, needs, messages = "send_recv", ("send", "recv"), 2

    def __init__(self, communicator: Communicator, *, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(communicator, elements=elements, dtype=dtype, device=device)
        if communicator.rank == 0:
            self.result = torch.zeros_like(self.input)

    @classmethod
    def group(cls, world_size: int) -> Sequence[int]:
        return range(2)

    def fill(self) -> None:
        """Fill rank 0's input, and clear what will be received."""
        self.result.zero_()
        if self.communicator.rank == 0:
            super().fill()

    def run(self) -> None:
        if self.communicator.rank == 0:
            self.communicator.send(self.input, to=1)
            self.communicator.recv(self.result, source=1)
        else:
            self.communicator.recv(self.result, source=0)
            self.communicator.send(self.result, to=0)

    def wanted(self) -> Tensor:
        return self.values(0)


class IsendIrecv(SendRecv):
    """The same ping-pong with nonblocking calls, each followed by a wait."""

    name, needs = "isend_irecv", ("isend", "irecv")

    def run(self) -> None:
        if self.communicator.rank == 0:
            self.communicator.isend(self.input, to=1).wait()
            self.communicator.irecv(self.result, source=1).wait()
        else:
            self.communicator.irecv(self.result, source=0).wait()
            self.communicator.isend(self.result, to=0).wait()


class Idle(Repetition):
    """A repetition on a rank that takes no part: it does nothing."""

    def fill(self) -> None:
        return

    def run(self) -> None:
        return

    def check(self) -> str | None:
        return None


OPERATIONS: dict[str, type[Operation]] = {
    one.name: one for one in (AllReduce, Broadcast, AllGather, ReduceScatter, GroupAllReduce, SendRecv, IsendIrecv)
}
