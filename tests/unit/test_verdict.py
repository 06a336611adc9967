"""The truth table of verdicts, the control's veto, and how much longer to measure."""

from __future__ import annotations

import math
from typing import get_args

import pytest
from scipy import stats

from reports.conclusions.ratios import decide, farthest
from reports.parts_schema import ChangeWithheld, Estimate, NoDifference
from reports.reasons import REASONS, Caution
from reports.schema import Withheld
from reports.statistics.budget import to_decide
from reports.statistics.student import RatioEstimate


def interval(low, estimate, high):
    return Estimate(value=estimate, ci_low=low, ci_high=high)


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ((1.02, 1.05, 1.08), "faster"),
        ((0.92, 0.95, 0.98), "slower"),
        ((0.99, 1.0, 1.01), "equivalent"),
        ((1.002, 1.004, 1.006), "equivalent"),
        ((1.002, 1.008, 1.014), "undecided"),
        ((0.98, 1.03, 1.08), "undecided"),
        ((0.985, 1.0, 1.005), "undecided"),
        ((1.0, 1.02, 1.04), "undecided"),
        ((None, 1.2, None), "undecided"),
    ],
)
def test_the_verdict_follows_from_the_interval(bounds, verdict):
    assert decide(interval(*bounds), threshold=0.01) == verdict


def ratio(low, estimate, high, *, narrower):
    """A ratio whose one-sided bounds are those of ``narrower``."""
    bounds = {
        "ci_low": low,
        "ci_high": high,
        "equivalence_low": narrower[0],
        "equivalence_high": narrower[1],
    }
    return RatioEstimate(
        value=estimate, run_low=None, run_high=None, launches=5, pairs=100, caution=None, **bounds
    )


@pytest.mark.parametrize(
    ("estimate", "verdict"),
    [
        (ratio(0.985, 1.0, 1.015, narrower=(0.991, 1.009)), "equivalent"),
        (ratio(0.985, 1.0, 1.015, narrower=(0.989, 1.009)), "undecided"),
        (ratio(0.999, 1.02, 1.041, narrower=(1.001, 1.039)), "undecided"),
    ],
)
def test_equivalence_takes_the_one_sided_bounds_and_faster_the_interval(estimate, verdict):
    assert decide(estimate, threshold=0.01) == verdict
    scaled = estimate.times(1.0)
    assert decide(scaled, threshold=0.01) == verdict


def test_to_become_equivalent_the_one_sided_bounds_must_shrink():
    estimate = ratio(
        math.exp(-0.04), 1.0, math.exp(0.04), narrower=(math.exp(-0.02), math.exp(0.02))
    )
    assert to_decide(estimate, threshold=0.01, measured=1.0, launches=1000).value == pytest.approx(
        3.0, rel=0.01
    )


def test_without_timing_it_is_undecided():
    assert decide(None, threshold=0.01) == "undecided"


@pytest.mark.parametrize(
    ("control", "bounds", "verdict"),
    [
        ((0.99, 1.0, 1.01), (1.02, 1.03, 1.04), "faster"),
        ((1.02, 1.03, 1.04), (1.02, 1.04, 1.06), "undecided"),
        ((1.02, 1.03, 1.04), (1.06, 1.08, 1.10), "faster"),
        ((1.02, 1.03, 1.04), (0.90, 0.92, 0.94), "slower"),
        ((1.002, 1.010, 1.020), (0.995, 1.0, 1.005), "undecided"),
        ((1.001, 1.002, 1.003), (0.995, 1.0, 1.005), "equivalent"),
        ((None, 1.5, None), (1.02, 1.03, 1.04), "faster"),
    ],
)
def test_a_control_that_is_off_vetoes_smaller_claims(control, bounds, verdict):
    assert decide(interval(*bounds), threshold=0.01, control=interval(*control)) == verdict


def test_the_deviation_is_the_farther_bound():
    assert farthest(interval(1.02, 1.03, 1.04)) == pytest.approx(math.log(1.04))
    assert farthest(interval(0.95, 0.96, 0.97)) == pytest.approx(-math.log(0.95))
    assert farthest(interval(None, 1.2, None)) == farthest(None) == 0.0


def test_half_the_width_takes_four_times_as_long_and_less_after_few_launches():
    half = math.log(1.03) * 2
    wide = interval(1.03 * math.exp(-half), 1.03, 1.03 * math.exp(half))
    many = to_decide(wide, threshold=0.01, measured=2.0, launches=400)
    assert (many.value, many.low < many.value < many.high) == (pytest.approx(6.0, rel=0.02), True)
    few = to_decide(wide, threshold=0.01, measured=5.0, launches=5)
    number, t_of_five = 5.0 + few.value, stats.t.ppf(0.975, 4) / math.sqrt(5)
    assert stats.t.ppf(0.975, number - 1) / math.sqrt(number) == pytest.approx(t_of_five / 2)


def test_few_launches_hardly_tell_how_much_longer_and_two_do_not():
    wide = interval(0.9, 1.02, 1.15)
    two, few, many = (
        to_decide(wide, threshold=0.01, measured=10.0, launches=launches) for launches in (2, 3, 20)
    )
    assert two is None
    assert few.high is None or few.high > 5 * few.value
    assert many.high < 2 * many.value


@pytest.mark.parametrize(
    ("estimate", "minutes"),
    [
        (None, 5.0),
        (interval(None, 1.1, None), 5.0),
        (interval(0.9, 1.0099999, 1.1), 5.0),
        (interval(0.9, 1.05, 1.2), 0.0),
    ],
)
def test_where_nothing_can_be_said_there_is_no_number(estimate, minutes):
    assert to_decide(estimate, threshold=0.01, measured=minutes, launches=5) is None


@pytest.mark.parametrize(
    "name",
    [*get_args(Withheld), *get_args(Caution), *get_args(ChangeWithheld), *get_args(NoDifference)],
)
def test_every_reason_has_its_words(name):
    reason = REASONS[name]
    assert reason.explanation if name in get_args(NoDifference) else reason.brief
    assert reason.next_step or name in (*get_args(NoDifference), "launches"), "what to do about it"
