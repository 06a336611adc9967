"""Intervals on synthetic log-ratios of known truth: recovered, covered at the nominal rate, indifferent to what must not matter."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.statistics import (
    ONE_LAUNCH,
    ONE_PAIR,
    Interval,
    launch_variance,
    locate,
    median_interval,
    median_of_means_interval,
    pooled_df,
    ratio_interval,
    ratio_intervals,
)


def draw(random, *, launches=3, pairs=30, ratio=1.0, spread=0.0, noise=0.05):
    """Log-ratios by launch: heavy-tailed noise of pairs, ``spread`` the standard deviation of launches, as log."""
    level = np.log(ratio) + spread * random.standard_normal(launches)
    return [one + noise * random.standard_t(3, pairs) / math.sqrt(3) for one in level]


def coverage(*, replications, companions=0, seed=0, ratio=1.0, **kwargs):
    random = np.random.default_rng(seed)
    covered = 0
    for _ in range(replications):
        drawn = [draw(random, ratio=ratio, **kwargs) for _ in range(companions + 1)]
        covered += not ratio_intervals(drawn, confidence=0.95)[0].excludes(ratio)
    return covered / replications


@pytest.mark.parametrize("spread", [0.0, 0.03])
def test_ratios_against_both_baseline_and_control_cover_as_its_own_does(spread):
    random = np.random.default_rng(11)
    covered = np.zeros(3)
    for _ in range(300):
        arms = [np.array(draw(random, spread=spread)) for _ in range(4)]
        both = np.stack([arms[0], arms[-1]], axis=-1)
        drawn = [list(arms[1][..., None] - both), list(arms[2][..., None] - both), list(arms[-1] - arms[0])]
        found = ratio_intervals(drawn, confidence=0.95, scales=[1.5, 1.5, 2.0])
        covered += [not one.excludes(1.0) for one in found]
    assert all(covered / 300 >= 0.92)


def test_blocks_that_are_only_ever_held_up_do_not_favour_the_candidate():
    """Trimming what a block is over the mean of two others cut its own delays away more often than theirs."""
    random = np.random.default_rng(12)
    arms = -random.exponential(0.06, size=(3, 40, 400))
    estimates = ratio_interval(list(arms[0, ..., None] - np.stack([arms[1], arms[2]], axis=-1)), confidence=0.95)
    assert estimates.estimate == pytest.approx(1, abs=0.0015)


def test_copies_of_the_baseline_count_by_their_pairs():
    one, other = np.full(30, 0.2), np.full(30, np.nan)
    other[:10] = -0.1
    found = locate([np.stack([one, other], axis=-1), np.stack([one, np.full(30, np.nan)], axis=-1)])
    assert found.means == pytest.approx([(18 * 0.2 - 6 * 0.1) / 24, 0.2])
    assert found.pairs == 60 and not any(np.isnan(residual).any() for residual in found.residuals)


def test_a_known_ratio_is_recovered():
    found = ratio_interval(draw(np.random.default_rng(1), ratio=1.12, pairs=200, noise=0.04), confidence=0.95)
    assert found.estimate == pytest.approx(1.12, rel=0.01)
    assert found.low < 1.12 < found.high
    assert (found.launches, found.pairs, found.note) == (3, 600, None)


@pytest.mark.parametrize("launches", [2, 3, 5])
@pytest.mark.parametrize("spread", [0.0, 0.02])
@pytest.mark.parametrize("companions", [0, 2])
def test_intervals_cover_at_their_nominal_rate(launches, spread, companions):
    """100 replications at 95% have a standard error of 2.2%; the seed is fixed."""
    kwargs = {"launches": launches, "spread": spread, "companions": companions}
    assert coverage(replications=100, **kwargs) >= 0.91


def test_a_real_difference_is_covered_and_not_only_1():
    assert coverage(replications=100, ratio=1.2, spread=0.01, companions=1) >= 0.91


def test_an_interval_is_not_wide_without_need():
    """Were it as wide as Student's t over three plain means, half of these 3% differences would be missed."""
    random = np.random.default_rng(3)
    drawn = [[draw(random, ratio=ratio, pairs=60, noise=0.04) for ratio in (1.03, 1.0, 1.0)] for _ in range(60)]
    found = [ratio_intervals(ratios, confidence=0.95)[0] for ratios in drawn]
    assert sum(one.low > 1 for one in found) >= 54


