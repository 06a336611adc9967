"""The micro-benchmark of a workload's loader alone: how many samples a second it delivers, by
number of loader workers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from measurement.communicator import Communicator
from measurement.errors import PlanError
from measurement.plans.settings import PlanOptions, checked
from measurement.records.record import Case
from workloads import Workload, workload_class
from workloads.micro_benchmark import MicroBenchmark, Repetition
from workloads.optimizers import seed_generators


class LoadersOptions(PlanOptions):
    """What a plan may set under ``workload_options``; other options belong to the workload that is
    read, such as ``data_dir``.
    """

    model_config = ConfigDict(extra="allow")

    workload: str = "digits"
    """Workload whose batches are loaded. Its own options are beside this one."""
    workers: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0, 1, 2, 4), min_length=1)
    """Loader processes per rank, such as [0, 2, 8]: a case for each number."""


class Loaders(MicroBenchmark):
    """Loads batches as training does, and drops them.

    All ranks load at the same time, each its own shard.
    """

    Options = LoadersOptions
    options: LoadersOptions
    sample_unit = "samples"

    def __init__(
        self, *, local_batch_size: int, seed: int, options: BaseModel | None = None
    ) -> None:
        super().__init__(local_batch_size=local_batch_size, seed=seed, options=options)
        name = self.options.workload
        workload_cls, implied = workload_class(name)
        if (
            not issubclass(workload_cls, Workload)
            or "loader_workers" not in workload_cls.Options.model_fields
        ):
            raise PlanError(
                f"workload '{name}' has no option loader_workers, so there is no loader to measure;"
                " name one that reads data, such as 'mnist' or 'imagenet', as"
                " workload_options.workload"
            )
        read_options = implied | (self.options.model_extra or {})
        self._operation = f"{name}, batches of {local_batch_size}"
        self._workers = {
            f"{self._operation}/{count} worker{'' if count == 1 else 's'}": count
            for count in sorted(set(self.options.workers))
        }
        self._class = workload_cls
        self._read_options = checked(
            workload_cls.Options, read_options, source=f"workload_options of '{name}'"
        )
        self._first: tuple[Workload, int] | None = None

    def cases(self, world_size: int) -> Sequence[Case]:
        """List the numbers of workers, the fewest first."""
        return [
            Case(
                name=name,
                operation=self._operation,
                samples=self.local_batch_size * world_size,
                messages=max(workers, 1),
            )
            for name, workers in self._workers.items()
        ]

    def repetition(
        self, case: Case, communicator: Communicator, *, device: torch.device
    ) -> Repetition:
        workload, samples = self._read(communicator, device)
        worker_workload = copy.copy(workload)
        worker_workload.options = self._read_options.model_copy(
            update={"loader_workers": self._workers[case.name]}
        )
        return LoaderRound(
            _endless(worker_workload, communicator, device),
            workload=worker_workload,
            batches_each=case.messages,
            samples=samples,
        )

    def _read(self, communicator: Communicator, device: torch.device) -> tuple[Workload, int]:
        """The workload, whose data are read once for all cases, and the samples in a batch."""
        if self._first is None:
            seed_generators(self.seed)
            workload = self._class(
                local_batch_size=self.local_batch_size, seed=self.seed, options=self._read_options
            )
            batch = next(_endless(workload, communicator, device))
            self._first = workload, workload.count_samples(batch)
        return self._first


class LoaderRound(Repetition):
    """A batch from each loader worker; where there are none, a batch.

    Workers finish their batches at about the same time. A whole round has the wait, and the batches
    that are then ready.
    """

    def __init__(
        self, batches: Iterator[Any], *, workload: Workload, batches_each: int, samples: int
    ) -> None:
        self._batches, self._workload = batches, workload
        self._batches_each, self._samples = batches_each, samples
        self._last: Any = None

    def run(self) -> None:
        for _ in range(self._batches_each):
            self._last = next(self._batches)

    def check(self) -> str | None:
        num_samples = self._workload.count_samples(self._last)
        if num_samples == self._samples:
            return None
        return f"{num_samples} {self._workload.sample_unit} in a batch of {self._samples}"

    def settle(self) -> None:
        """Consume the batches that were loaded ahead."""
        for _ in range(self._workload.prefetched_batches):
            next(self._batches)


def _endless(workload: Workload, communicator: Communicator, device: torch.device) -> Iterator[Any]:
    while True:
        yield from workload.batches(
            rank=communicator.rank, world_size=len(communicator.ranks), device=device
        )
