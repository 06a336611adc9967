"""The first screen: few words, whatever came out, and each thing that was once wrong on a page."""

from __future__ import annotations

import re

import pytest

from measurement.conditions.differences import Difference
from measurement.plans.settings import TrainingSettings
from reports import conclude
from reports.formats.pages import caption
from reports.parts_schema import ArmTraining, Equality, TrainingSummary
from reports.wording.comparison_sentences import findings
from reports.wording.first_screen import MAX_CAUSE, first_screen
from reports.wording.headlines import MAX_WORDS, headline, interval_text
from reports.wording.marks import marks
from tests.kit.changed import changed
from tests.kit.results_factory import Truth, concluded, make_plan, write_results
from tests.unit.test_study import study_of, write_points

pytestmark = pytest.mark.slow  # results of whole comparisons are composed

MAX_IN_ALL = 150
"""Words of a first screen with two candidates, all that is not behind a click."""
LONG = "gradients differ from the float64 reference (relative L2 0.5, tolerance 1e-05) in weight of conv1 and in 44 others"
KINDS = {
    "decided": Truth(ratios={"horovod-gloo": 0.93, "horovod-mpi": 0.92}, noise=0.005, drift=0.0),
    "undecided": Truth(ratios={"horovod-gloo": 1.01, "horovod-mpi": 1.0}, noise=0.1),
    "wrong": Truth(statuses={("horovod-mpi", n): "wrong" for n in range(3)}, message=LONG),
    "failed": Truth(statuses={("horovod-mpi", n): "failed" for n in range(3)}, message=LONG),
    "not quiet": Truth(
        ratios={"horovod-gloo": 0.8, "horovod-mpi": 0.7},
        loaded_rounds=range(3),
        noise=0.01,
        drift=0.0,
    ),
}
HEADLINES = {
    "decided": "Horovod over Gloo is 7.1% slower than DDP, Horovod over MPI 8.0% slower",
    "undecided": "Undecided against DDP: Horovod over MPI and Horovod over Gloo",
    "wrong": "Horovod over Gloo is 9.2% faster than DDP; Horovod over MPI computes wrongly",
    "failed": "Horovod over Gloo is 9.2% faster than DDP; Horovod over MPI failed",
    "not quiet": "Horovod over Gloo is 20% slower than DDP, Horovod over MPI 30% slower",
}


def words(text):
    return len(text.split())


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """By kind, the comparison or study and its first screen."""
    root = tmp_path_factory.mktemp("screens")
    conclusions = {
        kind: conclude(write_results(root / kind.replace(" ", "-"), truth=truth))
        for kind, truth in KINDS.items()
    }
    plan = study_of({"one": {"world_size": 1}, "two": {"world_size": 2}})
    truths = {
        "one": Truth(ratios={"horovod-gloo": 0.9}),
        "two": Truth(ratios={"horovod-gloo": 1.1}),
    }
    conclusions["study"] = conclude(write_points(root / "study", plan, truths))
    return {
        kind: (conclusion, first_screen(conclusion)) for kind, conclusion in conclusions.items()
    }


@pytest.fixture
def decided(shown):
    """The comparison whose differences are decided."""
    return shown["decided"][0]


@pytest.mark.parametrize("kind", [*KINDS, "study"])
def test_headline_and_first_screen_have_few_words(shown, kind):
    conclusion, screen = shown[kind]
    assert words(screen.headline) <= MAX_WORDS and screen.headline == conclusion.headline
    assert all(words(candidate.cause) <= MAX_CAUSE + 1 for candidate in screen.candidates), (
        "and the dots where it is cut"
    )
    rows = [
        f"{candidate.arm} {candidate.point} {candidate.verdict} {candidate.percent} {candidate.cause}"
        for candidate in screen.candidates
    ]
    marks = [f"{mark.name} {mark.word}" for mark in screen.marks]
    assert (
        words(" ".join([screen.headline, *rows, *marks, screen.compared, screen.next_step or ""]))
        <= MAX_IN_ALL
    )
    assert [mark.name for mark in screen.marks] == ["control", "quiet machine", "same work"]
    assert all(mark.explanation for mark in screen.marks)


def test_the_answer_comes_first_and_the_marks_say_what_weakens_it(shown):
    assert {kind: shown[kind][0].headline for kind in HEADLINES} == HEADLINES
    screens = {kind: screen for kind, (_, screen) in shown.items()}
    quiet = screens["not quiet"].marks[1]
    assert re.fullmatch(r"2\d% of blocks disturbed", quiet.word) and not quiet.ok
    assert [candidate.verdict for candidate in screens["wrong"].candidates] == ["faster", "wrong"]
    assert (
        screens["wrong"].candidates[1].cause == "failed the check of its values before it was timed"
    )
    assert screens["failed"].candidates[1].cause.startswith("gradients differ from the float64")
    assert re.search("should decide horovod-(gloo|mpi)$", screens["undecided"].next_step)
    assert (
        screens["decided"].next_step
        == "Stop here and keep ddp-gloo: more measuring should change no verdict"
    )


