"""Ratios that move with the machine's speed: how often one is said to, and what the report says of
it."""

from __future__ import annotations

import numpy as np
import pytest

from reports.statistics.intervals import ratio_by_speed
from reports.wording.first_screen import first_screen
from tests.kit.results_factory import Truth, concluded


def drawn(random, launches, *, moves, varies=0.09, noise=0.035):
    """Log-ratios of a candidate and log speeds of the control, which share the machine's speed and
    no noise."""
    machine, levels = (
        varies * random.standard_normal(launches),
        noise * random.standard_normal((3, launches)),
    )
    return moves * machine + levels[0] - levels[1], machine + levels[2]


@pytest.mark.parametrize("varies", [0.0, 0.09])
def test_a_ratio_that_does_not_move_is_seldom_said_to(varies):
    """A thousand draws at 95% have a standard error of 0.7%. Noise that both share, as of the
    baseline, would make it 100%."""
    random = np.random.default_rng(1)
    false = sum(
        ratio_by_speed(*drawn(random, 8, moves=0.0, varies=varies), confidence=0.95) is not None
        for _ in range(1000)
    )
    assert 0.03 <= false / 1000 <= 0.07


def test_few_launches_equal_ones_and_arms_without_a_level_say_nothing():
    speeds = np.arange(6.0)
    assert ratio_by_speed(speeds[:4], speeds[:4], confidence=0.95) is None
    assert ratio_by_speed(np.zeros(6), speeds, confidence=0.95) is None
    assert ratio_by_speed(speeds, np.zeros(6), confidence=0.95) is None
    assert ratio_by_speed(np.where(speeds < 2, np.nan, speeds), speeds, confidence=0.95) is None


@pytest.mark.slow  # results of whole comparisons are composed
@pytest.mark.parametrize(("ratios", "is_said"), [((1.05, 0.9), True), ((0.97, 0.97), False)])
def test_the_report_says_which_ratio_moves(tmp_path, ratios, is_said):
    """As on a shared host: in some launches the machine is faster by a quarter, and the candidate
    gains less from it."""
    truths = [
        Truth(
            step_s=step_s,
            ratios={"horovod-gloo": ratio, "horovod-mpi": 0.9},
            noise=0.01,
            launch_noise=0.002,
            drift=0.0,
        )
        for step_s, ratio in zip((0.025, 0.02), ratios, strict=True)
    ]
    comparison = concluded(
        tmp_path, truth=truths[0], truths=dict.fromkeys((1, 4, 5), truths[1]), launches=8
    )
    lines = [line for line in comparison.warnings if "depends on the machine's speed" in line]
    assert [line.split(" depends")[0] for line in lines] == ["The ratio of horovod-gloo"] * is_said
    assert (comparison.result("horovod-gloo").by_speed is not None) == is_said
    assert comparison.result("horovod-mpi").by_speed is None
    assert first_screen(comparison).marks[1].word == ("unsteady" if is_said else "quiet")
    if is_said:
        by_speed = comparison.result("horovod-gloo").by_speed
        assert (by_speed.slower, by_speed.faster) == pytest.approx((1.05, 0.938), rel=0.02), (
            "of four faster launches one is a slow one"
        )
        assert by_speed.speeds == pytest.approx(1.25, rel=0.03)
