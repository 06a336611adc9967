"""Launches that run one arm at a time: how they are held against interleaved ones, where they lie, and what the report says."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest

from reports import conclude
from reports.statistics.budget import is_alone_due, wanted_alone
from reports.statistics.cross_check import Interleaved, cross_check
from reports.wording.method import method
from tests.kit.results_factory import Truth, make_launch, make_plan, write_results

pytestmark = pytest.mark.slow  # results of whole comparisons are composed

EXACT = Interleaved(centre=0.0, error=0.0, degrees=5.0)


def levels(random, launches, *, arms=2, spread=0.02, drift=0.03, shared=True, ratio=1.0):
    """Log throughput by launch and arm; a drift of the machine is shared by arms that are up together."""
    found = spread * random.standard_normal((launches, arms)) + drift * random.standard_normal((launches, 1 if shared else arms))
    found[:, 1] += math.log(ratio)
    return found


def test_two_ways_that_agree_are_seldom_said_to_contradict_each_other():
    """Five hundred draws at 95% have a standard error of 1%. The wider of two intervals errs in less."""
    random, wrong = np.random.default_rng(1), 0
    for _ in range(500):
        together, alone = levels(random, 6), levels(random, 2, shared=False)
        logs = together[:, 1] - together[:, 0]
        ratio = Interleaved(centre=logs.mean(), error=logs.std(ddof=1) / 6**0.5, degrees=5)
        wrong += cross_check(alone, together, [ratio], confidence=0.95)[0].contradicts
    assert wrong / 500 <= 0.05


def test_what_interleaving_alone_has_made_is_found_on_a_calm_machine():
    random, found = np.random.default_rng(2), 0
    for _ in range(100):
        together = levels(random, 8, spread=0.005, drift=0.01, ratio=1.1)
        alone = levels(random, 2, spread=0.005, drift=0.01, shared=False)
        one = cross_check(alone, together, [Interleaved(centre=math.log(1.1), error=0.003, degrees=7)], confidence=0.95)[0]
        found += one.contradicts
        assert one.apart.value == pytest.approx(one.ratio.value / 1.1)
    assert found >= 90


def test_one_launch_cannot_contradict_and_an_arm_without_a_level_has_nothing():
    together = levels(np.random.default_rng(3), 6, arms=3, spread=0.001, drift=0.0)
    alone = np.array([[0.0, 0.5, np.nan]])
    found = cross_check(alone, together, [EXACT, EXACT], confidence=0.95)
    assert (found[0].contradicts, found[0].apart.excludes(1.0), found[0].launches) == (False, True, 1)
    assert found[1] is None
    assert cross_check(np.full((2, 2), np.nan), together[:, :2], [EXACT], confidence=0.95) == [None]
    assert cross_check(together[:2], together, [EXACT, None], confidence=0.95)[1] is None


def test_levels_that_say_nothing_of_their_variance_give_no_interval():
    found = cross_check(np.array([[0.0, 0.1]]), np.array([[0.0, 0.1]]), [EXACT], confidence=0.95)[0]
    assert (found.ratio.bounds, found.contradicts) == (None, False)


@pytest.mark.parametrize(
    ("launches", "every", "wanted"), [(3, 5, 0), (9, 5, 0), (10, 5, 2), (20, 5, 4), (8, 0, 0), (3, 1, 0), (9, 1, 4)]
)
def test_one_in_five_launches_and_none_where_that_is_less_than_two(launches, every, wanted):
    assert wanted_alone(launches, every=every) == wanted


def test_they_lie_evenly_among_the_others():
    places, done = [], 0
    for number in range(20):
        if is_alone_due(number, done, launches=20, wanted=4):
            places.append(number)
            done += 1
    assert places == [2, 7, 12, 17]


def folder_with_alone(tmp_path, *, interleaved, alone, launches=8, places=(2, 6)):
    """A candidate whose launches one arm at a time, without control and floor, have a ratio of their own."""
    plan = make_plan(["horovod-gloo"], launches=launches)
    one, other = (Truth(ratios={"horovod-gloo": it}, noise=0.005, launch_noise=0.002, drift=0.0) for it in (interleaved, alone))
    folder = write_results(tmp_path, truth=one, plan=plan)
    for launch in places:
        shutil.rmtree(folder.launch_folder(launch, plan.baseline).parent)
        for record in make_launch(plan, other, launch, random=np.random.default_rng([2, launch])):
            if record.role in ("baseline", "candidate"):
                blocks = [block for block in record.blocks if block.kind == "sync"]
                folder.write_launch(record.model_copy(update={"alone": True, "blocks": blocks, "parity": None}))
    return folder


def test_they_stand_beside_the_interleaved_ratio_and_are_no_part_of_it(tmp_path):
    folder = folder_with_alone(tmp_path, interleaved=1.1, alone=1.08)
    found = conclude(folder)
    result = found.result("horovod-gloo")
    assert (result.launches, found.arm("horovod-gloo").launches, result.alone.launches) == (6, 6, 2)
    assert result.throughput_ratio == pytest.approx(1.1, rel=0.01)
    assert result.alone.ratio.value == pytest.approx(1.08, rel=0.01)
    assert (result.verdict, result.withheld_by) == ("faster", None), "both say so"
    (line,) = found.cross_checks
    assert line.startswith(f"horovod-gloo, one arm at a time: {result.alone.ratio.value:.3f} (")
    assert f"interleaved {result.throughput_ratio:.3f}" in line and "apart" in line
    assert line in found.sentences
    assert any(text.startswith("One arm at a time: 2 launches") for text in method(found))


def test_a_verdict_that_interleaving_alone_gives_is_withheld(tmp_path):
    found = conclude(folder_with_alone(tmp_path, interleaved=1.2, alone=1.0))
    result = found.result("horovod-gloo")
    assert (result.verdict, result.verdict_alone, result.withheld_by) == ("undecided", "faster", "alone")
    assert "beyond chance" in result.note and "beyond chance" in found.cross_checks[0]


def test_without_them_the_method_says_so(tmp_path):
    found = conclude(write_results(tmp_path, plan=make_plan(["horovod-gloo"])))
    assert found.cross_checks == []
    assert any("interleaving itself was not checked" in text for text in method(found))
