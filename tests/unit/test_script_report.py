"""The report of scripts in every format: verdict first, then equality and the first differences;
work that differs has no verdict."""

from __future__ import annotations

import pytest

from measurement.records.record import LineUse
from reports import conclude, write_reports
from reports.wording.causes import short_cause
from runners.scripts.ab_command import not_shown
from tests.kit.changed import changed
from tests.kit.results_factory import Truth, on_terminal
from tests.kit.script_factory import (
    HOROVOD,
    Script,
    script_plan,
    script_records,
    write_script_results,
)

pytestmark = pytest.mark.slow  # results of whole comparisons are composed

SOUND, PORT = Script(configuration=HOROVOD), Script(rounding=1e-6)


def loss(launch, arm, step):
    return 0.5 + 2 / (1 + step) + 0.001 * ((launch * 7 + step) % 5)


def folder_of(root, scripts, *, truth=None, plan=None, change=None, losses=loss):
    plan = plan or script_plan()
    records = script_records(
        plan,
        truth or Truth(ratios={"new": 1.1}),
        lambda launch, arm: scripts.get(arm, SOUND),
        losses=losses,
    )
    for record in records if change else []:
        change(record)
    return write_script_results(root, plan, records)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    new = Script(rounding=1e-6, learning_rate=0.2, configuration={"threads.torch": 2})
    return write_reports(folder_of(tmp_path_factory.mktemp("scripts"), {"new": new}))


@pytest.mark.parametrize(("allow", "lines"), [([], 1), (["sampler"], 0)])
def test_another_training_that_first_steps_do_not_show_is_not_shown_to_be_alike(
    tmp_path, allow, lines
):
    late = {"new": Script(configuration={**HOROVOD, "sampler.drop_last": True})}
    found = conclude(folder_of(tmp_path, late, plan=script_plan(allow=allow)))
    assert found.equality.unequal == []
    told = not_shown(found, equal=True, most_slower=None)
    assert ["--allow sampler.drop_last" in line for line in told] == [True] * lines


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_the_verdict_then_equality_in_its_width(comparison, width):
    text = on_terminal(comparison, width=width)
    assert max(map(len, text.splitlines())) <= width
    first, then, last = map(
        text.index, ("new is 9", "new starts equal to old", "same work: not the same")
    )
    assert first < then < last


@pytest.mark.parametrize(
    ("library", "words"),
    [
        ({}, "ms more waiting for exchange per step, most by "),
        (HOROVOD, "ms more backward and exchange per step, most by "),
    ],
    ids=["same library", "another library"],
)
def test_a_line_that_waits_for_exchange_is_named_as_the_cause(tmp_path, library, words):
    line = {"place": "train.py:7", "text": "all_reduce(loss)"}

    def change(record):
        if record.arm == "new":
            for script in record.scripts:
                script.lines = [LineUse(**line, seconds=0.0051, exchange_s=0.005)]
            for rank in (rank for block in record.blocks for rank in block.ranks):
                rank.phases_s = [[*rest, exchange + 0.005] for *rest, exchange in rank.phases_s]

    comparison = conclude(
        folder_of(
            tmp_path,
            {"old": Script(), "old-control": Script(), "new": Script(configuration=library)},
            truth=Truth(ratios={"new": 1.0}),
            change=change,
        )
    )
    result, phases = comparison.result("new"), comparison.arm("new").step_phases_s
    assert f"{words}train.py:7 (all_reduce(loss))" in short_cause(result)
    assert ("exchange" in result.phase_differences_s) == (not library)
    assert sum(phase.value for phase in phases.values()) == pytest.approx(0.025, rel=0.2)


def test_work_that_may_differ_is_told_and_has_a_verdict(tmp_path):
    """Where it may not: ``test_own_work``, ``test_script_configuration``."""
    new = {"new": Script(configuration={**HOROVOD, "model.parameters": 660})}
    comparison = conclude(folder_of(tmp_path, new, plan=script_plan(allow=["model.parameters"])))
    assert comparison.result("new").verdict == "faster"
    assert "Work differs, and is allowed to: model.parameters" in comparison.warnings


@pytest.mark.parametrize(
    ("others", "sharded", "shown"),
    [
        (330, False, "Net of 330 trained parameters, 2 ranks"),
        (660, False, "scripts, 2 ranks"),
        (330, True, "scripts, 2 ranks"),
    ],
)
def test_the_model_is_what_is_trained_and_no_copy_of_it(tmp_path, others, sharded, shown):
    """With an average of the weights kept beside, it had twice the parameters."""

    def change(record):
        number = others if record.arm == "new" else 330
        for rank, report in zip(record.ranks, record.scripts, strict=True):
            rank.model = {"class": "Net", "parameters": number}
            report.sharded = sharded

    kept = Script(configuration={**HOROVOD, "model.parameters": 660})
    comparison = conclude(folder_of(tmp_path, {"new": kept}, change=change))
    assert shown in on_terminal(comparison)


def test_without_samples_iterations_are_compared(tmp_path):
    uncounted = Script(configuration=HOROVOD, samples=None, samples_from=None)
    comparison = conclude(folder_of(tmp_path, {"new": uncounted}))
    assert (comparison.sample_unit, comparison.result("new").verdict) == ("iterations", "faster")
    assert comparison.arm("old").throughput_per_s.value == pytest.approx(50, rel=0.3)


def test_gaps_starts_and_what_the_probe_could_not_see_are_told(tmp_path):
    def change(record):
        if record.arm == "new":
            record.script_starts = 3
            record.blocks[2] = changed(record.blocks[2], gaps=[(1, 2.0)])

    noted = {"new": Script(notes=["The optimizer is fused."])}
    comparison = conclude(folder_of(tmp_path, noted, change=change, losses=None))
    text = "\n".join(comparison.warnings)
    assert "checkpoints: new 3 of 2000 ms (median; the longest" in text
    assert "starts in one launch, at the most: new 3" in text
    assert "new: The optimizer is fused" in text


def test_a_rank_that_is_late_before_the_exchange_is_the_straggler(tmp_path):
    def change(record):
        if record.arm == "new":
            for block in record.blocks:
                block.ranks[1].phases_s = [
                    [wait + 0.004, forward, max(backward - 0.004, 0.0), *rest]
                    for wait, forward, backward, *rest in block.ranks[1].phases_s
                ]

    comparison = conclude(folder_of(tmp_path, {"new": PORT}, change=change))
    late = comparison.arm("new").by_rank
    assert (late.straggler.rank, late.straggler.phase) == (1, "data_wait")
    told = "Rank 1 on host1 is a straggler in new: beside other ranks and arms its own time is"
    assert told in "\n".join(comparison.warnings)


def test_files_that_scripts_write_elsewhere_and_trackers_that_are_offline_are_named(tmp_path):
    def change(record):
        is_new = record.arm == "new"
        files = [f"/x/{number}.pt" for number in range(20)] if is_new else ["/log.txt"]
        record.scripts[1].written_files = files
        record.scripts[0].trackers = ["wandb"]

    warnings = conclude(folder_of(tmp_path, {"new": PORT}, change=change)).warnings
    (warning,) = (line for line in warnings if line.startswith("Written outside the folder"))
    assert "command: /x/0.pt, /x/1.pt" in warning and "/x/17.pt (new); /log.txt (old)." in warning
    assert "Told to stay offline: wandb; --trackers on leaves them as they are" in warnings
