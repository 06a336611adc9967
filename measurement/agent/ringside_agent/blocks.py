"""One block of a script's steps: warm-up, then timed ones, then the reply."""

from __future__ import annotations

import resource
from collections import deque
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Callable, Sequence

from .machine import core_use
from .reading import reports
from .reading.script import Script
from .reading.values import losses_of, means, synchronize
from .recorder import Recorder, Row
from .reporting import uncompiled

GAP_TIMES = 10
GAP_S = 0.05


@dataclass
class Block:
    """Carries out one ``block`` command.

    A device is waited for where the timed steps begin and end, and never between.
    """

    command: dict[str, Any]
    recorder: Recorder
    script: Script
    forwards_s: deque[float]
    """Forward phases of the last timed steps, in seconds; this block's are added."""
    rank_fields: dict[str, Any]
    """More fields of the rank's part of the reply."""

    def __post_init__(self) -> None:
        self._first_step = self.recorder.iterations
        self._received = perf_counter_ns()
        self._untimed_s = 0.0
        self._warm: tuple[list[Row], list[float]] = ([], [])
        self._then: Callable[[dict[str, Any]], None]

    def begin(self, then: Callable[[dict[str, Any]], None]) -> None:
        """Start counting steps; ``then`` gets the reply in the hook of the last one."""
        self._then = then
        warmup = int(self.command["warmup_steps"])
        if warmup:
            self.recorder.at_boundary = uncompiled(self._time)
            self.recorder.begin(warmup)
        else:
            self._time()

    def _time(self) -> None:
        recorder = self.recorder
        synchronize(self.script.device)
        self._warm = (recorder.rows, losses_of(recorder))
        self._before = core_use.read(core_use.usable_cores())
        self._threads = core_use.read_threads()
        self._faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self._untimed_s = (perf_counter_ns() - self._received) / 1e9
        recorder.at_boundary = uncompiled(self._end)
        recorder.begin(int(self.command["steps"]))

    def _end(self) -> None:
        recorder = self.recorder
        began = recorder.start
        synchronize(self.script.device)
        rows = recorder.rows
        rows[-1] = (rows[-1][0] + perf_counter_ns() - began, *rows[-1][1:])
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - self._faults
        threads = core_use.threads_between(self._threads, core_use.read_threads())
        use = core_use.between(self._before, core_use.read(core_use.usable_cores()))
        warm, warm_losses = self._warm
        phases = [phases_of(row) for row in rows]
        samples = self.script.samples_of
        skipped = {number for number, row in enumerate(rows) if row[7]}
        # rows in which a fused optimizer found that gradients had overflowed, and changed nothing
        skipped |= {row for row, overflow in recorder.overflows if row >= 0 and float(overflow)}
        steps = {
            **self.rank_fields,
            "untimed_s": self._untimed_s + sum(row[4] for row in rows) / 1e9,
            "samples": [samples(row[5]) for row in rows],
            "phases_s": phases,
            "skipped_steps": len(skipped),
            "first_step": self._first_step,
            "losses": means(warm, warm_losses) + means(rows, losses_of(recorder)),
            "loss_samples": [samples(row[5]) for row in [*warm, *rows]],
            "gaps": gaps_in([row[1] for row in phases], self.forwards_s),
            "core_use": use,
            "threads": threads,
            "page_faults": faults,
        }
        self._then({"kind": "block", "steps": steps, "drift": reports.drift(self.script)})


def phases_of(row: Row) -> list[float]:
    """Seconds of waiting for data, forward, backward, optimizer and waiting for exchange, which sum
    to the step's.
    """
    whole, wait, backward, optimizer, left_out = row[:5]
    exchange = row[8]
    forward = max(0, whole - left_out - wait - backward - optimizer - exchange)
    return [time_ns / 1e9 for time_ns in (wait, forward, backward, optimizer, exchange)]


def gaps_in(forward_s: Sequence[float], known_s: deque[float]) -> list[tuple[int, float]]:
    """Steps that contain a long pause, such as an evaluation, and its seconds.

    ``known_s``: forward phases of earlier blocks, so that a block of one step can be judged. This
    block's are added.
    """
    known_s.extend(forward_s)
    if not forward_s:
        return []
    usual = sorted(known_s)[len(known_s) // 2]
    return [
        (step, seconds)
        for step, seconds in enumerate(forward_s)
        if seconds > max(GAP_S, GAP_TIMES * usual)
    ]