def test_pooling_over_ratios_narrows_the_interval():
    random = np.random.default_rng(4)
    drawn = [[draw(random) for _ in range(4)] for _ in range(60)]
    pooled = np.mean([math.log(one.high / one.low) for one in (ratio_intervals(d, confidence=0.95)[0] for d in drawn)])
    alone = np.mean([math.log(one.high / one.low) for one in (ratio_interval(d[0], confidence=0.95) for d in drawn)])
    assert pooled < 0.85 * alone


def test_a_ratio_whose_launches_differ_more_than_the_others_keeps_a_wide_interval():
    random = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        drawn = [draw(random, spread=0.06), draw(random), draw(random)]
        covered += not ratio_intervals(drawn, confidence=0.95)[0].excludes(1.0)
    assert covered / 200 >= 0.85


def test_launches_that_agree_by_chance_do_not_make_the_interval_narrower_than_the_pairs_allow():
    random = np.random.default_rng(6)
    launches = [values - values.mean() for values in random.standard_normal((3, 40)) * 0.05]
    found = ratio_interval(launches, confidence=0.95)
    assert math.log(found.high / found.low) / 2 > 1.9 * 0.05 / math.sqrt(120)


def test_a_launch_cut_short_counts_less_but_counts():
    random = np.random.default_rng(7)
    whole = draw(random, pairs=60, ratio=1.1)
    cut = [whole[0], whole[1], whole[2][:4] + 0.05]
    found = ratio_interval(cut, confidence=0.95)
    assert found.pairs == 124
    assert found.launches == 3
    assert found.estimate == pytest.approx(1.1, rel=0.02)


def test_unequal_counts_cover():
    random = np.random.default_rng(8)
    covered = 0
    for _ in range(200):
        drawn = [values[:size] for values, size in zip(draw(random, pairs=50), (50, 30, 5), strict=True)]
        covered += not ratio_interval(drawn, confidence=0.95).excludes(1.0)
    assert covered / 200 >= 0.91


def test_one_launch_has_an_interval_with_a_caution():
    found = ratio_interval([np.log(1.1) + 0.02 * np.random.default_rng(9).standard_normal(40)], confidence=0.95)
    assert found.low < 1.1 < found.high
    assert found.note == ONE_LAUNCH


def test_one_pair_has_none():
    found = ratio_interval([np.array([0.1])], confidence=0.95)
    assert (found.low, found.high, found.note) == (None, None, ONE_PAIR)
    assert found.estimate == pytest.approx(math.exp(0.1))
    assert not found.excludes(1.0)


@pytest.mark.parametrize("nothing", [[], [np.array([])], [np.array([np.nan, np.nan])]])
def test_no_pair_has_nothing(nothing):
    assert ratio_interval(nothing, confidence=0.95) is None
    assert median_interval(nothing, confidence=0.95, seed=1) is None


def test_a_ratio_without_pairs_does_not_disturb_the_others():
    random = np.random.default_rng(10)
    one, other = draw(random), draw(random)
    assert ratio_intervals([one, [], other], confidence=0.95)[0] == ratio_intervals([one, other], confidence=0.95)[0]


def test_single_pairs_of_several_launches_are_a_sample_of_launches():
    """Sequential mode: Student's t over them, by hand."""
    values = np.array([0.10, 0.12, 0.08, 0.11])
    found = ratio_interval([values[i : i + 1] for i in range(4)], confidence=0.95)
    half = 3.182446 * values.std(ddof=1) / 2
    assert found.launches == 4
    assert found.note is None
    assert math.log(found.low) == pytest.approx(values.mean() - half, rel=1e-5)
    assert math.log(found.high) == pytest.approx(values.mean() + half, rel=1e-5)


def test_equal_values_give_an_interval_without_width_and_no_warning():
    found = ratio_interval([np.full(8, 0.02)] * 3, confidence=0.95)
    assert found.low == pytest.approx(found.high)


def test_the_t_interval_of_two_balanced_launches_is_that_of_the_book():
    """With noise far below the spread of launches it is t(1) times the standard error of the two means."""
    noise = np.array([-1e-6, 0.0, 1e-6, 0.0, 0.0])
    found = ratio_interval([0.01 + noise, 0.03 + noise], confidence=0.95)
    assert math.log(found.high / found.low) / 2 == pytest.approx(12.7062 * 0.01, rel=1e-3)


