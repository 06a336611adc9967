"""``measurement.communicator`` over Horovod 0.28.1, which has collectives and process sets, and nothing from rank to rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from measurement.communicator import Communicator

ProcessSets = Mapping[tuple[int, ...], Any]
"""``hvd.ProcessSet`` by their ranks."""


class HorovodCommunicator(Communicator):
    """Horovod's functions, each under a name that stays the same for the same tensors.

    Without a name Horovod makes up a new one for every call, so that its response cache never knows the operation again; its
    own ``DistributedOptimizer`` names every tensor too.
    """

    library = "Horovod"

    def __init__(self, hvd: Any, *, process_sets: ProcessSets, ranks: Sequence[int] | None = None) -> None:
        super().__init__(rank=hvd.rank(), ranks=ranks if ranks is not None else range(hvd.size()))
        self._hvd = hvd
        self._process_sets = process_sets
        self._among = {"process_set": process_sets[self.ranks]} if ranks is not None else {}

    def _name(self, operation: str, tensor: Tensor) -> str:
        return f"{operation}.{tensor.numel()}.{len(self.ranks)}"

    def all_reduce(self, tensor: Tensor) -> None:
        """``allreduce_`` with Sum."""
        self._hvd.allreduce_(tensor, op=self._hvd.Sum, name=self._name("all_reduce", tensor), **self._among)

    def broadcast(self, tensor: Tensor, *, root: int) -> None:
        """``broadcast_``."""
        self._hvd.broadcast_(tensor, root_rank=root, name=self._name("broadcast", tensor), **self._among)

    def all_gather(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        """``allgather``, which allocates its result."""
        gathered: Tensor = self._hvd.allgather(tensor, name=self._name("all_gather", tensor), **self._among)
        return gathered

    def reduce_scatter(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        """``reducescatter`` with Sum, which allocates its result."""
        name = self._name("reduce_scatter", tensor)
        share: Tensor = self._hvd.reducescatter(tensor, op=self._hvd.Sum, name=name, **self._among)
        return share

    def group(self, ranks: Sequence[int]) -> Communicator:
        """A process set that was there when Horovod started."""
        return type(self)(self._hvd, process_sets=self._process_sets, ranks=ranks)
