"""Intervals on synthetic blocks of known truth: recovered, covered at the nominal rate, indifferent
to what must not matter."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reports.statistics.budget import error_share, next_analysis
from reports.statistics.intervals import (
    launch_ratios,
    ratio_intervals,
)
from tests.kit.ratios import equal_work, log_width, ratio_interval


def block_times(random, *, launches=3, rounds=30, spread=0.0):
    """Seconds of an arm's blocks, by launch: heavy-tailed noise of blocks, for a pair's log-ratio
    5%; ``spread``: standard deviation of launches, as log."""
    levels = np.exp(spread * random.standard_normal(launches))
    noise = 0.035 / math.sqrt(5 / 3)
    return [level * np.exp(noise * random.standard_t(5, rounds)) for level in levels]


def draw(random, **kwargs):
    """A candidate beside a baseline of its own."""
    ours, theirs = (block_times(random, **kwargs) for _ in range(2))
    return [equal_work(*pair) for pair in zip(ours, theirs, strict=True)]


def of_logs(*launches):
    """Launches of one round each with these log-ratios."""
    return [equal_work([math.exp(-log)], [1.0]) for log in launches]


def comparison(random, *, candidates, spreads=0.0, **kwargs):
    """What the reports hand over: candidates beside baseline and control, then the control beside
    the baseline."""
    *ours, base, control = (
        block_times(random, spread=spread, **kwargs)
        for spread in np.broadcast_to(spreads, candidates + 2)
    )
    tables = [
        [equal_work(*three) for three in zip(arm, base, control, strict=True)] for arm in ours
    ]
    return [*tables, [equal_work(*two) for two in zip(control, base, strict=True)]]


def intervals(ratios):
    return ratio_intervals(ratios, confidence=0.95, family=len(ratios) - 1)


def test_the_ratio_is_that_of_totals_and_a_stall_counts_with_all_its_time():
    """Nine blocks of 1 s and one of 11 s against ten of 2 s: as fast in total."""
    launches = [equal_work([1.0] * 9 + [11.0], [2.0] * 10)] * 3
    assert ratio_interval(launches, confidence=0.95).value == pytest.approx(1.0)


def test_launches_count_alike_however_many_rounds_they_have():
    launches = [equal_work([1.0] * 30, [2.0] * 30), equal_work([1.0] * 3, [8.0] * 3)]
    assert ratio_interval(launches, confidence=0.95).value == pytest.approx(4.0)


def test_only_rounds_that_both_arms_finished_count():
    launches = [equal_work([1.0, 1.0, math.nan, 5.0], [2.0, 2.0, 9.0, math.nan])]
    ratio = ratio_interval(launches, confidence=0.95)
    assert (ratio.value, ratio.pairs) == (pytest.approx(2.0), 2)


def test_unequal_samples_are_counted():
    table = np.array([[[10.0, 1.0], [20.0, 1.0]], [[30.0, 1.0], [20.0, 3.0]]])
    assert ratio_interval([table], confidence=0.95).value == pytest.approx((40 / 2) / (40 / 4))


def test_both_copies_of_the_baseline_are_averaged_each_over_its_own_rounds():
    """4 / 2 against the one, 2 / 1 of the rounds that it has against the other."""
    launches = [equal_work([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [8.0, math.nan, math.nan])]
    tables = launch_ratios(launches)
    assert tables.logs == pytest.approx([(math.log(2) + math.log(8)) / 2])
    assert tables.pairs == 3


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.03])
@pytest.mark.parametrize("launches", [2, 3, 5])
def test_candidates_and_control_cover_at_their_nominal_rate(launches, spread):
    """150 replications at 95% have a standard error of 1.8%; the seed is fixed."""
    random = np.random.default_rng(11)
    covered = np.zeros(3)
    for _ in range(150):
        ratios = intervals(comparison(random, candidates=2, launches=launches, spreads=spread))
        covered += [not ratio.excludes(1.0) for ratio in ratios]
    assert all(covered / 150 >= 0.92)


@pytest.mark.slow
def test_among_six_equal_candidates_a_false_claim_is_as_rare_as_with_one():
    random, wrong = np.random.default_rng(6), 0
    for _ in range(200):
        ratios = intervals(comparison(random, candidates=6, spreads=0.01, launches=4))
        wrong += any(ratio.excludes(1.0) for ratio in ratios[:-1])
    assert wrong / 200 <= 0.05


def test_launches_that_agree_by_chance_are_as_uncertain_as_the_other_arms_say():
    random = np.random.default_rng(4)
    others = [draw(random, spread=0.03) for _ in range(3)]
    agreeing = [others[0][0]] * 3
    pooled, alone = (
        ratio_intervals(ratios, confidence=0.95, family=1)[0]
        for ratios in ([agreeing, *others], [agreeing])
    )
    assert log_width(pooled) > 1.5 * log_width(alone)


def test_launches_that_agree_by_chance_do_not_make_the_interval_narrower_than_the_rounds_allow():
    random = np.random.default_rng(6)
    tables = [
        equal_work(times / times.sum(), [1 / 40] * 40)
        for times in np.exp(0.05 * random.standard_normal((3, 40)))
    ]
    ratio = ratio_interval(tables, confidence=0.95)
    assert log_width(ratio) / 2 > 1.8 * 0.05 / math.sqrt(120)


@pytest.mark.slow
def test_the_prediction_holds_for_the_next_run():
    random, covered = np.random.default_rng(8), 0
    for _ in range(200):
        ratio = ratio_interval(draw(random, launches=5, spread=0.03, rounds=100), confidence=0.95)
        after = math.exp(0.03 * random.standard_normal() - 0.03 * random.standard_normal())
        covered += ratio.run_low <= after <= ratio.run_high
    assert covered / 200 >= 0.92


def test_one_launch_has_no_interval_however_many_rounds_it_has():
    ratio = ratio_interval([equal_work([1.0] * 200, [math.exp(0.1)] * 200)], confidence=0.95)
    assert ratio.value == pytest.approx(math.exp(0.1))
    assert (ratio.bounds, ratio.run_low, ratio.caution) == (None, None, "one launch")
    assert not ratio.excludes(1.0)


def test_no_pair_has_nothing():
    assert ratio_interval([np.full((2, 2, 2), np.nan)], confidence=0.95) is None


def test_a_ratio_without_pairs_does_not_disturb_the_others():
    """Nor is it a claim that the others' intervals must be wider for."""
    random = np.random.default_rng(10)
    first, other = draw(random), draw(random)
    with_it = ratio_intervals([first, [], other], confidence=0.95, family=2)
    assert with_it[0] == ratio_intervals([first, other], confidence=0.95, family=1)[0]


