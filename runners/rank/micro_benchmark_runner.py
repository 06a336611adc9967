"""One rank of a micro-benchmark: operations repeated under the clock in place of training steps, and their results checked."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Sequence
from typing import Any

import torch

from backends import Backend
from measurement.record import Case, ParityResult
from measurement.step_timer import StepTimer
from measurement.world import World
from runners.job import CheckReport
from runners.trainer import BACKWARD, TimedBlock, allocate_at_random, meet
from workloads import MicroBenchmark
from workloads.micro_benchmark import Repetition

MAX_FAILURES = 8


class Repeater:
    """One rank's operations; the tensors of one case at a time, made anew as often as asked."""

    def __init__(self, *, benchmark: MicroBenchmark, backend: Backend, world: World, device: torch.device) -> None:
        self.benchmark = benchmark
        self.backend = backend
        self.world = world
        self.device = device
        self.cases = {case.name: case for case in benchmark.cases(world.world_size)}
        self.communicator = backend.communicator()
        self._case: str | None = None
        self._made: Repetition | None = None
        self._held: list[torch.Tensor] = []

    def describe(self) -> dict[str, Any]:
        """For the rank's report: there is no model and no batch."""
        return {"seed": self.benchmark.seed, "local_batch_size": 0, "micro_steps": 1}

    def run_gate(self) -> CheckReport:
        """Run every case once and check its result. Collective; leaves nothing built."""
        reasons = {name: self.benchmark.why_not(case, self.communicator) for name, case in self.cases.items()}
        offered = [name for name, reason in reasons.items() if reason is None]
        found = [self.build(name) for name in offered]
        self.release()
        return CheckReport(
            cases=len(offered),
            failures=[failure for failure in found if failure],
            not_offered={name: reason for name, reason in reasons.items() if reason is not None},
        )

    def build(self, name: str, *, layout: int | None = None) -> str | None:
        """Make a case's tensors anew and run it once. Collective.

        Args:
            name: of the case.
            layout: seed of the random allocations that go before, so that memory lies elsewhere each time.

        Returns:
            What was wrong with the result on this rank.
        """
        self.release()
        if layout is not None:
            self._held = allocate_at_random(random.Random(layout * 65_537 + self.world.rank), self.device)
        made = self.benchmark.repetition(self.cases[name], self.communicator, device=self.device)
        made.fill()
        made.run()
        wrong = made.check()
        made.clear()
        self._case, self._made = name, made
        return f"{name} gives {wrong}" if wrong else None

    def release(self) -> None:
        """Let go of the tensors, and collect now what would else be collected inside a step."""
        self._case = self._made = None
        self._held = []
        gc.collect()

    def run_block(
        self, *, case: str, steps: int, warmup_steps: int, repetitions: int, rebuild: bool, layout: int | None = None
    ) -> TimedBlock:
        """Make the tensors if asked, and check; warm up, meet, and time ``steps`` steps of ``repetitions`` each. Collective."""
        began = time.perf_counter()
        wrong = self.build(case, layout=layout) if rebuild or case != self._case else None
        assert self._made is not None
        run, timer = self._made.run, StepTimer(self.device)
        for _ in range(warmup_steps * repetitions):
            run()
        meet(self.backend, self.device)
        untimed_s = time.perf_counter() - began
        timer.start()
        for _ in range(steps):
            for _ in range(repetitions):
                run()
            timer.mark(BACKWARD)
            timer.end_step()
        samples = [self._samples(self.cases[case]) * repetitions] * steps
        return TimedBlock(phases_s=timer.read(), samples=samples, untimed_s=untimed_s, wrong=wrong)

    def _samples(self, case: Case) -> int:
        """Bytes of a repetition's messages, which are counted once: samples of all ranks over time are then the algbw."""
        return case.message_bytes * case.messages if self.world.rank == 0 else 0


def judge_checks(reports: Sequence[CheckReport]) -> ParityResult:
    """What all ranks' checks amount to; reports by rank."""
    failures = [f"rank {rank}: {failure}" for rank, report in enumerate(reports) for failure in report.failures]
    more = len(failures) - MAX_FAILURES
    return ParityResult(
        passed=not failures,
        failures=failures[:MAX_FAILURES] + ([f"and {more} more"] if more > 0 else []),
        notes=[f"{reports[0].cases} cells ran once and were checked, and again before each block"],
    )
