"""Ratios that move with the machine's speed: how often one is said to, and what the report says of
it."""

from __future__ import annotations

import numpy as np
import pytest

from reports.statistics.intervals import ratio_by_speed
from reports.wording.first_screen import first_screen
from tests.kit.results_factory import Truth, concluded


def drawn(random, launches, *, moves, varies):
    """Log-ratios of a candidate and log speeds of the control, which share the machine's speed and
    no noise."""
    machine = varies * random.standard_normal(launches)
    candidate, baseline, control = 0.035 * random.standard_normal((3, launches))
    return moves * machine + candidate - baseline, machine + control


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


@pytest.mark.parametrize(
    ("ratios", "speeds"),
    [
        (np.arange(4.0), np.arange(4.0)),
        (np.arange(6.0), np.zeros(6)),
    ],
    ids=["few launches", "equal speeds"],
)
def test_what_tells_too_little_says_nothing(ratios, speeds):
    assert ratio_by_speed(ratios, speeds, confidence=0.95) is None


@pytest.mark.slow  # results of whole comparisons are composed
def test_the_report_says_which_ratio_moves(tmp_path):
    """As on a shared host: in some launches the machine is faster by a quarter, and the candidate
    gains less from it."""

    def of_machine(step_s, ratio):
        ratios = {"horovod-gloo": ratio, "horovod-mpi": 0.9}
        return Truth(step_s=step_s, ratios=ratios, noise=0.01, launch_noise=0.002, drift=0.0)

    fast = dict.fromkeys((1, 4, 5), of_machine(0.02, 0.9))
    comparison = concluded(tmp_path, truth=of_machine(0.025, 1.05), truths=fast, launches=8)
    (line,) = (line for line in comparison.warnings if "depends on the machine's speed" in line)
    assert line.startswith("The ratio of horovod-gloo ")
    assert comparison.result("horovod-mpi").by_speed is None
    assert first_screen(comparison).marks[1].word == "unsteady"
    by_speed = comparison.result("horovod-gloo").by_speed
    assert (by_speed.slower, by_speed.faster) == pytest.approx((1.05, 0.938), rel=0.02), (
        "of four faster launches one is a slow one"
    )
    assert by_speed.speeds == pytest.approx(1.25, rel=0.03)
