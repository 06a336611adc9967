"""The micro-benchmark of collectives and of messages from rank to rank, by message size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from measurement.communicator import Communicator
from measurement.errors import PlanError, unknown_name
from measurement.record import Case
from workloads.micro_benchmark import MicroBenchmark, Repetition
from workloads.operations import OPERATIONS, Idle, Operation

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def parse_size(value: object) -> int:
    """Read a number of bytes, with or without a unit: 65536, "64KiB", "64 KiB".

    Raises:
        ValueError: ``value`` is anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = re.fullmatch(r"\s*([0-9]+)\s*(B|KiB|MiB|GiB)?\s*", value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"not a size; give bytes, or a whole number with {', '.join(UNITS)}, such as '64 KiB'")
    return int(found[1]) * UNITS[found[2] or "B"]


def format_size(size: int) -> str:
    """Write a number of bytes in the largest unit that is exact: ``64KiB``, ``1000B``."""
    unit = max((name for name in UNITS if size % UNITS[name] == 0), key=UNITS.__getitem__)
    return f"{size // UNITS[unit]}{unit}"


Size = Annotated[int, BeforeValidator(parse_size), Field(ge=64, le=UNITS["GiB"])]


class CollectivesOptions(BaseModel):
    """What a plan may set under ``workload_options``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operations: tuple[str, ...] | None = Field(default=None, min_length=1)
    """None: all operations that the plan's number of ranks allows."""
    sizes: tuple[Size, ...] = Field(default=tuple(1 << bits for bits in range(10, 27, 2)), min_length=1)
    """Message sizes, in bytes or as "64 KiB". By default 1 KiB to 64 MiB in powers of 4."""
    dtype: Literal["float16", "float32", "float64", "int32", "int64"] = "float32"

    @field_validator("operations")
    @classmethod
    def _known(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if name not in OPERATIONS:
                raise ValueError(unknown_name("operation", name, OPERATIONS))
        return names


class Collectives(MicroBenchmark):
    """Every operation at every size. ``workloads.operations`` defines the operations and their bandwidths."""

    Options = CollectivesOptions
    options: CollectivesOptions

    def cases(self, world_size: int) -> Sequence[Case]:
        """List the cases, operation by operation and in order of size."""
        if world_size < 2:
            raise PlanError(f"workload 'collectives' needs 2 ranks or more, and world_size is {world_size}")
        sizes = sorted(set(self.options.sizes))
        return [self._case(one, size, world_size) for one in self._operations(world_size) for size in sizes]

    def _operations(self, world_size: int) -> list[type[Operation]]:
        """Return the operations that the plan names, else all that ``world_size`` allows."""
        asked = self.options.operations or [name for name, one in OPERATIONS.items() if world_size >= one.least_ranks]
        for name in asked:
            if world_size < OPERATIONS[name].least_ranks:
                raise PlanError(
                    f"operation '{name}' needs {OPERATIONS[name].least_ranks} ranks or more, and world_size is {world_size}; "
                    "start more ranks, or leave it out of operations"
                )
        return [OPERATIONS[name] for name in dict.fromkeys(asked)]

    def _case(self, one: type[Operation], size: int, world_size: int) -> Case:
        """Make a case, with its size rounded down to what the ranks can share evenly, as nccl-tests does."""
        ranks = len(one.group(world_size))
        unit = self._dtype.itemsize * (ranks if one.in_shares else 1)
        return Case(
            name=f"{one.name}/{format_size(size)}",
            operation=one.name,
            message_bytes=max(size // unit, 1) * unit,
            messages=one.messages,
            busbw_factor=one.busbw_factor(ranks),
        )

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.options.dtype)
        return dtype

    def groups(self, world_size: int) -> Sequence[Sequence[int]]:
        """Return the ranks of each operation that runs in a subgroup."""
        return [one.group(world_size) for one in self._operations(world_size) if "group" in one.needs]

    def unsupported_reason(self, case: Case, communicator: Communicator) -> str | None:
        reasons = (communicator.unsupported_reason(name) for name in OPERATIONS[case.operation].needs)
        return next((reason for reason in reasons if reason), None)

    def repetition(self, case: Case, communicator: Communicator, *, device: torch.device) -> Repetition:
        """Return the operation on the ranks that take part, and ``Idle`` on the others."""
        one = OPERATIONS[case.operation]
        ranks = one.group(len(communicator.ranks))
        if communicator.rank not in ranks:
            return Idle()
        among = communicator.group(ranks) if "group" in one.needs else communicator
        return one(among, elements=case.message_bytes // self._dtype.itemsize, dtype=self._dtype, device=device)
