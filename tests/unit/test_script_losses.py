"""Losses of scripts: curves against samples, differences found, and equal scripts called worse no
more often than stated."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from measurement.records.step_tables import LOSS_COLUMNS
from reports.scripts.equality import judge_equality
from reports.scripts.losses import (
    compare_losses,
    curve_of,
    loss_difference,
    loss_unit,
    loss_verdict,
)
from tests.kit.script_factory import Script, one_launch, script_plan

STEPS = 40


def table(factor=1.0, *, noise=0.0, seed=0, start=0, samples=32, steps=STEPS, late=None):
    """Losses of two ranks; ``late``: all of them in the later half."""
    random = np.random.default_rng(seed)
    rows = []
    for step in range(steps):
        loss = factor * (0.5 + 2 / (1 + step)) * (1 + noise * random.normal())
        loss = late if late is not None and step > steps / 2 else loss
        rows += [(0, start, step, samples, loss - 0.1), (1, start, step, samples, loss + 0.1)]
    return pd.DataFrame(rows, columns=list(LOSS_COLUMNS)).astype(LOSS_COLUMNS)


def compared(factor, *, launches=5, noise=0.002, **more):
    """Loss of the candidate against the baseline's."""
    tables = {}
    for launch in range(launches):
        tables[launch, "old"] = table(noise=noise, seed=launch)
        tables[launch, "new"] = table(factor, noise=noise, seed=100 + launch, **more)
    return compare_losses(script_plan(launches=launches), tables)["new"]


def test_a_curve_is_the_mean_over_ranks_against_the_samples_of_all():
    curve = curve_of(table(), "samples")
    assert curve.index[:2].tolist() == [64, 128]
    assert curve.iloc[0] == pytest.approx(2.5)
    assert len(curve) == STEPS


def test_a_script_that_was_started_anew_counts_once():
    twice = pd.concat([table(), table(3.0, start=1)])
    assert curve_of(twice, "samples").max() == pytest.approx(2.5)


def test_without_samples_losses_stand_against_steps():
    assert loss_unit({(0, "old"): table(samples=0), (0, "new"): table()}) == "steps"
    assert loss_unit({(0, "new"): table()}) == "samples"
    assert curve_of(table(samples=0), "steps").index[:3].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("factor", "noise", "verdict"),
    [
        (0.9, 0.002, "no worse"),
        (1.0, 0.002, "no worse"),
        (1.02, 0.05, "undecided"),
        (1.1, 0.002, "worse"),
    ],
)
def test_a_loss_is_worse_where_it_is_higher_by_more_than_the_margin(factor, noise, verdict):
    loss = compared(factor, noise=noise)
    assert loss.verdict == verdict
    assert loss.difference.ci_low < factor - 1 < loss.difference.ci_high


def test_losses_of_a_step_in_other_passes_are_not_compared():
    plan = script_plan(launches=5)
    tables = {(launch, arm): table() for launch in range(5) for arm in ("old", "new")}
    arms = {"old": Script(), "new": Script(configuration={"accumulation": 2})}
    loss = judge_equality(plan, one_launch(plan, arms), losses=tables).loss["new"]
    assert loss.verdict is None
    assert loss.sentence.endswith("not compared: a step has another number of backward passes")


def test_one_launch_is_said_to_be_one():
    loss = compared(1.1, launches=1)
    assert loss.verdict == "undecided"
    assert loss.sentence.endswith("in one launch: no interval, so no verdict")


def test_a_loss_that_is_no_number_any_more_is_worse():
    loss = compared(1.0, late=np.inf)
    assert loss.verdict == "worse"
    assert loss.sentence == "The loss of new is not finite in the later half"


def test_the_later_half_is_that_of_what_both_reached():
    loss = compared(1.0, noise=0.0, steps=20)
    assert loss.difference.value == pytest.approx(0.0, abs=1e-9)
    assert loss.samples[-1] == 20 * 64


@pytest.mark.parametrize(("higher", "at_most"), [(0.0, 0.01), (0.02, 0.075)])
def test_equal_scripts_are_called_worse_no_more_often_than_stated(higher, at_most):
    """At a difference of just the margin, 5% of the comparisons may be called worse, and 5% no
    worse."""
    random = np.random.default_rng(4)
    verdicts = []
    for _ in range(2000):
        seeds, ours, theirs = random.normal(0, [[0.02], [0.01], [0.01]], (3, 5))
        pairs = [*zip(1 + higher + seeds + ours, 1 + seeds + theirs, strict=True)]
        verdicts.append(loss_verdict(loss_difference(pairs), margin=0.02))
    assert verdicts.count("worse") / 2000 <= at_most
    if higher:
        assert verdicts.count("no worse") / 2000 <= at_most
