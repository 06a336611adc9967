"""One rank of a micro-benchmark: times repeated operations instead of training steps, and checks
their results.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from backends import Backend
from measurement.agent.ringside_agent.place import World
from measurement.records.block import RankSteps
from measurement.step_timer import StepTimer
from runners.protocol.messages import CheckReport
from runners.rank.trainer import BACKWARD, synchronize_ranks
from workloads import MicroBenchmark
from workloads.micro_benchmark import Repetition


@dataclass(kw_only=True, eq=False)
class MicroBenchmarkRunner:
    """Repeats one rank's operations. Holds the tensors of one case at a time."""

    workload: MicroBenchmark
    backend: Backend
    world: World
    device: torch.device
    _made: Repetition | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.cases = {case.name: case for case in self.workload.cases(self.world.world_size)}
        self.communicator = self.backend.communicator()

    def describe(self) -> dict[str, Any]:
        """Describe this for the rank's report: there is no model and no batch."""
        return {"seed": self.workload.seed, "local_batch_size": 0, "micro_steps": 1}

    def drift(self) -> None:
        """Nothing: there are no parameters that ranks must have in common."""

    def run_gate(self) -> CheckReport:
        """Run every case once and check its result. Collective; releases all tensors."""
        reasons = {
            name: self.workload.unsupported_reason(case, self.communicator)
            for name, case in self.cases.items()
        }
        offered = [name for name, reason in reasons.items() if reason is None]
        results = [self.build(name) for name in offered]
        self.release()
        return CheckReport(
            failures=[failure for failure in results if failure],
            not_offered={name: reason for name, reason in reasons.items() if reason is not None},
        )

    def build(self, name: str) -> str | None:
        """Make new tensors for a case and run it once; returns the error of this rank's result, if
        there is one. Collective.
        """
        self.release()
        made = self.workload.repetition(self.cases[name], self.communicator, device=self.device)
        made.fill()
        made.run()
        wrong = made.check()
        made.clear()
        self._made = made
        return f"{name} gives {wrong}" if wrong else None

    def release(self) -> None:
        """Drop the tensors and collect garbage now, so that it is not collected inside a step."""
        self._made = None
        gc.collect()

    def run_block(self, *, case: str, steps: int, warmup_steps: int, repetitions: int) -> RankSteps:
        """Make and check new tensors, warm up, wait for all ranks, time ``steps`` steps of
        ``repetitions``. Collective.
        """
        began = time.perf_counter()
        wrong = self.build(case)
        assert self._made is not None
        run, timer = self._made.run, StepTimer(self.device)
        for _ in range(warmup_steps * repetitions):
            run()
        synchronize_ranks(self.backend, self.device)
        self._made.settle()
        untimed_s = time.perf_counter() - began
        timer.start()
        for _ in range(steps):
            for _ in range(repetitions):
                run()
            timer.mark(BACKWARD)
            timer.end_step()
        # rank 0 counts the size, so that samples of all ranks over time are the algbw
        timed = self.cases[case]
        samples = [timed.size * timed.messages * repetitions if self.world.rank == 0 else 0] * steps
        phases_s = timer.read()
        return RankSteps(
            rank=self.world.rank,
            untimed_s=untimed_s,
            samples=samples,
            phases_s=phases_s,
            wrong=wrong,
        )
