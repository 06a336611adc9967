"""``measurement.communicator`` over ``torch.distributed``, on the transport of its process
group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from measurement.communicator import Communicator, ReduceOp

Groups = Mapping[tuple[int, ...], Any]
"""Process groups by their ranks."""
REDUCE_OPS: dict[ReduceOp, Any] = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}


class TorchCommunicator(Communicator):
    """Calls the function of ``torch.distributed`` of the same name, or its
    ``_into_tensor``/``_tensor`` form; synchronous.
    """

    library = "torch.distributed"

    def __init__(
        self, *, ranks: Sequence[int] | None = None, group: Any = None, groups: Groups | None = None
    ) -> None:
        super().__init__(
            rank=dist.get_rank(), ranks=ranks if ranks is not None else range(dist.get_world_size())
        )
        self._group = group
        self._groups = groups or {}

    def all_reduce(self, tensor: Tensor, *, op: ReduceOp = "sum") -> None:
        dist.all_reduce(tensor, op=REDUCE_OPS[op], group=self._group)

    def reduce(self, tensor: Tensor, *, op: ReduceOp, root: int) -> None:
        dist.reduce(tensor, dst=root, op=REDUCE_OPS[op], group=self._group)

    def broadcast(self, tensor: Tensor, *, root: int) -> None:
        dist.broadcast(tensor, src=root, group=self._group)

    def all_gather(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        dist.all_gather_into_tensor(out, tensor, group=self._group)
        return out

    def reduce_scatter(self, tensor: Tensor, *, out: Tensor, op: ReduceOp = "sum") -> Tensor:
        dist.reduce_scatter_tensor(out, tensor, op=REDUCE_OPS[op], group=self._group)
        return out

    def gather(self, tensor: Tensor, *, root: int, out: Tensor) -> None:
        parts = list(out.chunk(len(self.ranks))) if self.rank == root else None
        dist.gather(tensor, gather_list=parts, dst=root, group=self._group)

    def scatter(self, tensor: Tensor, *, root: int, out: Tensor) -> None:
        parts = list(tensor.chunk(len(self.ranks))) if self.rank == root else None
        dist.scatter(out, scatter_list=parts, src=root, group=self._group)

    def all_to_all(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        dist.all_to_all_single(out, tensor, group=self._group)
        return out

    def send(self, tensor: Tensor, *, to: int) -> None:
        dist.send(tensor, dst=to, group=self._group)

    def recv(self, tensor: Tensor, *, source: int) -> None:
        dist.recv(tensor, src=source, group=self._group)

    def group(self, ranks: Sequence[int]) -> Communicator:
        """Return the communicator of a group that was made with this one."""
        return type(self)(ranks=ranks, group=self._groups[tuple(ranks)])
