"""Training to the end: what is concluded from epochs written by hand, whose right answers are
known."""

from __future__ import annotations

import math

import pytest

from measurement.conditions.same_environment import plan_digest
from measurement.plans.plan import Plan
from measurement.plans.sections import Arm, Measurement
from measurement.plans.settings import EpochRecord, TrainingSettings
from reports.compose_comparison import compare
from reports.conclusions.steps import Steps
from reports.conclusions.training_results import MIN_SEEDS, converges, reference_of
from reports.parts_schema import Estimate
from reports.schema import Comparison
from reports.statistics.student import t_interval
from reports.wording.headlines import times_to_target
from tests.kit.results_factory import COMPARISON_ID, make_record

pytestmark = pytest.mark.slow  # results of whole trainings are composed

HELD_OUT = 200
ARMS = {
    "ddp": Arm(backend="ddp", transport="gloo"),
    "single": Arm(backend="single"),
    "horovod": Arm(backend="horovod", transport="gloo"),
}
RIGHT = [120, 180, 196, 198]
"""Of 200 held out, epoch by epoch: 97% is reached with the third."""


def make_plan(*, launches=3, arms=ARMS, **training):
    return Plan(
        name="t",
        workload="digits",
        world_size=2,
        baseline="ddp",
        arms=arms,
        measurement=Measurement(launches=launches, control=False, local_every=0),
        training=TrainingSettings(**{"epochs": 4, "target_accuracy": 0.97} | training),
    )


def epochs(right=RIGHT, *, train_s=2.0, losses=(1.0, 0.5), held_out=HELD_OUT):
    """One training: right answers on held-out samples after each epoch, each taking ``train_s``."""
    return [
        EpochRecord(
            epoch=number,
            steps=2,
            step_losses=[loss / (number + 1) for loss in losses],
            learning_rates=[0.1, 0.1],
            count=100,
            top1=50 + number,
            train_s=train_s,
            evaluate_s=100.0,
            held_out_loss_sum=held_out / (number + 1),
            held_out_top1=answers if held_out else 0,
            held_out_count=held_out,
        )
        for number, answers in enumerate(right)
    ]


def record(plan, arm, launch, trained, **changes):
    asked = plan.arms[arm]
    alone = (
        {"transport": "none", "world_size": 1} if asked.backend == "single" else {"world_size": 2}
    )
    return make_record(
        comparison_id=COMPARISON_ID,
        plan_digest=plan_digest(plan),
        launch=launch,
        arm=arm,
        role=plan.role(arm),
        backend=asked.backend,
        sample_unit="images",
        epochs=trained,
        **alone | changes,
    )


def conclude_from(plan, trainings, **changes):
    """``trainings``: by arm, a training per seed."""
    records = [
        record(plan, arm, launch, trained, **changes.get(arm, {}))
        for arm, seeds in trainings.items()
        for launch, trained in enumerate(seeds)
    ]
    return compare(plan, records, Steps.joined([]))


def ending_with(*answers, train_s=2.0):
    """A training per seed that ends with so many right answers."""
    return [epochs([*RIGHT[:-1], last], train_s=train_s) for last in answers]


@pytest.fixture(scope="module")
def alike():
    """Three seeds; Horovod always one answer worse, DDP equal; Horovod half as slow again as
    DDP."""
    right = {name: ending_with(198, 196, 197) for name in ("single", "ddp")}
    horovod = ending_with(197, 195, 196, train_s=3.0)
    return conclude_from(make_plan(), right | {"horovod": horovod})


def test_the_single_process_is_the_reference_and_the_baseline_where_there_is_none():
    assert reference_of(make_plan()) == "single"
    assert reference_of(make_plan(arms={"horovod": ARMS["horovod"], "ddp": ARMS["ddp"]})) == "ddp"


def test_times_to_the_target_divide_to_the_ratios():
    """The table had medians, and the verdict ratios of means."""
    times = {"single": (1.0, 3.0, 4.0), "ddp": (1.0, 2.0, 4.0), "horovod": (2.0, 3.0, 4.0)}
    trained = {name: [epochs(train_s=one) for one in each] for name, each in times.items()}
    training = conclude_from(make_plan(), trained).training
    statistic, by_arm = times_to_target(training)
    assert statistic == "geometric mean"
    ratio = training.arm("horovod").time_ratio.value
    assert by_arm["horovod"] / by_arm[training.baseline] == pytest.approx(ratio)


def test_accuracy_is_held_against_the_reference_and_its_time_against_the_baseline(alike):
    """The time is that of training alone."""
    single, ddp, horovod = (alike.training.arm(name) for name in ("single", "ddp", "horovod"))
    assert horovod.difference == Estimate.model_validate(
        dict.fromkeys(("value", "ci_low", "ci_high"), -1 / HELD_OUT)
    )
    assert [arm.convergence for arm in (single, ddp, horovod)] == [None, "same", "same"]
    assert (ddp.time_to_accuracy_s, ddp.seeds_reached, ddp.time_ratio) == (6.0, 3, None)
    assert (horovod.time_to_accuracy_s, horovod.time_pairs) == (9.0, 3)
    assert horovod.time_ratio.bounds == pytest.approx((1.5, 1.5))


