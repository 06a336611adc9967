"""The operations that ``workloads.collectives`` repeats, each with its tensors, its expected result
and its bandwidth factor.

Sizes and bandwidths follow nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). The size
of an all_gather, a gather, a scatter and an all_to_all is that of the whole; the size of a
reduce_scatter is that of its input. algbw = size / time. busbw = algbw × the share of the size that
each link must carry. It can be compared with the hardware's bandwidth for any operation and number
of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from measurement.communicator import Communicator, ReduceOp
from workloads.micro_benchmark import Repetition

PERIOD = 31
"""Period of the inputs' values: a prime, so that equal shares start with different values; small,
so that sums are exact."""
TWOS, TWOS_OF_MANY, FEW_RANKS = 8, 1, 15
"""Twos in a period of a product's input: the first for up to so many ranks, else the second."""
STRIDE = 7
"""Shift of a rank's values relative to the previous rank's."""
COMBINE: dict[ReduceOp, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(dim=0),
    "prod": lambda rows: rows.prod(dim=0),
    "min": lambda rows: rows.amin(dim=0),
    "max": lambda rows: rows.amax(dim=0),
    "avg": lambda rows: rows.sum(dim=0) / len(rows),
}
"""Reductions of ranks' inputs, one in each row."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation: how it runs on a rank that takes part, and its expected result."""

    run: Callable[[OperationRun], Tensor | None]
    """Returns the result; None: it is in ``out``."""
    expected: Callable[[OperationRun], Tensor | None]
    """The expected ``result``; None where this rank has none."""
    methods: tuple[str, ...]
    """Methods of the communicator that it calls."""
    in_place: bool = False
    """Whether the result overwrites the input."""
    ranks: Callable[[int], Sequence[int]] = range
    """The ranks that take part, for a number of ranks."""
    least_ranks: int = 2
    busbw: Callable[[int], float] = lambda _: 1.0
    """busbw / algbw, for a number of participating ranks."""
    reduces: bool = False
    """Whether it combines the ranks' inputs, by any of ``COMBINE``."""
    has_root: bool = False
    messages: int = 1
    gives_share: bool = False
    """Whether a rank's input is one equal share of the message."""
    takes_share: bool = False
    """Whether its result is one equal share of the message."""
    in_shares: bool = False
    """Whether the message has one equal share for each rank."""


