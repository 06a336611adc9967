"""The operations that ``workloads.collectives`` repeats, each with its tensors, its right result and its bandwidth factor.

Sizes and bandwidths follow nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). The size of an all_gather, a gather, a
scatter and an all_to_all is that of the whole; the size of a reduce_scatter is that of its input. algbw = size / time. busbw =
algbw × the share of the size that each link must carry, so that it can be compared with the hardware's bandwidth for any operation
and number of ranks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from measurement.communicator import Communicator, ReduceOp
from workloads.micro_benchmark import Repetition

PERIOD = 31
"""Period of the inputs' values: a prime, so that equal shares start with different values; small, so that sums are exact."""
MANY_TWOS, FEW_TWOS, FEW_RANKS = 8, 1, 15
STRIDE = 7
"""How far the values of one rank are shifted against those of the next."""
COMBINE: dict[ReduceOp, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(dim=0),
    "prod": lambda rows: rows.prod(dim=0),
    "min": lambda rows: rows.amin(dim=0),
    "max": lambda rows: rows.amax(dim=0),
    "avg": lambda rows: rows.sum(dim=0) / len(rows),
}
"""What ranks' inputs, one in each row, come to."""


class Operation(Repetition):
    """One operation, on a rank that takes part in it."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    """Methods of the communicator that it calls in place, or where there is but one variant; none: it is never in place."""
    needs_out_of_place: ClassVar[tuple[str, ...] | None] = None
    """Methods that it calls where the result is another tensor than the input; None: there is no such variant."""
    reduces: ClassVar[bool] = False
    """Whether it combines the ranks' inputs, by any of ``COMBINE``."""
    has_root: ClassVar[bool] = False
    messages: ClassVar[int] = 1
    in_shares: ClassVar[bool] = False
    """Whether the message consists of one equal share for each rank."""
    is_usually_in_place: ClassVar[bool] = True
    """Where it has both variants."""
    least_ranks: ClassVar[int] = 2

    def __init__(
        self,
        communicator: Communicator,
        *,
        elements: int,
        dtype: torch.dtype,
        device: torch.device,
        op: ReduceOp = "sum",
        root: int = 0,
        in_place: bool = True,
    ) -> None:
        self.communicator = communicator
        self.ranks = communicator.ranks
        self.op, self.root, self.in_place = op, root, in_place
        self.input = self.result = torch.zeros(elements, dtype=dtype, device=device)
        if self.needs_out_of_place is not None and not in_place:
            self.result = torch.zeros_like(self.input)

    @classmethod
    def group(cls, world_size: int) -> Sequence[int]:
        """Return the ranks that take part."""
        return range(world_size)

    @classmethod
    def methods(cls, *, in_place: bool) -> tuple[str, ...]:
        """Return the methods of the communicator that a variant calls; none where there is no such variant."""
        return cls.needs if in_place else cls.needs_out_of_place or ()

    @classmethod
    def busbw_factor(cls, ranks: int) -> float:
        """Return busbw / algbw for ``ranks`` ranks that take part."""
        return 1.0

    def period(self, rank: int) -> Tensor:
        """Return what a rank's input repeats over and over, float64: sums over all ranks are exact in the input's dtype.

        Of a product every value is 1 or 2, and of many ranks few are 2 at the same place.
        """
        if self.op == "prod":
            twos = FEW_TWOS if len(self.ranks) > FEW_RANKS else MANY_TWOS
            return 1.0 + (torch.arange(PERIOD) + rank * STRIDE).remainder(PERIOD).lt(twos)
        kind = self.input.dtype
        exact = torch.iinfo(kind).max if not kind.is_floating_point else round(2 / torch.finfo(kind).eps)
        values = max(2, min(PERIOD, exact // len(self.ranks) + 1))
        return (torch.arange(PERIOD, dtype=torch.float64) + rank * STRIDE).remainder(values)

    def values(self, rank: int) -> Tensor:
        """Return a rank's input."""
        return self._repeated(self.period(rank))

    def reduced(self) -> Tensor:
        """Return what all ranks' inputs come to."""
        return self._repeated(COMBINE[self.op](torch.stack([self.period(rank) for rank in self.ranks])))

    def _repeated(self, period: Tensor) -> Tensor:
        elements = len(self.input)
        return period.to(self.input.dtype).to(self.input.device).repeat(elements // PERIOD + 1)[:elements]

    @abstractmethod
    def wanted(self) -> Tensor | None:
        """Return the right ``result``; None if this rank has none."""

    def fill(self) -> None:
        self.input.copy_(self.values(self.communicator.rank))

    def check(self) -> str | None:
        wanted = self.wanted()
        if wanted is None:
            return None
        if self.result.shape != wanted.shape:
            return f"{len(self.result)} elements where {len(wanted)} are right"
        is_right = self.result == wanted
        if self.op == "avg":  # the library may divide before it adds
            is_right = torch.isclose(self.result, wanted, rtol=4 * torch.finfo(wanted.dtype).eps, atol=0)
        if bool(is_right.all()):
            return None
        wrong = (~is_right).nonzero()
        first = int(wrong[0])
        return (
            f"{self.result[first].item():g} where {wanted[first].item():g} is right "
            f"(element {first}; {len(wrong)} of {len(wanted)} elements are wrong)"
        )


class AllReduce(Operation):
    """All-reduce, in place or out of place."""

    name, reduces = "all_reduce", True
    needs: ClassVar[tuple[str, ...]] = ("all_reduce",)
    needs_out_of_place: ClassVar[tuple[str, ...] | None] = ("all_reduce_to",)

    @classmethod
    def busbw_factor(cls, ranks: int) -> float:
        """Return 2(n − 1)/n: every element is sent once to be added and once as a part of the sum."""
        return 2 * (ranks - 1) / ranks

    def run(self) -> None:
        if self.in_place:
            self.communicator.all_reduce(self.input, op=self.op)
        else:
            self.result = self.communicator.all_reduce_to(self.input, op=self.op, out=self.result)

    def wanted(self) -> Tensor:
        return self.reduced()

    def clear(self) -> None:
        self.input.fill_(1 if self.op == "prod" else 0)


class GroupAllReduce(AllReduce):
    """All-reduce in the group of all ranks but the last, in place."""

    name, needs, least_ranks = "group_all_reduce", ("all_reduce", "group"), 3
    needs_out_of_place = None

    @classmethod
    def group(cls, world_size: int) -> Sequence[int]:
        return range(world_size - 1)


class Reduce(Operation):
    """Reduce to the root, in place there."""

    name, needs, reduces, has_root = "reduce", ("reduce",), True, True

    def run(self) -> None:
        self.communicator.reduce(self.input, op=self.op, root=self.root)

    def wanted(self) -> Tensor | None:
        return self.reduced() if self.communicator.rank == self.root else None

    def clear(self) -> None:
        self.input.fill_(1 if self.op == "prod" else 0)


class Broadcast(Operation):
    """Broadcast from the root, in place or out of place."""

    name, has_root = "broadcast", True
    needs: ClassVar[tuple[str, ...]] = ("broadcast",)
    needs_out_of_place: ClassVar[tuple[str, ...] | None] = ("broadcast_to",)

    def run(self) -> None:
        if self.in_place:
            self.communicator.broadcast(self.input, root=self.root)
        else:
            self.result = self.communicator.broadcast_to(self.input, root=self.root, out=self.result)

    def wanted(self) -> Tensor:
        return self.values(self.root)


class GroupBroadcast(Broadcast):
    """Broadcast in the group of all ranks but the last, from its first rank, in place."""

    name, needs, least_ranks, has_root = "group_broadcast", ("broadcast", "group"), 3, False
    needs_out_of_place = None

    @classmethod
    def group(cls, world_size: int) -> Sequence[int]:
        return range(world_size - 1)


class InShares(Operation):
    """An operation between a whole message and one rank's share of it."""

    in_shares, is_usually_in_place = True, False

    def __init__(self, communicator: Communicator, *, elements: int, **asked: object) -> None:
        super().__init__(communicator, elements=elements, **asked)  # type: ignore[arg-type]
        self.place = self.ranks.index(communicator.rank)
        self.whole, self.share = self.input, self.input.new_zeros(elements // len(self.ranks))

    @classmethod
    def busbw_factor(cls, ranks: int) -> float:
        """Return (n − 1)/n: a rank has its own share already."""
        return (ranks - 1) / ranks


class AllGather(InShares):
    """Gather every rank's share on all ranks, in order of rank; in place the input lies in the result already."""

    name, needs, needs_out_of_place = "all_gather", ("all_gather_in_place",), ("all_gather",)

    def __init__(self, communicator: Communicator, *, elements: int, **asked: object) -> None:
        super().__init__(communicator, elements=elements, **asked)
        self.result = self.whole
        self.input = self.whole.chunk(len(self.ranks))[self.place] if self.in_place else self.share

    def run(self) -> None:
        gather = self.communicator.all_gather_in_place if self.in_place else self.communicator.all_gather
        self.result = gather(self.input, out=self.whole)

    def wanted(self) -> Tensor:
        return torch.cat([self.values(rank) for rank in self.ranks])


class ReduceScatter(InShares):
    """What all ranks' inputs come to, of which every rank keeps its share."""

    name, needs, needs_out_of_place, reduces = "reduce_scatter", (), ("reduce_scatter",), True

    def run(self) -> None:
        self.result = self.communicator.reduce_scatter(self.input, op=self.op, out=self.share)

    def wanted(self) -> Tensor:
        return self.reduced().chunk(len(self.ranks))[self.place]


class Gather(InShares):
    """Gather every rank's share on the root, in order of rank."""

    name, needs, needs_out_of_place, has_root = "gather", (), ("gather",), True

    def __init__(self, communicator: Communicator, *, elements: int, **asked: object) -> None:
        super().__init__(communicator, elements=elements, **asked)
        self.input, self.result = self.share, self.whole

    def run(self) -> None:
        self.communicator.gather(self.input, root=self.root, out=self.whole)

    def wanted(self) -> Tensor | None:
        return torch.cat([self.values(rank) for rank in self.ranks]) if self.communicator.rank == self.root else None


class Scatter(InShares):
    """The root's message, of which every rank gets its share."""

    name, needs, needs_out_of_place, has_root = "scatter", (), ("scatter",), True

    def run(self) -> None:
        self.communicator.scatter(self.whole, root=self.root, out=self.share)
        self.result = self.share

    def wanted(self) -> Tensor:
        return self.values(self.root).chunk(len(self.ranks))[self.place]


class AllToAll(InShares):
    """Every rank's message, of which every rank gets its share, in order of rank."""

    name, needs, needs_out_of_place = "all_to_all", (), ("all_to_all",)

    def __init__(self, communicator: Communicator, *, elements: int, **asked: object) -> None:
        super().__init__(communicator, elements=elements, **asked)
        self.out = torch.zeros_like(self.whole)

    def run(self) -> None:
        self.result = self.communicator.all_to_all(self.input, out=self.out)

    def wanted(self) -> Tensor:
        return torch.cat([self.values(rank).chunk(len(self.ranks))[self.place] for rank in self.ranks])


class SendRecv(Operation):
    """A ping-pong with blocking calls: rank 0 sends a message to rank 1, which sends it back. Other ranks take no part."""

    name: ClassVar[str] = "send_recv"
    needs: ClassVar[tuple[str, ...]] = ("send", "recv")
    messages = 2

    def __init__(self, communicator: Communicator, *, elements: int, **asked: object) -> None:
        super().__init__(communicator, elements=elements, **asked)  # type: ignore[arg-type]
        self.first, self.other = self.group(len(communicator.ranks))
        if communicator.rank == self.first:
            self.result = torch.zeros_like(self.input)

    @classmethod
    def group(cls, world_size: int) -> Sequence[int]:
        return (0, 1)

    def fill(self) -> None:
        """Fill the first rank's input, and clear what will be received."""
        self.result.zero_()
        if self.communicator.rank == self.first:
            super().fill()

    def run(self) -> None:
        if self.communicator.rank == self.first:
            self.communicator.send(self.input, to=self.other)
            self.communicator.recv(self.result, source=self.other)
        else:
            self.communicator.recv(self.result, source=self.first)
            self.communicator.send(self.result, to=self.first)

    def wanted(self) -> Tensor:
        return self.values(self.first)


class SendRecvLast(SendRecv):
    """A ping-pong with blocking calls between rank 0 and the last rank, on another host where there are several."""

    name, least_ranks = "send_recv_last", 3

    @classmethod
    def group(cls, world_size: int) -> Sequence[int]:
        return (0, world_size - 1)


class IsendIrecv(SendRecv):
    """A ping-pong with nonblocking calls, each followed by a wait."""

    name: ClassVar[str] = "isend_irecv"
    needs = ("isend", "irecv")

    def run(self) -> None:
        if self.communicator.rank == self.first:
            self.communicator.isend(self.input, to=self.other).wait()
            self.communicator.irecv(self.result, source=self.other).wait()
        else:
            self.communicator.irecv(self.result, source=self.first).wait()
            self.communicator.isend(self.result, to=self.first).wait()


class IsendIrecvLast(IsendIrecv):
    """A ping-pong with nonblocking calls between rank 0 and the last rank."""

    name, least_ranks = "isend_irecv_last", 3

    @classmethod
    def group(cls, world_size: int) -> Sequence[int]:
        return (0, world_size - 1)


class RootIsend(Operation):
    """The root sends its message to every other rank, all at once by nonblocking calls."""

    name, needs, has_root = "root_isend", ("isend", "recv"), True

    @classmethod
    def busbw_factor(cls, ranks: int) -> float:
        """Return n − 1: the root's link carries the message once for each other rank."""
        return float(ranks - 1)

    def run(self) -> None:
        if self.communicator.rank == self.root:
            under_way = [self.communicator.isend(self.input, to=rank) for rank in self.ranks if rank != self.root]
            for message in under_way:
                message.wait()
        else:
            self.communicator.recv(self.input, source=self.root)

    def wanted(self) -> Tensor:
        return self.values(self.root)


class Idle(Repetition):
    """A repetition on a rank that takes no part: it does nothing."""

    def fill(self) -> None:
        return

    def run(self) -> None:
        return

    def check(self) -> str | None:
        return None


OPERATIONS: dict[str, type[Operation]] = {
    one.name: one
    for one in (
        *(AllReduce, Broadcast, AllGather, ReduceScatter, Reduce, Gather, Scatter, AllToAll, GroupAllReduce, GroupBroadcast),
        *(SendRecv, SendRecvLast, IsendIrecv, IsendIrecvLast, RootIsend),
    )
}
BY_DEFAULT = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "group_all_reduce", "send_recv", "isend_irecv")
"""Those that are measured where a plan names none."""
