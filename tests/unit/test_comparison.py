"""From stored records to conclusions: known ratios recovered, failures kept as rows, a bad control
believed before the rest."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from measurement.errors import RecordError
from measurement.records.results import ResultsFolder
from reports import conclude
from reports.compose_comparison import compare
from reports.conclusions.steps import Steps, read_steps, tabulate_blocks, total_tables
from reports.wording.disturbances import page_fault_lines
from reports.wording.first_screen import first_screen
from tests.kit.changed import changed
from tests.kit.results_factory import Truth, concluded, make_plan, write_results
from tests.unit.test_step_terms import steps_by_hand

pytestmark = pytest.mark.slow  # results of whole comparisons are composed

EQUAL = {"horovod-gloo": 1.0}
STILL = {"noise": 0.002, "drift": 0.0}


def verdicts(result):
    return result.verdict_alone, result.verdict, result.withheld_by


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Two candidates, 10% faster and 10% slower; everything ok.

    For tests that change what they have read, and no file."""
    return write_results(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def sound(stored):
    return conclude(stored)


def composed(folder, records):
    """What these records of a folder come to."""
    return compare(folder.read_plan(), records, read_steps(folder, records))


def first_launch(records):
    return [record for record in records if record.launch == 0]


def test_known_ratios_are_recovered(sound):
    faster, slower = sound.result("horovod-gloo"), sound.result("horovod-mpi")
    assert (faster.verdict, slower.verdict) == ("faster", "slower")
    assert faster.ci_low < 1.1 < faster.ci_high
    assert slower.ci_low < 0.9 < slower.ci_high
    assert (faster.launches, faster.pairs) == (3, 36)
    assert (sound.fastest, sound.warnings) == (["horovod-gloo"], [])


def test_the_headline_answers_the_plans_question_and_tells_of_the_others_in_brief(tmp_path):
    """Though another candidate is faster."""
    ratios = {"ddp-fp16": 1.2, "horovod-gloo": 1.1, "horovod-mpi": 0.9, "naive": 1.0}
    folder = write_results(tmp_path, ratios=ratios, noise=0.01, floor=False)
    comparison = conclude(folder)
    first, second = comparison.findings[:2]
    assert first.startswith("horovod-gloo ") and second.startswith("horovod-mpi ")
    assert comparison.headline.startswith("horovod-gloo is ")
    assert re.search(r", ddp-fp16 2\d% faster.*: naive$", comparison.headline)
    folder.write_plan(changed(folder.read_plan(), question="naive"))
    assert "naive" in conclude(folder).findings[0]


def test_pages_that_steps_fault_in_are_told_by_launch_where_they_matter(stored):
    records = stored.records()
    by_launch = {"ddp-gloo": [120, 9000, 300], "horovod-gloo": [0, 0, 0]}
    for record in records:
        for block in record.blocks if record.arm in by_launch else []:
            block.page_faults = by_launch[record.arm][record.launch] * block.steps
    comparison = composed(stored, records)
    assert comparison.arm("ddp-gloo").page_faults == pytest.approx(9000)
    assert comparison.arm("horovod-mpi").page_faults is None
    (line,) = [line for line in comparison.warnings if "Page faults per step" in line]
    assert "kernel: ddp-gloo up to 9,000, horovod-gloo up to 0. They" in line
    assert page_fault_lines(comparison.arms, freed_memory="keep") == []


def test_a_verdict_that_hangs_on_a_few_stalls_is_withheld(tmp_path):
    """One step in 500 that takes 0.2 s more: nine in all, which make all of the difference."""
    stalls = {"stalls": {"horovod-gloo": (0.002, 0.2)}, **STILL, "seed": 2}
    lasting = {"rounds": 40, "block_steps": 20, "launches": 5, "floor": False}
    comparison = concluded(tmp_path, ratios={"horovod-gloo": 0.997}, **stalls, **lasting)
    result = comparison.result("horovod-gloo")
    assert comparison.arm("horovod-gloo").stalls.count == 9
    assert verdicts(result) == ("slower", "undecided", "stalls")
    assert result.ratio_without_stalls == pytest.approx(0.997, abs=0.002)
    assert "the result depends on" in comparison.findings[0]
    assert comparison.undecided == [], "measuring on would not decide it soon"


def test_load_that_hurts_one_arm_more_gives_no_verdict_that_the_quiet_rounds_contradict(tmp_path):
    load = {"loaded_rounds": range(13), "slowed_by_load": {"horovod-gloo": 2.0}, "noise": 0.01}
    comparison = concluded(
        tmp_path, ratios=EQUAL, **STILL | load, rounds=40, launches=5, local_every=0
    )
    result = comparison.result("horovod-gloo")
    assert verdicts(result) == ("slower", "undecided", "load")
    assert comparison.warnings[0].startswith(
        "The machine was not quiet: in 32% of the blocks others took 10% or more of the ranks' cores"
    )
    assert (
        comparison.headline
        == "Undecided whether Horovod or DDP is faster: the machine was not quiet"
    )
    assert comparison.arm("ddp-gloo").load.disturbed_share == pytest.approx(13 / 40, abs=0.03)


@pytest.mark.parametrize(("rounds", "share"), [([], 0.0), (range(13), 13 / 40)])
def test_the_error_of_a_short_blocks_load_disturbs_nothing_and_hides_no_load(
    tmp_path, rounds, share
):
    """Ticks of 4 ms, two cores and blocks of 0.15 s give such errors: a tenth of quiet blocks is
    above a tenth of the cores."""
    comparison = concluded(tmp_path, load_error=0.08, loaded_rounds=rounds, rounds=40, floor=False)
    load = comparison.arm("horovod-gloo").load
    assert load.disturbed_share == pytest.approx(share, abs=0.03)
    assert any("not quiet" in line for line in comparison.warnings) == bool(share)


def test_one_disturbed_round_in_forty_changes_nothing(tmp_path):
    comparison = concluded(tmp_path, loaded_rounds=[3], rounds=40, floor=False)
    assert not any("not quiet" in line for line in comparison.warnings)
    assert not any(result.withheld_by == "load" for result in comparison.results)


def test_a_second_look_is_told_and_its_interval_wider(stored, sound):
    records = stored.records()
    manifest = changed(stored.read_manifest(), looks=[2, 3])
    second = compare(stored.read_plan(), records, read_steps(stored, records), manifest=manifest)
    assert "Interim analyses: 2, after 2, 3 launches" in " ".join(second.warnings)
    assert second.result("horovod-gloo").ci_low < sound.result("horovod-gloo").ci_low


def test_an_arm_that_failed_once_uses_its_other_launches(tmp_path):
    comparison = concluded(tmp_path, statuses={("horovod-gloo", 1): "timeout"})
    arm, result = comparison.arm("horovod-gloo"), comparison.result("horovod-gloo")
    assert (arm.status, arm.launches) == ("timeout", 2)
    assert (result.launches, result.pairs) == (2, 24)
    assert "horovod-gloo ran out of time in 1 launch; the others count" in comparison.warnings


def test_an_arm_that_was_wrong_once_has_no_timing_at_all(tmp_path):
    comparison = concluded(tmp_path, statuses={("horovod-mpi", 1): "wrong"})
    arm = comparison.arm("horovod-mpi")
    assert (arm.status, arm.launches, arm.throughput_per_s) == ("wrong", 0, None)
    assert comparison.result("horovod-mpi").throughput_ratio is None
    assert "conv1" in arm.parity.failures[0]


def test_a_failing_control_comes_first_and_demotes_smaller_claims(tmp_path):
    ratios = {"horovod-gloo": 1.07, "horovod-mpi": 1.5}
    comparison = concluded(tmp_path, ratios=ratios, control_ratio=1.06, noise=0.01, floor=False)
    assert comparison.control.startswith("The A/A control failed: ddp-gloo against itself differs")
    smaller = comparison.result("horovod-gloo")
    assert smaller.ci_low > 1 and smaller.more_minutes is None
    assert smaller.verdict == "undecided"
    assert "'faster', but the control deviates" in smaller.note
    assert comparison.result("horovod-mpi").verdict == "faster"


def test_a_wide_control_leaves_unconfirmed_what_is_not_beyond_it_and_says_how_long_to_go_on(
    tmp_path,
):
    """Whatever was claimed, it said "too wide to confirm it" and "measure longer"."""
    truth = Truth(ratios={"horovod-gloo": 0.6, "horovod-mpi": 0.2}, launch_noise=0.15, drift=0.0)
    comparison = concluded(tmp_path, truth=truth)
    near, far = (comparison.result(name) for name in truth.ratios)
    assert (near.verdict, near.is_unconfirmed) == ("slower", True)
    assert near.more_minutes > 0 and near.note == "the control's interval is too wide to confirm it"
    assert (far.verdict, far.is_unconfirmed, far.more_minutes) == ("slower", False, None)
    screen = first_screen(comparison)
    assert screen.marks[0].word == "too wide"
    assert re.match(
        r"Horovod over Gloo looks \d+% slower than DDP, Horovod over MPI is \d+% slower;",
        screen.headline,
    )
    assert re.fullmatch(
        r"About \d+ minutes? more of measuring \(.*\) should narrow the control, which is too wide to"
        " confirm horovod-gloo",
        screen.next_step,
    )
    alone = replace(truth, ratios={"horovod-mpi": 0.2})
    mark = first_screen(concluded(tmp_path / "alone", truth=alone)).marks[0]
    assert re.fullmatch(r"equal within \d+%", mark.word)


def test_an_interrupted_launch_counts_as_far_as_it_got(tmp_path):
    cut = {(arm, 2): 5 for arm in make_plan().compared_arms()}
    comparison = concluded(tmp_path, cut=cut)
    assert comparison.result("horovod-gloo").pairs == 12 + 12 + 5
    counts = "was interrupted; what it had measured counts"
    assert f"ddp-gloo {counts}" in comparison.warnings


def test_a_block_that_a_rank_did_not_finish_is_left_out(stored):
    records = stored.records()
    steps = raw_steps(stored, records)
    last = steps.query("arm == 'horovod-gloo' and launch == 2 and rank == 1").index[-1]
    comparison = compare(stored.read_plan(), records, Steps.of(steps.drop(index=last)))
    assert comparison.result("horovod-gloo").pairs == 35
    assert comparison.result("horovod-mpi").pairs == 36


def test_sequential_mode_pairs_whole_launches(tmp_path):
    folder = write_results(tmp_path, mode="sequential", launches=5, noise=0.01)
    result = conclude(folder).result("horovod-gloo")
    assert (result.launches, result.pairs) == (5, 5)
    assert result.ci_low < 1.1 < result.ci_high
    assert conclude(folder).measured_minutes == pytest.approx(5 * 5), "four arms and the floor"


def test_parts_of_a_block_make_the_whole(stored):
    """Steps are read in parts, which end anywhere."""
    records = first_launch(stored.records())
    raw, whole = raw_steps(stored, records), read_steps(stored, records)
    starts = range(0, len(raw), 61)
    parts = Steps.joined([Steps.of(raw.iloc[start : start + 61]) for start in starts])
    pd.testing.assert_frame_equal(parts.rank_blocks, whole.rank_blocks)
    pd.testing.assert_frame_equal(parts.slowest, whole.slowest)


def test_records_of_a_plan_that_had_more_keys_have_the_digest_of_their_manifest(stored):
    """Records of any other plan are refused."""
    plan, steps = stored.read_plan(), Steps.joined([])
    records = [changed(record, plan_digest="of before") for record in stored.records()]
    manifest = changed(stored.read_manifest(), plan_digest="of before")
    with pytest.raises(RecordError, match="of another plan"):
        compare(plan, records, steps)
    assert compare(plan, records, steps, manifest=manifest).results


def test_a_folder_without_records_is_refused(tmp_path):
    folder = ResultsFolder(tmp_path)
    with pytest.raises(RecordError, match="holds no plan"):
        conclude(folder)
    folder.write_plan(make_plan())
    with pytest.raises(RecordError, match="holds no launch record yet"):
        conclude(folder)


def raw_steps(folder, records):
    return pd.concat(
        [folder.steps(record).assign(launch=record.launch, arm=record.arm) for record in records],
        ignore_index=True,
    )


BY_ROUND = "arm rank round step samples step_s"


def test_blocks_and_pairs_are_those_by_hand():
    """Two ranks, one block of two steps each: the baseline's slowest rank takes 4 s, the
    candidate's 2 s, for 40 samples."""
    taken = {
        ("ddp-gloo", 0): (1.0, 1.0),
        ("ddp-gloo", 1): (1.0, 3.0),
        ("horovod-gloo", 0): (1.0, 1.0),
        ("horovod-gloo", 1): (0.5, 0.5),
    }
    rows = [
        (arm, rank, 0, step, 10, seconds)
        for (arm, rank), times in taken.items()
        for step, seconds in enumerate(times)
    ]
    blocks = tabulate_blocks(steps_by_hand(rows, columns=BY_ROUND))
    assert blocks["block_s"].tolist() == [4.0, 2.0]
    assert blocks["throughput_per_s"].tolist() == [10.0, 20.0]
    assert steps_by_hand(rows[::-1], columns=BY_ROUND).slowest["rank"].tolist() == [0, 1, 0, 0], (
        "of ranks that take equally long the first"
    )


def test_a_candidate_is_held_against_both_copies_of_the_baseline():
    nan = math.nan
    times = {
        "horovod-gloo": (1.0, 1.0, nan),
        "ddp-gloo": (4.0, 4.0, 4.0),
        "ddp-gloo-control": (1.0, nan, 1.0),
    }
    rows = [
        (arm, 0, number, 0, 8, seconds)
        for arm, by_round in times.items()
        for number, seconds in enumerate(by_round)
        if not math.isnan(seconds)
    ]
    blocks = tabulate_blocks(steps_by_hand(rows, columns=BY_ROUND))
    (table,) = total_tables(
        make_plan(), blocks, [["horovod-gloo", "ddp-gloo", "ddp-gloo-control"]]
    )[0]
    expected = [
        [[8, 1], [8, 4], [8, 1]],
        [[8, 1], [8, 4], [nan, nan]],
        [[nan, nan], [8, 4], [8, 1]],
    ]
    assert np.array_equal(table, expected, equal_nan=True)


def test_blocks_with_a_skipped_step_do_not_count(stored):
    """A step that the optimizer does not take is shorter: one arm's overflows would make it
    faster."""
    records, arm = stored.records(), "horovod-gloo"
    raw = raw_steps(stored, records)
    (first,) = [record for record in first_launch(records) if record.arm == arm]
    skipping = [block for block in first.blocks if block.kind == "sync"][:5]
    for block in skipping:
        block.skipped_steps = 2
    is_short = (
        (raw["arm"] == arm)
        & (raw["launch"] == 0)
        & raw["turn"].isin([block.turn for block in skipping])
    )
    raw.loc[is_short, [name for name in raw if name.endswith("_s")]] /= 100
    comparison = compare(stored.read_plan(), records, Steps.of(raw))
    assert comparison.arm(arm).skipped_steps == 10
    assert comparison.result(arm).throughput_ratio == pytest.approx(1.1, rel=0.05)
    assert "skipped 10 timed steps" in " ".join(comparison.warnings)
