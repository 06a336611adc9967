"""The MPI datatype and operation for a ReduceOp and a dtype: every ReduceOp with a counterpart in
MPI, and AVG.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from backends.mpi.library import load_mpi

DATATYPES = {
    torch.bool: "C_BOOL",
    torch.int8: "INT8_T",
    torch.int16: "INT16_T",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
    torch.uint8: "UINT8_T",
    torch.uint16: "UINT16_T",
    torch.uint32: "UINT32_T",
    torch.uint64: "UINT64_T",
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.complex64: "C_FLOAT_COMPLEX",
    torch.complex128: "C_DOUBLE_COMPLEX",
    torch.float16: "INT16_T",
    torch.bfloat16: "INT16_T",
}
"""Names in mpi4py. float16 and bfloat16 are sent as 16-bit integers and reduced by
``_half_operation``."""

HALVES = (torch.float16, torch.bfloat16)

SUMS = {"SUM": "SUM", "AVG": "SUM", "PRODUCT": "PROD"}
ORDER = {"MIN": "MIN", "MAX": "MAX"}
WHOLE = {"SUM": "SUM", "PRODUCT": "PROD", **ORDER, "BAND": "BAND", "BOR": "BOR", "BXOR": "BXOR"}
BOOL = {
    "SUM": "LOR",
    "PRODUCT": "LAND",
    "MIN": "LAND",
    "MAX": "LOR",
    "BAND": "LAND",
    "BOR": "LOR",
    "BXOR": "LXOR",
}
"""mpi4py's operations by ReduceOp. Bool tensors are one-bit numbers whose sum saturates, as in
NCCL."""

HALF_OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "SUM": torch.add,
    "PROD": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """One ReduceOp on one dtype, in MPI's terms."""

    datatype: Any
    operation: Any
    is_mean: bool
    """Whether the sum is to be divided by the number of ranks."""


def find_reduction(reduce_op: Any, dtype: torch.dtype) -> Reduction:
    """Find MPI's counterpart of a ReduceOp on tensors of ``dtype``.

    Raises:
        NotImplementedError: there is none.
    """
    # RedOpType hashes as a number and costs nothing; a ReduceOp object has to be asked for its
    # kind.
    kind = (
        reduce_op if isinstance(reduce_op, dist.ReduceOp.RedOpType) else reduce_op.__getstate__()[0]
    )
    return _find(kind, dtype)


@functools.cache
def _find(kind: Any, dtype: torch.dtype) -> Reduction:
    name = dist.ReduceOp.RedOpType(kind).name
    if dtype not in DATATYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DATATYPES)
        raise NotImplementedError(
            f"MPI has no datatype to reduce {dtype} tensors (it reduces {names}); convert the"
            " tensor first"
        )
    if dtype.is_complex or dtype.is_floating_point:
        operations = SUMS if dtype.is_complex else SUMS | ORDER
    else:
        operations = BOOL if dtype == torch.bool else WHOLE
    if name not in operations:
        raise NotImplementedError(
            f"MPI has no ReduceOp.{name} of {dtype} tensors; it has {', '.join(operations)}"
        )
    operation = operations[name]
    mpi = load_mpi()
    return Reduction(
        datatype=getattr(mpi, DATATYPES[dtype]),
        operation=_half_operation(operation, dtype) if dtype in HALVES else getattr(mpi, operation),
        is_mean=name == "AVG",
    )


@functools.cache
def _half_operation(operation: str, dtype: torch.dtype) -> Any:
    """Make a user-defined MPI operation that torch computes.

    Cached, because MPI allows only a few of them.
    """
    combine = HALF_OPERATIONS[operation]

    def reduce_into(incoming: Any, accumulated: Any, _datatype: Any) -> None:
        if not len(incoming):
            return  # Open MPI's reduce_scatter has empty segments
        left, right = (
            torch.frombuffer(incoming, dtype=dtype),
            torch.frombuffer(accumulated, dtype=dtype),
        )
        combine(left, right, out=right)

    return load_mpi().Op.Create(reduce_into, commute=True)
