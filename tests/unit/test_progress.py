"""The time left that progress shows: it falls within a launch, and within a budget. Event files of
a launch that did not train to the end, read back by TensorBoard's own reader."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from measurement.records.block import BlockRecord, RankSteps
from runners import progress
from runners.progress import LINE_EVERY_S, LaunchProgress, TensorboardLog


@pytest.fixture
def clock(monkeypatch):
    """Seconds that only the test lets pass."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def lefts(shown):
    """The times left that were shown, in seconds."""
    matches = re.findall(r"about (\d+) min (\d+) s left", shown.getvalue())
    return [60 * int(minutes) + int(seconds) for minutes, seconds in matches]


@pytest.mark.parametrize("budget_s", [None, 300.0])
def test_the_time_left_falls(clock, budget_s):
    shown = io.StringIO()
    bar = LaunchProgress(seconds_per_launch=60.0, console=Console(file=shown, width=200))
    bar.expect(3)
    if budget_s:
        bar.expect_end(budget_s)
    for _ in range(3):
        bar.start()
        clock[0] += 25.0
        for measured_s in (15.0, 30.0, 45.0, 59.0):
            clock[0] += LINE_EVERY_S + 1
            bar.tick(measured_s)
        bar.launch_done()
    seconds = lefts(shown)
    assert len(seconds) >= 10 and seconds == sorted(seconds, reverse=True)
    assert seconds[0] <= (budget_s or 3 * 90.0)


def block(turn, number, kind, *, step_s):
    """Two ranks, two steps; the second rank is slower by a tenth and waits for data twice as
    long."""

    def steps_of(rank, seconds, waiting):
        phases = [waiting * seconds, 0.0, (1 - waiting) * seconds, 0.0, 0.0]
        return RankSteps(rank=rank, untimed_s=0.0, samples=[8, 8], phases_s=[phases] * 2)

    ranks = [steps_of(0, step_s, 0.2), steps_of(1, 1.1 * step_s, 0.4)]
    return BlockRecord(turn=turn, round=number, block=turn, kind=kind, steps=2, ranks=ranks)


def scalars(folder):
    """By tag: steps and values."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_rounds_tell_throughput_step_time_data_wait_and_exposed_communication(tmp_path):
    """The wait is that of the rank that waits most."""
    log = TensorboardLog(tmp_path, sample_unit="images")
    first, second = block(0, 0, "sync", step_s=0.1), block(1, 1, "sync", step_s=0.2)
    log.rounds([first, second, block(2, 1, "local", step_s=0.1)])
    log.close()
    assert scalars(tmp_path) == {
        "throughput/images_per_s": [(1, pytest.approx(32 / 0.22)), (2, pytest.approx(32 / 0.44))],
        "step_time/median_s": [(1, pytest.approx(0.11)), (2, pytest.approx(0.22))],
        "data_wait/share": [(1, pytest.approx(0.4)), (2, pytest.approx(0.4))],
        "exposed_exchange/s": [(2, pytest.approx(0.11))],
    }