def test_a_few_wild_blocks_do_not_move_the_ratio():
    launches = draw(np.random.default_rng(11), pairs=40, ratio=1.05, noise=0.02)
    wild = [values.copy() for values in launches]
    for values in wild:
        values[:3] = -2.0
    calm, hit = (ratio_interval(one, confidence=0.95).estimate for one in (launches, wild))
    assert hit == pytest.approx(calm, rel=0.01)


def test_correlated_neighbours_widen_a_single_launch():
    random = np.random.default_rng(12)
    values = np.repeat(0.05 * random.standard_normal(50), 3)
    shuffled = random.permutation(values)
    widths = [math.log(one.high / one.low) for one in (ratio_interval([v], confidence=0.95) for v in (values, shuffled))]
    assert widths[0] > 1.4 * widths[1]


def test_launch_variance_is_recovered_and_zero_where_there_is_none():
    random = np.random.default_rng(13)
    many = [locate(draw(random, launches=10, pairs=100, spread=0.02)) for _ in range(20)]
    none = [locate([np.array([-0.01, 0.0, 0.01] * 5)] * 3)]
    assert math.sqrt(launch_variance(many)) == pytest.approx(0.02, rel=0.15)
    assert launch_variance(none) == 0.0
    assert launch_variance([]) == 0.0


def test_ratios_that_share_their_noise_add_no_degrees_of_freedom():
    random = np.random.default_rng(14)
    one = draw(random)
    same, apart = ([locate(one), locate(other)] for other in ([values + 0.1 for values in one], draw(random)))
    assert pooled_df(same) == pytest.approx(2.0)
    assert 3.5 < pooled_df(apart) <= 4.0


numbers = st.floats(min_value=-0.3, max_value=0.3, allow_nan=False)
launch_lists = st.lists(
    st.lists(numbers, min_size=2, max_size=12).map(lambda values: np.array(values, dtype=np.float64)),
    min_size=1,
    max_size=4,
)


def close(a: Interval, b: Interval) -> bool:
    return all(x == pytest.approx(y, rel=1e-6, abs=1e-9) for x, y in zip(bounds(a), bounds(b), strict=True))


def bounds(one: Interval) -> list[float]:
    return [one.estimate, one.low, one.high]


@settings(max_examples=25, deadline=None)
@given(launch_lists)
def test_swapping_the_arms_inverts_ratio_and_interval(launches):
    there, back = (ratio_interval(one, confidence=0.95) for one in (launches, [-values for values in launches]))
    assert back.estimate == pytest.approx(1 / there.estimate)
    assert back.low == pytest.approx(1 / there.high)
    assert back.high == pytest.approx(1 / there.low)


@settings(max_examples=25, deadline=None)
@given(launch_lists, st.floats(min_value=0.5, max_value=2.0))
def test_a_faster_candidate_scales_ratio_and_interval(launches, factor):
    found = ratio_interval(launches, confidence=0.95)
    scaled = ratio_interval([values + math.log(factor) for values in launches], confidence=0.95)
    assert bounds(scaled) == pytest.approx([factor * value for value in bounds(found)], rel=1e-5)


@settings(max_examples=25, deadline=None)
@given(launch_lists)
def test_the_order_of_launches_does_not_matter(launches):
    found, turned = (ratio_interval(one, confidence=0.95) for one in (launches, launches[::-1]))
    assert bounds(turned) == pytest.approx(bounds(found), rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(launch_lists)
def test_the_estimate_lies_in_its_interval_and_more_confidence_is_wider(launches):
    narrow, wide = (ratio_interval(launches, confidence=confidence) for confidence in (0.8, 0.99))
    assert wide.low <= narrow.low <= narrow.estimate <= narrow.high <= wide.high


def test_medians_have_a_bootstrap_that_depends_on_the_seed_alone():
    launches = [100 + np.random.default_rng(seed).standard_normal(20) for seed in range(3)]
    first, again = (median_interval(launches, confidence=0.95, seed=5) for _ in range(2))
    assert first == again
    assert first.low < first.estimate < first.high
    assert first.estimate == pytest.approx(100, abs=1)


def test_the_median_of_means_takes_each_launch_as_one():
    found = median_of_means_interval([np.array([1.0, 3.0]), np.array([10.0]), np.array([4.0, 4.0, 4.0])], confidence=0.95, seed=1)
    assert found.estimate == 4.0
    assert found.low <= 4.0 <= found.high
