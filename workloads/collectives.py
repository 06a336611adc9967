"""The micro-benchmark of collectives and of messages from rank to rank, by message size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, ByteSize, Field, field_validator

from measurement.communicator import Communicator, ReduceOp
from measurement.errors import PlanError, unknown_name
from measurement.plans.settings import PlanOptions
from measurement.records.record import Case
from workloads.micro_benchmark import MicroBenchmark, Repetition
from workloads.operations import BY_DEFAULT, OPERATIONS, Idle, Operation, OperationRun

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def format_size(size: int) -> str:
    """Write a number of bytes in the largest unit that is exact: ``64KiB``, ``1000B``."""
    unit = max((name for name in UNITS if size % UNITS[name] == 0), key=UNITS.__getitem__)
    return f"{size // UNITS[unit]}{unit}"


def _listed(value: object) -> object:
    """A single name is a list of one."""
    return (value,) if isinstance(value, str) else value


DType = Literal["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64"]
Size = Annotated[ByteSize, Field(ge=64, le=UNITS["GiB"])]


class CollectivesOptions(PlanOptions):
    """What a plan may set under ``workload_options``."""

    operations: tuple[str, ...] | Literal["all"] | None = Field(default=None, min_length=1)
    """Operations to time, by name. None: the common ones. ``all``: all that the number of ranks
    allows."""
    sizes: tuple[Size, ...] = Field(
        default=tuple(ByteSize(1 << bits) for bits in range(10, 27, 2)), min_length=1
    )
    """Message sizes, in bytes or as "64 KiB". Left out: from 1 KiB to 64 MiB, each four times the
    one before."""
    dtype: Annotated[tuple[DType, ...], BeforeValidator(_listed)] = Field(
        default=("float32",), min_length=1
    )
    """One type of elements, or several; each has cases of its own."""
    op: Annotated[tuple[ReduceOp, ...], BeforeValidator(_listed)] = Field(
        default=("sum",), min_length=1
    )
    """What reductions combine by: one, or several."""
    root: int = Field(default=0, ge=0)
    """Rank that sends to all, or receives from all, in operations that have such a rank."""

    @field_validator("operations")
    @classmethod
    def _known(cls, names: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        for name in names if isinstance(names, tuple) else ():
            if name not in OPERATIONS:
                raise ValueError(unknown_name("operation", name, OPERATIONS))
        return names


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An operation with its reduction and its dtype."""

    name: str
    operation: Operation
    dtype: DType
    op: ReduceOp

    @property
    def label(self) -> str:
        """``all_reduce``, and what differs from the defaults: ``all_reduce max bfloat16``."""
        parts = [
            self.name,
            *([self.op] if self.operation.reduces and self.op != "sum" else []),
            *([self.dtype] if self.dtype != "float32" else []),
        ]
        return " ".join(parts)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The tensors' dtype in PyTorch."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


class Collectives(MicroBenchmark):
    """Every operation at every size.

    ``workloads.operations`` defines the operations and their bandwidths.
    """

    Options = CollectivesOptions
    options: CollectivesOptions

    _variants: Mapping[str, Variant] = {}
    """By the operation that a case names; filled by ``cases``."""

    def cases(self, world_size: int) -> Sequence[Case]:
        """List the cases, operation by operation and in order of size."""
        if world_size < 2:
            raise PlanError(
                f"workload 'collectives' needs 2 ranks or more, and world_size is {world_size}"
            )
        variants = [
            Variant(name=name, operation=OPERATIONS[name], dtype=dtype, op=op)
            for name in self._operations(world_size)
            for dtype in self.options.dtype
            for op in (self.options.op if OPERATIONS[name].reduces else ("sum",))
        ]
        self._variants = {variant.label: variant for variant in variants}
        sizes = sorted(set(self.options.sizes))
        return [
            self._case(variant, size, world_size)
            for variant in self._variants.values()
            for size in sizes
        ]

    def _operations(self, world_size: int) -> list[str]:
        """Return the operations that the plan names, else those of its set that ``world_size``
        allows.
        """
        names = self.options.operations
        if names is None or names == "all":
            choice = OPERATIONS if names == "all" else BY_DEFAULT
            names = tuple(name for name in choice if world_size >= OPERATIONS[name].least_ranks)
        for name in names:
            if world_size < OPERATIONS[name].least_ranks:
                raise PlanError(
                    f"operation '{name}' needs {OPERATIONS[name].least_ranks} ranks or more, and"
                    f" world_size is {world_size}; start more ranks, or leave it out of operations"
                )
            if OPERATIONS[name].has_root and self.options.root >= world_size:
                raise PlanError(
                    f"root {self.options.root} is not a rank of world_size {world_size}; give 0 to"
                    f" {world_size - 1}"
                )
        return list(dict.fromkeys(names))

    def _case(self, variant: Variant, size: int, world_size: int) -> Case:
        """Make a case, with its size rounded down to what the ranks can share evenly, as nccl-tests
        does.
        """
        operation = variant.operation
        ranks = len(operation.ranks(world_size))
        unit = variant.torch_dtype.itemsize * (ranks if operation.in_shares else 1)
        return Case(
            name=f"{variant.label}/{format_size(size)}",
            operation=variant.label,
            message_bytes=max(size // unit, 1) * unit,
            messages=operation.messages,
            busbw_factor=operation.busbw(ranks),
        )

    def groups(self, world_size: int) -> Sequence[Sequence[int]]:
        """Return the ranks of each operation that runs in a subgroup."""
        operations = [OPERATIONS[name] for name in self._operations(world_size)]
        return list(
            dict.fromkeys(
                tuple(operation.ranks(world_size))
                for operation in operations
                if "group" in operation.methods
            )
        )

    def unsupported_reason(self, case: Case, communicator: Communicator) -> str | None:
        variant = self._variants[case.operation]
        op = variant.op if variant.operation.reduces else None
        if op == "avg" and not variant.torch_dtype.is_floating_point:
            return "the mean of whole numbers need not be one"
        reasons = (
            communicator.unsupported_reason(name, op=op, dtype=variant.dtype)
            for name in variant.operation.methods
        )
        return next((reason for reason in reasons if reason), None)

    def repetition(
        self, case: Case, communicator: Communicator, *, device: torch.device
    ) -> Repetition:
        """Return the operation on the ranks that take part, and ``Idle`` on the others."""
        variant = self._variants[case.operation]
        operation = variant.operation
        ranks = operation.ranks(len(communicator.ranks))
        if communicator.rank not in ranks:
            return Idle()
        return OperationRun(
            operation,
            communicator.group(ranks) if "group" in operation.methods else communicator,
            ranks,
            elements=case.message_bytes // variant.torch_dtype.itemsize,
            like=torch.empty(0, dtype=variant.torch_dtype, device=device),
            op=variant.op,
            root=self.options.root if operation.has_root else 0,
        )
