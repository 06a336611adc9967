"""Whether scripts train alike: same against same is equal, whatever rounding does; what is not is
told with step and size."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from measurement.distances import ARITHMETICS, FLOAT32, Sketches, gradient_distances
from reports.scripts.configuration import script_differences
from reports.scripts.equality import judge_equality
from tests.kit.results_factory import Truth
from tests.kit.script_factory import HOROVOD, Script, one_launch, script_plan, script_records

SOUND = Script()


def judged(old, new, *, control=None, scripts=None):
    plan = script_plan(scripts=scripts)
    arms = {"old": old, "new": new} | ({"old-control": control} if control else {})
    return judge_equality(plan, one_launch(plan, arms))


def test_the_same_script_twice_is_equal():
    equality = judged(SOUND, SOUND)
    assert equality.sentence == "new trains like old: equal start, and equal over the first 5 steps"
    assert (equality.first_difference_step, equality.unequal) == (None, [])
    assert equality.batches["new"] == "new reads the same batches as old"
    assert set(equality.parameters) == {"old-control", "new"}


@pytest.mark.parametrize("seed", range(5))
def test_rounding_is_no_difference(seed):
    equality = judged(SOUND, Script(rounding=1e-6, noise_seed=seed, configuration=HOROVOD))
    assert equality.unequal == []
    assert equality.sentence.endswith(
        "equal start, and equal up to float32 rounding over the first 5 steps"
    )


def test_another_start_is_told_and_nothing_else_is_claimed():
    equality = judged(SOUND, Script(start_seed=2))
    assert equality.parameters["new"].verdict == "not compared"
    assert (equality.first_difference_step, equality.unequal) == (0, ["new"])
    assert equality.sentence.startswith("new has another start than old (conv.bias, fc.weight, ")
    assert equality.sentence.endswith("--same-start compares what follows")


def test_a_learning_rate_twice_as_high_is_apart_from_the_first_step_on_with_its_size():
    equality = judged(SOUND, Script(learning_rate=0.2))
    assert equality.parameters["new"].distances[0] == pytest.approx(0.5)
    assert equality.sentence.startswith(
        "new starts equal to old, then is apart from step 1 on by 50% of what the steps changed"
    )
    assert equality.sentence.endswith("its first gradients agree")


CHAOTIC = Script(rounding=1e-7, rounding_grows=100.0, noise_seed=1)
"""Each step multiplies rounding: the fourth one is off by a tenth, the fifth is nothing but noise."""
SHOWN = replace(CHAOTIC, perturbed=True, noise_seed=2)
"""Its control."""


def test_rounding_that_training_amplifies_as_the_control_shows_is_no_difference():
    equality = judged(SOUND, CHAOTIC, control=SHOWN)
    parameters = equality.parameters["new"]
    assert (parameters.verdict, parameters.judged_steps) == ("equal up to rounding", 4)
    assert parameters.distances[3] > ARITHMETICS["float32"].stepped
    assert equality.unequal == []
    assert re.fullmatch(
        r"new trains like old: equal start, and no farther apart over the first 4 steps"
        r" \(.*% of what they changed\) than rounding takes the control; after that, rounding grows"
        " too far to judge",
        equality.sentence,
    )


def test_a_perturbed_control_says_itself_whether_the_baseline_repeats_in_step_1_alone():
    control = judged(SOUND, SOUND, control=SHOWN).parameters["old-control"]
    assert (control.verdict, control.judged_steps) == ("equal up to rounding", 1)
    assert len(control.distances) == 5


def test_what_differs_before_rounding_has_grown_is_told():
    wrong = replace(CHAOTIC, rate_at=lambda step: 1.0 if step < 2 else 0.5)
    equality = judged(SOUND, wrong, control=SHOWN)
    assert equality.parameters["new"].first_difference_step == 3


def test_without_a_control_it_is_not_known_how_far_rounding_grows():
    """As in the trial, where each command runs alone."""
    plan = script_plan()
    records = [
        record
        for record in one_launch(plan, {"old": SOUND, "new": CHAOTIC})
        if record.role != "control"
    ]
    sentence = judge_equality(plan, records).sentence
    assert sentence.endswith("; how far rounding grows is not known without a control")


@pytest.mark.parametrize("settings", [{}, {"threads.torch": {"by_rank": [4, 1]}}])
def test_what_may_be_amplified_rounding_is_told_with_a_way_to_find_out(settings):
    later = Script(configuration=settings, rate_at=lambda step: 1.0 if step < 3 else 0.5)
    sentence = judged(SOUND, later).sentence
    assert "apart from step 4 on" in sentence
    hint = "; it may be rounding that later steps amplify: look again with equal threads"
    assert (hint in sentence) == bool(settings)


def test_one_small_parameter_whose_gradient_differs_is_named():
    gradients = judged(SOUND, Script(not_exchanged=["fc.bias"])).gradients["new"]
    assert (gradients.verdict, gradients.names) == ("apart", ["fc.bias"])


@pytest.mark.parametrize(("small", "is_beyond"), [(0.1, False), (0.2, True)])
def test_a_small_tensor_is_not_hidden_by_a_large_one(small, is_beyond):
    ours, theirs = (Sketches.of({"weight": [1000.0], "bias": [value]}) for value in (small, 0.1))
    apart = gradient_distances(ours, theirs, {"weight": 1, "bias": 1}, FLOAT32)
    assert apart.distance <= 1e-3
    assert apart.is_beyond(1e-3, 1e-2) is is_beyond


def under_other_names(rename):
    """Two equal scripts, one of which has other names for its tensors."""
    records = one_launch(script_plan(), {"old": SOUND, "new": SOUND})
    for report in records[-1].scripts:
        of_steps = ((step.parameters, step.gradients) for step in report.steps)
        for tensors in (report.started, report.sizes, *itertools.chain(*of_steps)):
            for name in list(tensors):
                tensors[rename(name)] = tensors.pop(name)
    return records


def test_names_without_a_counterpart_are_told():
    records = under_other_names(lambda name: name.replace("fc.bias", "head.bias"))
    sentence = judge_equality(script_plan(), records).sentence
    assert "without a counterpart: head.bias, fc.bias" in sentence


def test_tensors_are_matched_under_other_names_and_it_is_said_how():
    records = under_other_names(
        lambda name: f"buffer:model.{name[7:]}" if "buffer:" in name else f"model.{name}"
    )
    equality = judge_equality(script_plan(), records)
    assert equality.sentence.endswith("the first 5 steps, tensors matched by size and order")
    assert (equality.gradients["new"].verdict, equality.unequal) == ("equal", [])
    assert "gradients.scale" not in {row.field for row in script_differences(records)}


@pytest.mark.parametrize(
    ("settings", "told"),
    [({}, "new reads other batches than old, from step 1 on"), ({"accumulation": 2}, None)],
)
def test_batches_are_compared_where_steps_are_cut_alike(settings, told):
    equality = judged(SOUND, Script(configuration=settings, data_seed=1))
    assert equality.batches.get("new") == told


def test_a_difference_as_large_as_the_controls_is_none():
    noisy = Script(rounding=0.02, noise_seed=1)
    assert judged(SOUND, noisy).unequal == ["new"]
    assert judged(SOUND, noisy, control=replace(noisy, noise_seed=2)).unequal == []


def test_where_the_control_steps_otherwise_nothing_is_claimed():
    control = Script(learning_rate=0.02, seeds=[5, 5])
    equality = judged(SOUND, Script(learning_rate=0.2), control=control)
    assert equality.parameters["new"].verdict == "not compared"
    assert equality.sentence.endswith("old itself steps otherwise each time")


def test_coarse_arithmetic_is_allowed_for_where_both_have_it():
    both = judged(Script(configuration=HALF), Script(configuration=HALF, rounding=0.01))
    assert both.unequal == [] and "up to bfloat16 rounding" in both.sentence
    assert judged(SOUND, Script(configuration=HALF, rounding=0.01)).unequal == ["new"]


HALF = {"autocast.enabled": True, "autocast.dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("size", "arithmetic", "unequal"),
    [(3e-6, {}, []), (5e-3, HALF, []), (5e-3, {}, ["new"]), (0.1, HALF, ["new"])],
)
def test_gradients_that_are_nothing_but_rounding_do_not_count(size, arithmetic, unequal):
    """As of a bias before a batch norm, whose rounding another torch makes otherwise; Adam makes
    whole steps of them.

    In bfloat16 a rounding was called another gradient: of biases 0.5% as long as a usual one, with
    other kernels.
    """
    plan, sound = script_plan(), Script(configuration=arithmetic)
    records = one_launch(plan, {"old": sound, "new": sound})
    for record, sign in zip(records, (1, 1, -1), strict=True):
        for report in record.scripts:
            gradients = report.steps[0].gradients
            gradients["conv.bias"] = [size * sign * value for value in gradients["conv.bias"]]
            moved = [value + 0.1 * sign for value in report.started["conv.bias"]]
            for step in report.steps:
                step.parameters["conv.bias"] = moved
    assert judge_equality(plan, records).unequal == unequal


def test_a_step_that_is_smaller_than_the_last_place_of_bfloat16_is_still_compared():
    """Rounding of the parameters was allowed for by five times what steps changed, so that nothing
    could be apart."""

    def script(rate, rounding=0.0):
        return Script(
            configuration={"model.dtypes": ["bfloat16"]}, learning_rate=rate, rounding=rounding
        )

    assert judged(script(1e-4), script(1e-4, rounding=0.02)).unequal == []
    assert judged(script(1e-4), script(2e-4)).unequal == ["new"]


def test_the_launch_in_which_arms_are_farthest_apart_counts():
    plan, wrong = script_plan(), Script(learning_rate=0.2)
    records = script_records(
        plan, Truth(ratios={}), lambda launch, arm: wrong if (launch, arm) == (2, "new") else SOUND
    )
    assert judge_equality(plan, records).first_difference_step == 1


def test_sharded_models_are_not_compared():
    equality = judged(SOUND, Script(sharded=True))
    assert (equality.start["new"].verdict, equality.unequal) == ("not compared", ["new"])
    assert "is not known" in equality.sentence
