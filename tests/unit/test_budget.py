"""A budget of minutes: how long launches are chosen to be, from variances alone, and what that
costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from measurement.plans.sections import Measurement
from reports import write_reports
from reports.formats.pages import method
from reports.launch_budget import choose_length, cost_of
from reports.statistics.budget import (
    MAX_ROUNDS,
    MIN_ROUNDS,
    UNKNOWN,
    Cost,
    Spread,
    choose,
    pilot,
    spread_of,
)
from reports.statistics.intervals import launch_ratios
from runners.driver.rounds import RoundLimit
from tests.kit.budgets import REGIMES, SCALES, launch, tables
from tests.kit.changed import changed
from tests.kit.results_factory import Truth, make_plan, write_results

USUAL = Cost(start_s=23.0, round_s=0.8)


def spread(of_rounds, of_launches, *, degrees=1000.0):
    return Spread(round_variance=of_rounds**2, launch_variance=of_launches**2, degrees=degrees)


def length(plan, folder, *, left_s):
    return choose_length(plan, folder, left_s=left_s, read_blocks={})


def test_many_launches_have_as_many_rounds_as_kalibera_and_jones_say():
    choice = choose([19] * 3, cost=USUAL, spread=spread(0.145, 0.04), left_s=36_000)
    assert choice.rounds == pytest.approx(math.sqrt(23 / 0.8) * 0.145 / 0.04, abs=1)


def test_few_launches_are_more_and_shorter_than_that():
    """Student's t: 57 rounds would be best for many."""
    assert math.sqrt(23 / 0.8) * 0.15 / 0.014 > 55
    choice = choose([18] * 3, cost=USUAL, spread=spread(0.15, 0.014), left_s=180)
    assert choice.launches >= 4 and choice.rounds < 30


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [(spread(0.001, 0.1), MIN_ROUNDS), (spread(0.3, 0.0), MAX_ROUNDS), (UNKNOWN, 18)],
)
def test_rounds_stay_within_bounds(estimate, expected):
    choice = choose([20] * 3, cost=USUAL, spread=estimate, left_s=36_000)
    assert abs(choice.rounds - expected) <= 2


@pytest.mark.parametrize("left_s", [-5.0, 0.0, 20.0])
def test_where_no_launch_fits_there_is_none(left_s):
    assert choose([18] * 8, cost=USUAL, spread=spread(0.145, 0.04), left_s=left_s) is None


def test_a_launch_of_few_rounds_that_would_make_the_interval_wider_is_not_made():
    """Launches count alike."""
    assert choose([60] * 8, cost=USUAL, spread=spread(0.3, 0.001), left_s=27.0) is None
    assert choose([60] * 8, cost=USUAL, spread=spread(0.01, 0.05), left_s=27.0).rounds >= MIN_ROUNDS


@pytest.mark.parametrize(
    ("cost", "launches", "rounds"),
    [(USUAL, 8, 18), (Cost(start_s=40.0, round_s=1.2), 5, 16)],
)
def test_pilots_have_the_best_length_where_variances_are_as_usual(cost, launches, rounds):
    """A machine that starts slowly has room for fewer than eight: they would have six rounds, and
    intervals a tenth wider."""
    choice = pilot(cost, left_s=300)
    assert (choice.launches, choice.rounds) == (launches, rounds)
    second = pilot(cost, left_s=300 - cost.start_s - rounds * cost.round_s, done=[rounds], owed=2)
    assert abs(second.launches + 1 - launches) <= 1


def test_there_are_three_pilots_however_long_a_start_takes():
    slow = Cost(start_s=100.0, round_s=1.0)
    first, third = pilot(slow, left_s=300), pilot(slow, left_s=-9, done=[4, 4], owed=1)
    assert (first.launches, first.rounds) == (3, MIN_ROUNDS)
    assert (third.launches, third.rounds) == (1, MIN_ROUNDS)


def test_the_first_pilot_ends_when_it_knows_what_its_rounds_take():
    first = RoundLimit(rounds=None, budget_s=300)
    done = next(
        number for number in range(1, 100) if first.is_reached(number, 0.8 * number, start_s=18)
    )
    assert done == pilot(Cost(start_s=18 * 1.3, round_s=0.8), left_s=300).rounds


@pytest.mark.parametrize(
    ("number", "spent_s", "is_reached"),
    [
        (19, 9.5, False),
        (20, 10.0, True),
        (3, 90.0, False),  # a launch has four rounds at least
        (4, 60.0, True),  # and ends with the budget
    ],
)
def test_a_launch_ends_with_its_rounds_or_with_the_budget(number, spent_s, is_reached):
    assert RoundLimit(rounds=20, budget_s=60).is_reached(number, spent_s, start_s=18) is is_reached


def test_variances_are_recovered_from_launches():
    random, regime = np.random.default_rng(1), REGIMES[0]
    launches = [launch(regime, 40, random) for _ in range(60)]
    estimate = spread_of([launch_ratios(table) for table in tables(launches)])
    scale = np.mean(SCALES) / SCALES[0]
    of_rounds = math.sqrt(estimate.round_variance / scale)
    of_launches = math.sqrt(estimate.launch_variance / scale)
    assert of_rounds == pytest.approx(regime.of_rounds, rel=0.1)
    assert of_launches == pytest.approx(regime.of_launches, rel=0.25)


def measured(tmp_path, name, *, ratio, launches=3):
    """A folder with launches of a plan that has a budget; each took 60 s of 12 rounds, and 8 s to
    start."""
    measurement = changed(Measurement(minutes=10, block_steps=2), launches=launches)
    plan = changed(make_plan([name]), measurement=measurement)
    truth = Truth(ratios={name: ratio}, launch_noise=0.02, drift=0.0)
    folder = write_results(tmp_path / f"{ratio}", truth=truth, plan=plan)
    return plan, folder


@pytest.mark.slow
def test_the_choice_does_not_depend_on_the_ratio(tmp_path):
    chosen = []
    for ratio in (1.0, 1.5):
        plan, folder = measured(tmp_path, "horovod-gloo", ratio=ratio)
        chosen.append(length(plan, folder, left_s=400.0))
    assert chosen[0].rounds == chosen[1].rounds


@pytest.mark.slow
def test_a_folder_tells_what_its_launches_cost_and_the_report_that_their_length_was_chosen(
    tmp_path,
):
    plan, folder = measured(tmp_path, "horovod-gloo", ratio=1.1)
    cost = cost_of(plan, folder.records())
    assert cost == Cost(start_s=8.0, round_s=5.0), "start_s stands in where launch_s is not known"
    chosen = length(plan, folder, left_s=400.0)
    assert (chosen.rounds >= MIN_ROUNDS, chosen.launches > 3) == (True, True)
    assert length(plan, folder, left_s=10.0) is None
    assert "minutes were given" in " ".join(method(write_reports(folder)))


def test_pilots_come_first_whatever_the_time(tmp_path):
    plan, folder = measured(tmp_path, "horovod-gloo", ratio=1.1, launches=1)
    assert length(plan, folder, left_s=-100.0).rounds == MIN_ROUNDS