class OperationRun(Repetition):
    """An operation on a rank that takes part in it, with its tensors."""

    def __init__(
        self,
        operation: Operation,
        communicator: Communicator,
        ranks: Sequence[int],
        *,
        elements: int,
        like: Tensor,
        op: ReduceOp,
        root: int,
    ) -> None:
        """``ranks``: those that take part.

        ``elements``: of the message. ``like``: a tensor of their dtype, on the device.
        """
        self._operation, self.communicator, self.ranks = operation, communicator, ranks
        self.op, self.root = op, root
        share = elements // len(ranks)
        self.input = like.new_zeros(share if operation.gives_share else elements)
        self.out = self.input
        if not operation.in_place:
            self.out = like.new_zeros(share if operation.takes_share else elements)
        self.result = self.out

    def fill(self) -> None:
        self.input.copy_(self.values(self.communicator.rank))

    def run(self) -> None:
        result = self._operation.run(self)
        if result is not None:
            self.result = result

    def clear(self) -> None:
        if self._operation.reduces:
            self.input.fill_(1 if self.op == "prod" else 0)

    def check(self) -> str | None:
        expected = self._operation.expected(self)
        if expected is None:
            return None
        if self.result.shape != expected.shape:
            return f"{len(self.result)} elements where {len(expected)} are right"
        is_right = self.result == expected
        if self.op == "avg":  # the library may divide before it adds
            is_right = torch.isclose(
                self.result, expected, rtol=4 * torch.finfo(expected.dtype).eps, atol=0
            )
        if bool(is_right.all()):
            return None
        wrong = (~is_right).nonzero()
        first = int(wrong[0])
        return (
            f"{self.result[first].item():g} where {expected[first].item():g} is right "
            f"(element {first}; {len(wrong)} of {len(expected)} elements are wrong)"
        )

    @property
    def is_root(self) -> bool:
        """Whether this rank sends to all, or receives from all."""
        return self.communicator.rank == self.root

    def period(self, rank: int) -> Tensor:
        """Return the repeated part of a rank's input, float64.

        Sums over all ranks are exact in the input's dtype.

        For a product every value is 1 or 2. With many ranks, few are 2 at the same place.
        """
        if self.op == "prod":
            twos = TWOS if len(self.ranks) <= FEW_RANKS else TWOS_OF_MANY
            return 1.0 + (torch.arange(PERIOD) + rank * STRIDE).remainder(PERIOD).lt(twos)
        kind = self.input.dtype
        exact = (
            torch.iinfo(kind).max
            if not kind.is_floating_point
            else round(2 / torch.finfo(kind).eps)
        )
        values = max(2, min(PERIOD, exact // len(self.ranks) + 1))
        return (torch.arange(PERIOD, dtype=torch.float64) + rank * STRIDE).remainder(values)

    def values(self, rank: int) -> Tensor:
        """Return a rank's input."""
        return self._repeated(self.period(rank))

    def reduced(self) -> Tensor:
        """Return the reduction of all ranks' inputs."""
        return self._repeated(
            COMBINE[self.op](torch.stack([self.period(rank) for rank in self.ranks]))
        )

    def own_share(self, whole: Tensor) -> Tensor:
        """Return this rank's share of a message."""
        return whole.chunk(len(self.ranks))[self.ranks.index(self.communicator.rank)]

    def _repeated(self, period: Tensor) -> Tensor:
        elements = len(self.input)
        return period.to(self.input).repeat(elements // PERIOD + 1)[:elements]


class Idle(Repetition):
    """A repetition on a rank that takes no part: it does nothing."""

    def run(self) -> None:
        return


def _send_recv(it: OperationRun) -> None:
    first, other = it.ranks
    if it.communicator.rank == first:
        it.communicator.send(it.input, to=other)
        it.communicator.recv(it.out, source=other)
    else:
        it.communicator.recv(it.out, source=first)
        it.communicator.send(it.out, to=first)


def _everyones(it: OperationRun) -> Tensor:
    return torch.cat([it.values(rank) for rank in it.ranks])


def _but_own(ranks: int) -> float:
    """Return (n - 1)/n: a rank has its own share already."""
    return (ranks - 1) / ranks


ALL_REDUCE = Operation(
    run=lambda it: it.communicator.all_reduce(it.input, op=it.op),
    expected=OperationRun.reduced,
    methods=("all_reduce",),
    in_place=True,
    reduces=True,
    # every element is sent once to be added and once as a part of the sum
    busbw=lambda ranks: 2 * (ranks - 1) / ranks,
)
BROADCAST = Operation(
    run=lambda it: it.communicator.broadcast(it.input, root=it.root),
    expected=lambda it: it.values(it.root),
    methods=("broadcast",),
    in_place=True,
    has_root=True,
)
SEND_RECV = Operation(
    run=_send_recv,
    expected=lambda it: it.values(it.ranks[0]),
    methods=("send", "recv"),
    ranks=lambda _: (0, 1),
    messages=2,
)
OPERATIONS: dict[str, Operation] = {
    "all_reduce": ALL_REDUCE,
    "broadcast": BROADCAST,
    "all_gather": Operation(
        run=lambda it: it.communicator.all_gather(it.input, out=it.out),
        expected=_everyones,
        methods=("all_gather",),
        in_shares=True,
        gives_share=True,
        busbw=_but_own,
    ),
    "reduce_scatter": Operation(
        run=lambda it: it.communicator.reduce_scatter(it.input, op=it.op, out=it.out),
        expected=lambda it: it.own_share(it.reduced()),
        methods=("reduce_scatter",),
        reduces=True,
        in_shares=True,
        takes_share=True,
        busbw=_but_own,
    ),
    "reduce": Operation(
        run=lambda it: it.communicator.reduce(it.input, op=it.op, root=it.root),
        expected=lambda it: it.reduced() if it.is_root else None,
        methods=("reduce",),
        in_place=True,
        reduces=True,
        has_root=True,
    ),
    "gather": Operation(
        run=lambda it: it.communicator.gather(it.input, root=it.root, out=it.out),
        expected=lambda it: _everyones(it) if it.is_root else None,
        methods=("gather",),
        has_root=True,
        in_shares=True,
        gives_share=True,
        busbw=_but_own,
    ),
    "scatter": Operation(
        run=lambda it: it.communicator.scatter(it.input, root=it.root, out=it.out),
        expected=lambda it: it.own_share(it.values(it.root)),
        methods=("scatter",),
        has_root=True,
        in_shares=True,
        takes_share=True,
        busbw=_but_own,
    ),
    "all_to_all": Operation(
        run=lambda it: it.communicator.all_to_all(it.input, out=it.out),
        expected=lambda it: torch.cat([it.own_share(it.values(rank)) for rank in it.ranks]),
        methods=("all_to_all",),
        in_shares=True,
        busbw=_but_own,
    ),
    "group_all_reduce": replace(
        ALL_REDUCE,
        methods=("all_reduce", "group"),
        ranks=lambda world_size: range(world_size - 1),
        least_ranks=3,
    ),
    "group_broadcast": replace(
        BROADCAST,
        methods=("broadcast", "group"),
        has_root=False,
        ranks=lambda world_size: range(world_size - 1),
        least_ranks=3,
    ),
    "send_recv": SEND_RECV,
    "send_recv_last": replace(
        SEND_RECV, ranks=lambda world_size: (0, world_size - 1), least_ranks=3
    ),
}
"""The groups are all ranks but the last. Ping-pongs are between rank 0 and rank 1, or the last,
which may be on another host."""
BY_DEFAULT = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "group_all_reduce",
    "send_recv",
)
"""The operations that are measured where a plan names none."""