def test_another_accuracy_is_said_first():
    right = {name: ending_with(198, 196, 197) for name in ("single", "ddp")}
    comparison = conclude_from(make_plan(), right | {"horovod": ending_with(180, 181, 177)})
    assert comparison.training.arm("horovod").convergence == "differs"
    assert (
        comparison.headline
        == "Another accuracy than single (98.5%): horovod; the same accuracy as single (98.5%): ddp; which arm reaches 97% first is undecided"
    )


def test_seeds_that_miss_the_target_are_later_than_all_others():
    missed = epochs([100, 110, 120, 130])
    trained = {name: ending_with(198, 198, 198) for name in ("single", "ddp")}
    trained["horovod"] = [missed, *ending_with(198, 198)]
    horovod = conclude_from(make_plan(), trained).training.arm("horovod")
    assert horovod.time_to_accuracy_s == 6.0
    assert (horovod.seeds_reached, horovod.time_pairs, horovod.time_unpaired) == (2, 2, 1)
    assert horovod.time_ratio == Estimate(value=1.0), "the seed that is left out is the slow one"
    never = conclude_from(make_plan(launches=1), {name: [missed] for name in ARMS}).training
    assert never.arm("horovod").time_ratio is never.arm("horovod").time_to_train_s is None


def test_what_is_cut_short_failed_or_wrong_does_not_count_but_is_told():
    full, cut = ending_with(198, 196, 197), [*ending_with(198, 196), epochs(RIGHT[:2])]
    trained = {"single": full, "ddp": cut, "horovod": full}
    comparison = conclude_from(make_plan(), trained, horovod={"status": "wrong"})
    ddp, horovod = comparison.training.arm("ddp"), comparison.training.arm("horovod")
    assert (ddp.seeds, ddp.pairs, ddp.curve.seeds) == (2, 2, [3, 3, 2, 2])
    assert [curve.finished for curve in ddp.by_seed] == [True, True, False]
    assert "ddp trained to the end with 2 of 3 seeds" in comparison.warnings
    assert (horovod.seeds, horovod.convergence, horovod.curve) == (0, "undecided", None)
    assert horovod.note == "no seed was trained to the end by both horovod and single"


def test_an_arm_may_train_alone():
    trained = {"ddp": ending_with(198, 196, 197)}
    comparison = conclude_from(make_plan(arms={"ddp": ARMS["ddp"]}), trained)
    assert comparison.headline == "ddp trained alone (98.5%); ddp reaches 97% in 6.00 s"


@pytest.mark.parametrize(
    ("seconds", "clause"),
    [
        ((2.2, 2.6, 2.4), "ddp reaches 97% first, in 6.00 s"),
        ((0.8, 0.9, 0.85), "horovod reaches 97% first, in 5.09 s"),
    ],
)
def test_who_is_first_is_said_only_where_the_interval_shows_it(seconds, clause):
    plan = make_plan(arms={name: ARMS[name] for name in ("ddp", "horovod")})
    trained = {"ddp": [epochs()] * 3, "horovod": [epochs(train_s=2 * each) for each in seconds]}
    assert conclude_from(plan, trained).headline.endswith(clause)


def test_a_loss_that_is_no_number_and_nothing_held_out():
    broken = [epochs(losses=(math.nan, math.inf), held_out=0)] * 3
    comparison = conclude_from(make_plan(), dict.fromkeys(ARMS, broken))
    assert Comparison.model_validate_json(comparison.model_dump_json()) == comparison
    ddp = comparison.training.arm("ddp")
    assert ddp.note == "nothing is held out, so there is no accuracy to compare"
    assert set(ddp.curve.bands) == {"train_top1"}


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.0, 0.0, 0.0], "same"),
        ([-0.02, -0.021, -0.019], "differs"),
        ([0.012, 0.002, 0.001], "undecided"),
        ([0.05, -0.05, 0.0], "undecided"),
        ([0.05, 0.05], "undecided"),
    ],
)
def test_convergence_follows_from_interval_and_margin(differences, verdict):
    assert (
        converges(t_interval(differences, confidence=0.95, fewest=MIN_SEEDS), margin=0.01)
        == verdict
    )


def test_the_first_epoch_that_ends_with_the_target_counts():
    asked = TrainingSettings(epochs=4, target_accuracy=0.97)
    assert asked.time_to_accuracy_s(epochs([194, 100, 198, 198])) == 2.0


def test_without_a_target_it_is_the_time_to_the_last_epoch():
    plan = make_plan(target_accuracy=None)
    comparison = conclude_from(plan, {"ddp": ending_with(1, 2, 3), "single": [], "horovod": []})
    assert comparison.training.arm("ddp").time_to_train_s.value == pytest.approx(8.0)
    assert comparison.training.arm("single").time_to_train_s is None