def test_a_headline_gives_no_interval_that_says_nothing(decided):
    """Two launches may have one from a millionth to a million."""
    result = next(result for result in decided.results if result.role == "candidate")
    assert interval_text(changed(result, ci_low=1e-6, ci_high=1e6)) == ""
    assert (
        interval_text(changed(result, ci_low=0.983, ci_high=1.03))
        == "between 1.7% slower and 3.0% faster"
    )


def changed_results(comparison, role, **changes):
    return [
        changed(result, **changes) if result.role == role else result
        for result in comparison.results
    ]


def test_a_finding_claims_no_more_than_the_headline_where_the_control_is_too_wide(decided):
    results = changed_results(decided, "candidate", is_unconfirmed=True)
    lines = findings(results, decided.arms, make_plan())
    assert lines and all(" looks " in line for line in lines)
    assert " looks " in headline(changed(decided, results=results))


@pytest.mark.parametrize(
    ("changes", "next_step"),
    [
        (
            {"more_range": None, "more_minutes": None},
            "Stop here: not even a day of measuring would decide [a-z-]+",
        ),
        (
            {
                "more_minutes": 900.0,
                "more_range": (420.0, None),
                "ci_low": 0.95,
                "ci_high": 1.075,
            },
            r"Keep ddp-gloo: to decide [a-z-]+ would take about 15 hours more of measuring"
            r" \(7 hours to more than a day\)",
        ),
    ],
)
def test_who_would_measure_for_hours_is_told_what_there_is_to_win(shown, changes, next_step):
    """It said "About 15 hours more of measuring" of a difference of 0.8%."""
    undecided, _ = shown["undecided"]
    results = changed_results(undecided, "candidate", **changes)
    assert re.fullmatch(next_step, first_screen(changed(undecided, results=results)).next_step)


def test_the_next_step_says_stop_where_all_are_equal(decided):
    equal = [changed(one, verdict="equivalent") for one in decided.results]
    tied = changed(decided, results=equal, fastest=[arm.name for arm in decided.arms])
    assert first_screen(tied).next_step.startswith("Stop here and keep ddp-gloo")


def test_the_headline_of_a_training_says_who_steps_faster(decided):
    """It said who converges and reaches the target, and left speed to the lines below."""
    names = [arm.name for arm in decided.arms if arm.role != "control"]
    training = TrainingSummary(
        settings=TrainingSettings(epochs=1),
        reference=decided.baseline,
        baseline=decided.baseline,
        confidence=0.95,
        arms=[ArmTraining(name=name, seeds=3, convergence="same") for name in names],
    )
    assert headline(changed(decided, training=training)).endswith(
        "; horovod-gloo steps 7.1% slower than ddp-gloo, horovod-mpi 8.0% slower"
    )


def test_an_arm_without_terms_is_named_beside_them(decided):
    """fsdp2 was missing from the table without a word."""
    assert "Not in the table" not in caption(
        "terms", decided
    ) and "the same loop without any exchange" in caption("terms", decided)
    arms = [
        changed(arm, step_terms_s=None) if arm.name == "horovod-mpi" else arm
        for arm in decided.arms
    ]
    assert "Not in the table: horovod-mpi, which took no steps without exchange" in caption(
        "terms", changed(decided, arms=arms)
    )


def test_library_and_transport_that_differ_together_are_not_told_apart(decided):
    """The script got the credit alone."""
    equality = Equality(loss_margin=0.02, sentence="equal")
    rows = [
        Difference(field=field, values={"a": ours, "b": other}, sentence=field, severity="speed")
        for field, ours, other in [("library", "ddp", "horovod"), ("transport", "nccl", "mpi")]
    ]
    both, alone = (
        first_screen(changed(decided, equality=equality, differences=shown))
        for shown in (rows, rows[:1])
    )
    assert both.next_step == "Run both with the same transport to separate library from transport"
    assert both.marks[2].word == "2 unrequested differences"
    assert alone.next_step.startswith("Stop ") and alone.marks[2].word == "1 unrequested difference"


@pytest.mark.slow
def test_work_is_not_the_same_where_no_gradients_were_compared(tmp_path):
    """An arm whose exchange is no mean passes the gate without a comparison."""
    comparison = concluded(tmp_path)
    arm = comparison.arm("horovod-gloo")
    arm.parity = arm.parity.model_copy(update={"gradient_error": None})
    mark = marks(comparison)[-1]
    assert (mark.word, mark.ok) == ("not checked", False)
    assert "Gradients were not checked of: horovod-gloo" in mark.explanation
