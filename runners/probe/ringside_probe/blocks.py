"""One block of a script's steps: warm-up, then timed ones, then the reply."""

from __future__ import annotations

import math
import resource
import sys
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Callable, Sequence

from . import core_use, reports
from .compiling import uncompiled
from .recorder import Row

if TYPE_CHECKING:
    from collections import deque

    from .rank import Rank

HEADER = ("turn", "round", "block", "kind", "case", "steps", "repetitions")
GAP_TIMES = 10
GAP_S = 0.05


class Block:
    """Carries out one ``block`` command. A device is waited for where the timed steps begin and end, and never between."""

    def __init__(self, command: dict[str, Any], rank: Rank) -> None:
        self._command, self._rank, self._recorder = command, rank, rank.recorder
        self._first_step = rank.recorder.iterations
        self._received = perf_counter_ns()
        self._untimed_s = 0.0
        self._warm: tuple[list[Row], list[float]] = ([], [])
        self._then: Callable[[dict[str, Any]], None]

    def begin(self, then: Callable[[dict[str, Any]], None]) -> None:
        """Let the steps come; ``then`` gets the reply in the hook of the last one."""
        self._then = then
        warmup = int(self._command["warmup_steps"])
        if warmup:
            self._recorder.at_boundary = uncompiled(self._time)
            self._recorder.begin(warmup)
        else:
            self._time()

    def _time(self) -> None:
        recorder = self._recorder
        synchronize(self._rank.first.device)
        self._warm = (recorder.rows, losses_of(recorder))
        self._before = core_use.read(core_use.usable_cores())
        self._threads = core_use.read_threads()
        self._faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self._untimed_s = (perf_counter_ns() - self._received) / 1e9
        recorder.at_boundary = uncompiled(self._end)
        recorder.begin(int(self._command["steps"]))

    def _end(self) -> None:
        recorder = self._recorder
        began = recorder.start
        synchronize(self._rank.first.device)
        rows = recorder.rows
        rows[-1] = (rows[-1][0] + perf_counter_ns() - began, *rows[-1][1:])
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - self._faults
        threads = core_use.threads_between(self._threads, core_use.read_threads())
        use = core_use.between(self._before, core_use.read(core_use.usable_cores()))
        warm, warm_losses = self._warm
        phases = [phases_of(row) for row in rows]
        samples = self._rank.first.samples_of
        own = {
            "rank": self._rank.place.rank,
            "untimed_s": self._untimed_s + sum(row[4] for row in rows) / 1e9,
            "samples": [samples(row[5]) for row in rows],
            "phases_s": phases,
            "skipped_steps": len({number for number, row in enumerate(rows) if row[7]} | overflowed(recorder.overflows)),
            "start": self._rank.settings.start,
            "first_step": self._first_step,
            "losses": means(warm, warm_losses) + means(rows, losses_of(recorder)),
            "loss_samples": [samples(row[5]) for row in [*warm, *rows]],
            "gaps": gaps_in([row[1] for row in phases], self._rank.forwards_s),
            "core_use": use,
            "threads": threads,
            "page_faults": faults,
        }
        header = {name: self._command[name] for name in HEADER}
        block = {**header, "untimed_s": own["untimed_s"], "ranks": [own]}
        self._then({"kind": "block", "block": block, "drift": reports.drift(self._rank)})


def synchronize(device: Any) -> None:
    """Wait for what a device has to do; nothing on a CPU."""
    torch: Any = sys.modules["torch"]
    wait = getattr(getattr(torch, device.type, None), "synchronize", None) if device is not None and device.type != "cpu" else None
    if wait is not None:
        wait()


def phases_of(row: Row) -> list[float]:
    """Seconds of waiting for data, forward, backward and optimizer, which sum to the step's."""
    whole, wait, backward, optimizer, left_out = row[:5]
    forward = max(0, whole - left_out - wait - backward - optimizer)
    return [wait / 1e9, forward / 1e9, backward / 1e9, optimizer / 1e9]


def gaps_in(forward_s: Sequence[float], known_s: deque[float]) -> list[tuple[int, float]]:
    """Steps in which something else than a step took long, and its seconds.

    ``known_s``: the last steps of earlier blocks, by which one step is judged, too; these are added.
    """
    known_s.extend(forward_s)
    if not forward_s:
        return []
    usual = sorted(known_s)[len(known_s) // 2]
    return [(step, seconds) for step, seconds in enumerate(forward_s) if seconds > max(GAP_S, GAP_TIMES * usual)]


def overflowed(noted: Sequence[tuple[int, Any]]) -> set[int]:
    """Rows in which a fused optimizer was told of gradients that had overflowed, and changed nothing."""
    return {row for row, found in noted if row >= 0 and float(found)}


def losses_of(recorder: Any) -> list[float]:
    """The values of the losses that were kept; NaN where a script has changed one since."""
    return [
        value if loss._version == version else math.nan
        for value, loss, version in zip(values_of(recorder.losses), recorder.losses, recorder.versions)
    ]


def values_of(losses: Sequence[Any]) -> list[float]:
    """Numbers of one-element tensors; those of a device are fetched at once."""
    if not losses:
        return []
    torch: Any = sys.modules["torch"]
    try:
        with torch.no_grad():
            values: list[float] = torch.stack([loss.reshape(()).double() for loss in losses]).tolist()
            return values
    except (RuntimeError, TypeError):  # on several devices, or overwritten by a CUDA graph
        return [value_of(loss) for loss in losses]


def value_of(loss: Any) -> float:
    """The number in a one-element tensor; NaN where it is gone."""
    try:
        return float(loss)
    except (RuntimeError, TypeError, ValueError):
        return math.nan


def means(rows: Sequence[Row], losses: Sequence[float]) -> list[float]:
    """Mean loss of each iteration; NaN where there was none."""
    found, begin = [], 0
    for row in rows:
        own = losses[begin : begin + row[6]]
        found.append(sum(own) / len(own) if own else math.nan)
        begin += row[6]
    return found