def test_single_rounds_of_several_launches_are_a_sample_of_launches():
    """Sequential mode: Student's t by hand.

    Each of two candidates has a one-sided error of 1 - 0.95 ** (1 / 2)."""
    logs = np.array([0.10, 0.12, 0.08, 0.11])

    def reach(quantile):
        return pytest.approx(stats.t.ppf(quantile, 3) * logs.std(ddof=1) / 2, rel=1e-5)

    ratio = ratio_interval(of_logs(*logs), confidence=0.95)
    assert (ratio.launches, ratio.caution) == (4, None)
    assert math.log(ratio.value / ratio.ci_low) == reach(0.975)
    assert math.log(ratio.ci_high / ratio.value) == reach(0.975)
    one_of_two = ratio_intervals([of_logs(*logs)] * 2, confidence=0.95, family=2)[0]
    assert math.log(one_of_two.one_sided[1] / one_of_two.value) == reach(0.95**0.5)


def test_analyses_together_spend_no_more_than_the_whole_error():
    analyses, shares = [], []
    for _ in range(200):
        analyses.append(next_analysis(analyses, launches=3))
        shares.append(error_share(analyses, until_decided=True))
    assert analyses[:6] == [5, 7, 10, 14, 20, 28]
    assert sum(shares) <= 1 and shares[0] == 0.5
    assert error_share([3], until_decided=False) == 1.0
    assert error_share([3, 8], until_decided=False) == pytest.approx(1 / 6)
    assert next_analysis([5], launches=8) == 8


numbers = st.floats(min_value=0.5, max_value=2.0, allow_nan=False)
launch_lists = st.lists(
    st.lists(st.tuples(numbers, numbers), min_size=2, max_size=12).map(
        lambda pairs: equal_work(*zip(*pairs, strict=True))
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=25, deadline=None)
@given(launch_lists)
def test_the_interval_follows_arms_that_are_swapped_and_not_the_order_of_launches(launches):
    def interval(tables):
        ratio = ratio_interval(tables, confidence=0.95)
        return np.array([ratio.ci_low, ratio.value, ratio.ci_high])

    usual = interval(launches)
    assert usual[0] <= usual[1] <= usual[2]
    assert interval([table[:, ::-1] for table in launches]) == pytest.approx(1 / usual[::-1])
    assert interval(launches[::-1]) == pytest.approx(usual, rel=1e-6)
