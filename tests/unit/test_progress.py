"""The time left that progress shows: it falls within a launch, and within a budget."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from runners import progress
from runners.progress import LINE_EVERY_S, LaunchProgress


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
