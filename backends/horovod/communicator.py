"""``measurement.communicator`` over Horovod 0.28.1, which has collectives and process sets, but no
send and receive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from measurement.communicator import Communicator, ReduceOp

ProcessSets = Mapping[tuple[int, ...], Any]
"""``hvd.ProcessSet`` by their ranks."""
UNSUPPORTED, NOT_REDUCED = ("bfloat16",), ("int8", "uint8")
"""Types of tensors that Horovod 0.28.1 takes nowhere, and not where it reduces."""
HOROVOD_OPS: dict[ReduceOp, str] = {
    "sum": "Sum",
    "prod": "Product",
    "min": "Min",
    "max": "Max",
    "avg": "Average",
}


class HorovodCommunicator(Communicator):
    """Horovod's functions, each called with a name that is the same in every repetition.

    Without a name Horovod makes a new one for every call, and its response cache never hits. Its
    own ``DistributedOptimizer`` names every tensor too.
    """

    library = "Horovod"

    def __init__(
        self, hvd: Any, *, process_sets: ProcessSets, ranks: Sequence[int] | None = None
    ) -> None:
        super().__init__(rank=hvd.rank(), ranks=ranks if ranks is not None else range(hvd.size()))
        self._hvd = hvd
        self._process_sets = process_sets
        self._among = {"process_set": process_sets[self.ranks]} if ranks is not None else {}

    def _name(self, operation: str, tensor: Tensor) -> str:
        return f"{operation}.{tensor.numel()}.{tensor.dtype}.{len(self.ranks)}"

    def _op(self, op: ReduceOp) -> Any:
        return getattr(self._hvd, HOROVOD_OPS[op])

    def unsupported_reason(
        self, operation: str, *, op: ReduceOp | None = None, dtype: str = "float32"
    ) -> str | None:
        """What Horovod 0.28.1's torch binding refuses: it has no functions for these types, and no
        such reduce-scatter.
        """
        if dtype in UNSUPPORTED or (op is not None and dtype in NOT_REDUCED):
            return f"not offered by {self.library} for {dtype}"
        if operation == "reduce_scatter" and op not in ("sum", "avg"):
            return f"not offered by {self.library}, whose reducescatter sums and averages only"
        return super().unsupported_reason(operation, op=op, dtype=dtype)

    def all_reduce(self, tensor: Tensor, *, op: ReduceOp = "sum") -> None:
        name = self._name(f"all_reduce.{op}", tensor)
        self._hvd.allreduce_(tensor, op=self._op(op), name=name, **self._among)

    def broadcast(self, tensor: Tensor, *, root: int) -> None:
        self._hvd.broadcast_(
            tensor, root_rank=root, name=self._name("broadcast", tensor), **self._among
        )

    def all_gather(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        """Gather into a new tensor: Horovod allocates the result, and ``out`` is not used."""
        gathered: Tensor = self._hvd.allgather(
            tensor, name=self._name("all_gather", tensor), **self._among
        )
        return gathered

    def reduce_scatter(self, tensor: Tensor, *, out: Tensor, op: ReduceOp = "sum") -> Tensor:
        """Reduce and scatter into a new tensor: Horovod allocates the result, and ``out`` is not
        used.
        """
        name = self._name(f"reduce_scatter.{op}", tensor)
        share: Tensor = self._hvd.reducescatter(tensor, op=self._op(op), name=name, **self._among)
        return share

    def all_to_all(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        """Exchange into a new tensor: Horovod allocates the result, and ``out`` is not used."""
        received: Tensor = self._hvd.alltoall(
            tensor, name=self._name("all_to_all", tensor), **self._among
        )
        return received

    def group(self, ranks: Sequence[int]) -> Communicator:
        """Return the communicator of a process set that was made when Horovod started."""
        return type(self)(self._hvd, process_sets=self._process_sets, ranks=ranks)
