"""From stored records to conclusions: known ratios recovered, failures kept as rows, a bad control believed before the rest."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest

from measurement.errors import RecordError
from measurement.records.record import Failure
from measurement.records.results import ResultsFolder
from reports import conclude, make_report
from reports.compose_comparison import compare
from reports.conclusions.blocks import (
    pair_blocks,
    tabulate_blocks,
    total_tables,
)
from reports.conclusions.evidence import measured_minutes
from reports.conclusions.steps import Steps, read_steps
from reports.wording.disturbances import page_fault_lines, restart_lines
from reports.wording.headlines import headline
from tests.kit.results_factory import Truth, make_plan, write_results


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Two candidates, 10% faster and 10% slower; everything ok. For tests that change what they have read, and no file."""
    return write_results(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def sound(stored):
    return conclude(stored)


@pytest.mark.slow
def test_known_ratios_are_recovered(sound):
    faster, slower = sound.result("horovod-gloo"), sound.result("horovod-mpi")
    assert (faster.verdict, slower.verdict) == ("faster", "slower")
    assert faster.ci_low < 1.1 < faster.ci_high
    assert slower.ci_low < 0.9 < slower.ci_high
    assert (faster.launches, faster.pairs, faster.world_size, faster.hosts) == (3, 36, 2, ["host1"])


def test_the_headline_names_the_fastest_with_its_figures(sound):
    faster = sound.result("horovod-gloo")
    percent = f"{faster.throughput_ratio - 1:.1%}"
    bounds = f"95% interval {faster.ci_low:.3f} to {faster.ci_high:.3f}, one long run {faster.run_low:.3f} to {faster.run_high:.3f}"
    figures = f"ratio {faster.throughput_ratio:.3f}, {bounds}, 3 launches, 36 pairs"
    slower = sound.result("horovod-mpi").throughput_ratio
    assert sound.headline == f"Horovod over Gloo is {percent} faster than DDP, over MPI {1 - slower:.1%} slower"
    assert sound.findings[0].startswith(f"horovod-gloo is {percent} faster than ddp-gloo ({figures})")
    assert [line.split()[0] for line in sound.findings[:2]] == ["horovod-gloo", "horovod-mpi"]
    assert (sound.fastest, sound.findings[2:]) == (
        ["horovod-gloo"],
        ["Fastest: horovod-gloo, shown against every other arm measured"],
    )
    assert sound.control.startswith("A/A control: ddp-gloo against itself comes out equal")
    assert sound.warnings == []


@pytest.mark.slow
def test_the_headline_answers_the_plans_question_and_tells_of_the_others_in_brief(tmp_path):
    """Though another candidate is faster."""
    names = ["ddp-fp16", "horovod-gloo", "horovod-mpi", "naive"]
    truth = Truth(ratios=dict(zip(names, (1.2, 1.1, 0.9, 1.0), strict=True)), noise=0.01)
    folder = write_results(tmp_path, truth=truth, plan=make_plan(names, floor=False))
    found = conclude(folder)
    horovods = ["horovod-gloo", "horovod-mpi"]
    assert [line.split()[0] for line in found.findings[:2]] == horovods
    fp16 = found.result("ddp-fp16").throughput_ratio
    assert found.headline.startswith("horovod-gloo is ") and f", ddp-fp16 {fp16 - 1:.0%} faster" in found.headline
    assert found.headline.endswith(": naive")
    records = folder.records()
    asked = compare(folder.read_plan().model_copy(update={"question": "naive"}), records, read_steps(folder, records))
    assert asked.findings[0].split()[0] == "naive" or asked.findings[0].startswith("Undecided whether naive")


@pytest.mark.parametrize("name", ["markdown", "html"])
def test_throughputs_that_need_not_divide_to_the_ratio_are_explained_where_they_stand(sound, name):
    assert sound.result("horovod-gloo").note is None
    assert b"so the throughputs need not divide to it" in make_report(name).render(sound)


@pytest.mark.slow
def test_ranks_that_share_cores_are_told_of_first(stored):
    records = [record for record in stored.records() if record.launch == 0]
    for record in records:
        record.ranks = [rank.model_copy(update={"affinity": [0], "device": "cpu"}) for rank in record.ranks]
    found = compare(stored.read_plan(), records, read_steps(stored, records))
    assert found.warnings[0].startswith("2 ranks share 1 core: each also waits for its turn on a core")


def test_batches_that_ended_are_told(sound):
    arms = [arm.model_copy(update={"restarts": 3 if arm.name == "horovod-gloo" else 0}) for arm in sound.arms]
    assert restart_lines(sound.arms) == []
    assert restart_lines(arms) == [
        "the workload's batches ended in timed steps and were restarted, as at the end of an epoch: 3 times in horovod-gloo"
    ]


@pytest.mark.slow
def test_pages_that_steps_fault_in_are_told_by_launch_where_they_matter(stored):
    records = stored.records()
    by_launch = {"ddp-gloo": [120, 9000, 300], "horovod-gloo": [0, 0, 0]}
    for record in records:
        for block in record.blocks if record.arm in by_launch else []:
            block.page_faults = by_launch[record.arm][record.launch] * block.steps
    found = compare(stored.read_plan(), records, read_steps(stored, records))
    figures = found.arm("ddp-gloo").page_faults
    assert (figures.fewest, figures.most) == (120, 9000)
    assert figures.per_step == pytest.approx(3140)
    assert found.arm("horovod-mpi").page_faults is None
    (line,) = [line for line in found.warnings if "Page faults per step" in line]
    assert found.remedies == [line]
    assert "kernel: ddp-gloo 120 to 9,000, horovod-gloo 0. They" in line
    assert page_fault_lines(found.arms, freed_memory="keep") == []
    longer = [arm.model_copy(update={"step_time_s": {"p50": 10.0}}) for arm in found.arms]
    assert page_fault_lines(longer, freed_memory="return") == []


@pytest.mark.slow
def test_throughput_is_samples_of_all_ranks_over_the_slowest_ranks_time(tmp_path):
    found = conclude(write_results(tmp_path, truth=Truth(drift=0.0, noise=0.01)))
    arm = found.arm("ddp-gloo")
    assert arm.throughput_per_s.value == pytest.approx(2 * 32 / 0.02, rel=0.02)
    assert arm.step_time_s["p50"] == pytest.approx(0.02, rel=0.02)
    assert list(arm.step_time_s) == ["p5", "p25", "p50", "p75", "p95"]
    assert sum(arm.phases_s.values()) == pytest.approx(arm.step_time_s["p50"], rel=1e-6)


def test_exposed_communication_is_the_step_time_that_local_blocks_save(sound):
    for arm in sound.arms:
        assert arm.exposed_exchange_s.value == pytest.approx(0.004, abs=0.002)
        assert arm.exposed_exchange_s.ci_low <= arm.exposed_exchange_s.value <= arm.exposed_exchange_s.ci_high


def test_arms_carry_what_they_are(sound):
    arm = sound.arm("horovod-mpi")
    assert (arm.role, arm.backend, arm.transport, arm.launcher) == ("candidate", "horovod", "mpi", "horovodrun")
    assert arm.options == {"compression": "none"}
    assert arm.described["horovod"] == "0.28.1"
    assert arm.peak_memory_bytes == 401 * 2**20
    assert arm.parity.passed
    assert (arm.scaling_efficiency, arm.scaling_baseline) == (None, None)
    assert (sound.sample_unit, sound.global_batch_size, sound.measured_minutes) == ("images", 64, 3.0)


@pytest.fixture(scope="module")
def with_inputs(tmp_path_factory):
    """DDP alone, and beside Horovod: the input takes half of DDP's step, a fifth of Horovod's."""
    truth = Truth(ratios={"horovod-gloo": 1.1, "ddp-gloo-synthetic": 2.0, "horovod-gloo-synthetic": 1.1 / 0.8}, noise=0.01)
    found = []
    for names in (["ddp-gloo"], ["ddp-gloo", "horovod-gloo"]):
        plan = make_plan([*names[1:], *(f"{name}-synthetic" for name in names)], control=False)
        others = {f"{name}-synthetic": plan.arms[name].model_copy(update={"input": "synthetic"}) for name in names}
        plan = plan.model_copy(update={"arms": plan.arms | others})
        found.append(conclude(write_results(tmp_path_factory.mktemp("inputs"), truth=truth, plan=plan)))
    return found


@pytest.mark.slow
def test_what_the_input_takes_is_recovered_and_is_no_verdict(with_inputs):
    alone, both = with_inputs
    shares = {arm.name: arm.input_share for arm in both.arms if arm.input_share}
    assert [shares[name].value for name in ("ddp-gloo", "horovod-gloo")] == pytest.approx([0.5, 0.2], abs=0.02)
    assert all(share.ci_low < true < share.ci_high for share, true in zip(shares.values(), (0.5, 0.2), strict=True))
    assert [one.candidate for one in both.results] == both.fastest == ["horovod-gloo"]
    ddp, hvd = (f"{share.value:.0%}" for share in shares.values())
    assert both.headline.startswith("Horovod is ") and both.headline.endswith(f"; input: {hvd} to {ddp} of step time")
    assert not any(line.startswith("Fastest") for line in both.findings), "one candidate's finding says it already"
    failed = both.result("horovod-gloo").model_copy(update={"role": "control"})
    assert headline(both.model_copy(update={"results": [*both.results, failed]})).endswith("; what the input costs is undecided")
    assert alone.results == [] and alone.headline.startswith("Input: 50% of step time")
    figure = r"[0-9.]+ \([0-9.]+ to [0-9.]+\)"
    words = (
        rf"Input takes [0-9.]+% \([0-9.]+% to [0-9.]+%\) of a step under ddp-gloo, [0-9.]+ ms; the wait for batches is {figure} ms"
    )
    assert re.fullmatch(words, alone.findings[-1]), alone.findings[-1]
    for found in with_inputs:
        terms = {arm.name: arm.step_terms_s.library_overhead for arm in found.arms}
        assert {name for name, overhead in terms.items() if overhead is None} == {name for name in terms if "synthetic" in name}
        rows = {line for line in make_report("markdown").render(found).decode().splitlines() if "| other input |" in line}
        assert len(rows) == sum("synthetic" in name for name in terms)


@pytest.mark.slow
def test_same_against_same_is_not_called_different(tmp_path):
    calls = []
    truth, plan = Truth(ratios={"horovod-gloo": 1.0}), make_plan(["horovod-gloo"], rounds=8, block_steps=1, floor=False)
    for seed in range(4):
        folder = write_results(tmp_path / str(seed), truth=truth, plan=plan, seed=seed)
        calls += [result.verdict for result in conclude(folder).results]
    assert sum(call in ("faster", "slower") for call in calls) <= 1


@pytest.mark.slow
def test_stalls_are_counted_told_and_paid_for(tmp_path):
    """A step of 20 ms that takes 60 ms more every tenth time: 26 ms in the mean, 0.769 of the baseline."""
    truth = Truth(ratios={"horovod-gloo": 1.0}, stalls={"horovod-gloo": (0.1, 0.06)}, noise=0.01, drift=0.0)
    plan = make_plan(truth.ratios, rounds=40, block_steps=20, launches=5, floor=False)
    found = conclude(write_results(tmp_path, truth=truth, plan=plan))
    stalls, result = found.arm("horovod-gloo").stalls, found.result("horovod-gloo")
    assert stalls.count == pytest.approx(0.1 * 5 * 40 * 20, rel=0.15)
    assert (stalls.typical_s, stalls.share) == (pytest.approx(0.08, rel=0.03), pytest.approx(0.006 / 0.026, rel=0.15))
    assert found.arm("ddp-gloo").stalls.count == 0
    assert result.verdict == "slower" and result.ci_low < 20 / 26 < result.ci_high
    assert result.ratio_without_stalls == pytest.approx(1.0, abs=0.01)
    assert any(line.startswith(f"horovod-gloo stalled: {stalls.count} steps, ") for line in found.warnings)


@pytest.mark.slow
def test_a_verdict_that_hangs_on_a_few_stalls_is_withheld(tmp_path):
    """One step in 500 that takes 0.2 s more: nine in all, which make all of the difference."""
    truth = Truth(ratios={"horovod-gloo": 0.997}, stalls={"horovod-gloo": (0.002, 0.2)}, noise=0.002, drift=0.0)
    plan = make_plan(truth.ratios, rounds=40, block_steps=20, launches=5, floor=False)
    found = conclude(write_results(tmp_path, truth=truth, plan=plan, seed=2))
    result = found.result("horovod-gloo")
    assert found.arm("horovod-gloo").stalls.count == 9
    assert (result.verdict_alone, result.verdict, result.withheld_by) == ("slower", "undecided", "stalls")
    assert result.ratio_without_stalls == pytest.approx(0.997, abs=0.002)
    assert "the result depends on" in found.findings[0]
    assert found.undecided == [], "measuring on would not decide it soon"


@pytest.mark.slow
def test_load_that_hurts_one_arm_more_gives_no_verdict_that_the_quiet_rounds_contradict(tmp_path):
    truth = Truth(
        ratios={"horovod-gloo": 1.0}, loaded_rounds=range(13), slowed_by_load={"horovod-gloo": 2.0}, noise=0.01, drift=0.0
    )
    plan = make_plan(truth.ratios, rounds=40, launches=5, local_every=0)
    found = conclude(write_results(tmp_path, truth=truth, plan=plan))
    result = found.result("horovod-gloo")
    assert (result.verdict_alone, result.verdict, result.withheld_by) == ("slower", "undecided", "load")
    assert result.quiet_ratio == pytest.approx(1.0, abs=0.01)
    assert found.warnings[0].startswith(
        "The machine was not quiet: in 32% of the blocks others took 10% or more of the ranks' cores"
    )
    assert found.headline == "Undecided whether Horovod or DDP is faster: the machine was not quiet"
    assert found.arm("ddp-gloo").load.disturbed_share == pytest.approx(13 / 40, abs=0.03)


@pytest.mark.slow
def test_a_difference_that_the_quiet_rounds_show_too_is_said_on_a_loaded_machine(tmp_path):
    truth = Truth(ratios={"horovod-gloo": 0.9}, loaded_rounds=range(8), noise=0.01, drift=0.0)
    found = conclude(write_results(tmp_path, truth=truth, plan=make_plan(truth.ratios, rounds=40, launches=5, floor=False)))
    assert (found.result("horovod-gloo").verdict, found.result("horovod-gloo").withheld_by) == ("slower", None)
    assert found.headline == "Horovod is 10% slower than DDP", "load that changes nothing is a mark and no headline"
    assert found.warnings[0].startswith("The machine was not quiet")


@pytest.mark.slow
def test_one_disturbed_round_in_forty_changes_nothing(tmp_path):
    truth = Truth(loaded_rounds=[3])
    found = conclude(write_results(tmp_path, truth=truth, plan=make_plan(truth.ratios, rounds=40, floor=False)))
    assert not any("not quiet" in line for line in found.warnings)
    assert all(result.quiet_ratio is None for result in found.results)


@pytest.mark.slow
def test_a_second_look_is_told_and_its_interval_wider(stored, sound):
    records = stored.records()
    manifest = stored.read_manifest().model_copy(update={"looks": [2, 3]})
    second = compare(stored.read_plan(), records, read_steps(stored, records), manifest=manifest)
    assert any(line.startswith("Interim analyses: 2, after 2, 3 launches") for line in second.warnings)
    assert second.result("horovod-gloo").ci_low < sound.result("horovod-gloo").ci_low


@pytest.mark.slow
def test_failed_arms_are_rows_with_their_error(tmp_path):
    statuses = {("horovod-mpi", launch): status for launch, status in enumerate(["failed", "timeout", "failed"])}
    found = conclude(write_results(tmp_path, truth=Truth(statuses=statuses)))
    arm, result = found.arm("horovod-mpi"), found.result("horovod-mpi")
    assert (arm.status, arm.launches, arm.throughput_per_s, arm.exposed_exchange_s) == ("failed", 0, None, None)
    assert [(e.launch, e.status, e.ranks) for e in arm.errors] == [(0, "failed", [1]), (1, "timeout", [1]), (2, "failed", [1])]
    assert "RuntimeError" in arm.errors[0].log_tail["rank-1"]
    assert (result.throughput_ratio, result.verdict, result.pairs) == (None, "undecided", 0)
    assert "horovod-mpi is failed: rank 1 exited with code 1" in found.findings[1]
    assert found.result("horovod-gloo").verdict == "faster"
    assert found.undecided == []


@pytest.mark.slow
def test_an_arm_that_failed_once_uses_its_other_launches_and_one_that_was_wrong_once_has_no_timing_at_all(tmp_path):
    statuses = {("horovod-gloo", 1): "timeout", ("horovod-mpi", 1): "wrong"}
    found = conclude(write_results(tmp_path, truth=Truth(statuses=statuses)))
    assert (found.arm("horovod-gloo").status, found.arm("horovod-gloo").launches) == ("timeout", 2)
    assert (found.result("horovod-gloo").launches, found.result("horovod-gloo").pairs) == (2, 24)
    assert "horovod-gloo is timeout in 1 launch; the others count" in found.warnings
    arm = found.arm("horovod-mpi")
    assert (arm.status, arm.launches, arm.throughput_per_s, arm.step_time_s) == ("wrong", 0, None, {})
    assert found.result("horovod-mpi").throughput_ratio is None
    assert not arm.parity.passed
    assert "conv1" in arm.parity.failures[0]


@pytest.mark.slow
def test_without_a_baseline_nothing_is_claimed(tmp_path):
    statuses = {("ddp-gloo", launch): "failed" for launch in range(3)}
    found = conclude(write_results(tmp_path, truth=Truth(statuses=statuses)))
    assert {result.verdict for result in found.results} == {"undecided"}
    assert found.headline == "No comparison: ddp-gloo failed"
    assert found.arm("horovod-gloo").throughput_per_s is not None


@pytest.mark.slow
def test_an_arm_that_was_never_started_is_a_row_too(stored):
    plan, records = stored.read_plan(), [r for r in stored.records() if r.arm != "horovod-mpi" and r.launch == 0]
    found = compare(plan, records, read_steps(stored, records))
    assert found.arm("horovod-mpi").status == "not measured"
    assert [arm.name for arm in found.arms] == list(plan.compared_arms())


@pytest.mark.slow
def test_a_failing_control_comes_first_and_demotes_smaller_claims(tmp_path):
    truth = Truth(ratios={"horovod-gloo": 1.07, "horovod-mpi": 1.5}, control_ratio=1.06, noise=0.01)
    found = conclude(write_results(tmp_path, truth=truth))
    assert found.control.startswith("The A/A control failed: ddp-gloo against itself differs")
    assert found.result("horovod-gloo").ci_low > 1
    assert found.result("horovod-gloo").verdict == "undecided"
    assert "'faster', but the control deviates" in found.result("horovod-gloo").note
    assert found.result("horovod-gloo").more_minutes is None
    assert found.result("horovod-mpi").verdict == "faster"


@pytest.mark.slow
def test_no_control_is_said_and_one_launch_is_cautioned(tmp_path):
    found = conclude(write_results(tmp_path, plan=make_plan(control=False, launches=1)))
    assert "No A/A control was run" in found.control
    assert all(result.role == "candidate" for result in found.results)
    assert any("the variance between launches is unknown" in line for line in found.warnings)


@pytest.mark.slow
def test_an_interrupted_launch_counts_as_far_as_it_got(tmp_path):
    """One arm's launches never came to the gate."""
    folder = write_results(tmp_path, truth=Truth(cut={(arm, 2): 5 for arm in make_plan().compared_arms()}))
    for record in folder.records():
        if record.arm == "horovod-mpi":
            folder.write_record(record.model_copy(update={"parity": None}))
    found = conclude(folder)
    assert found.result("horovod-gloo").pairs == 12 + 12 + 5
    counts = "was interrupted; what it had measured counts"
    assert f"ddp-gloo {counts}" in found.warnings
    assert f"horovod-mpi {counts}, though no launch of it came to the parity gate" in found.warnings


@pytest.mark.slow
def test_a_block_that_a_rank_did_not_finish_is_left_out(stored):
    records = stored.records()
    steps = raw_steps(stored, records)
    last = (steps["arm"] == "horovod-gloo") & (steps["launch"] == 2) & (steps["rank"] == 1)
    steps = steps.drop(index=steps[last].index[-1])
    found = compare(stored.read_plan(), records, Steps.of(steps))
    assert found.result("horovod-gloo").pairs == 35
    assert found.result("horovod-mpi").pairs == 36


@pytest.mark.slow
def test_undecided_says_how_much_longer(tmp_path):
    truth = Truth(ratios={"horovod-gloo": 1.06}, noise=0.15)
    found = conclude(write_results(tmp_path, truth=truth, plan=make_plan(["horovod-gloo"], rounds=6, floor=False)))
    result = found.result("horovod-gloo")
    assert result.verdict == "undecided"
    assert result.more_minutes > 0
    instead = r": \d+ launch(es)? more of 6 rounds(, or as many with \d+ rounds each|, while longer launches would not)"
    assert re.search(r"; about \d+ minutes? more of measuring \(\d+ minutes? to .+\) should decide" + instead, found.findings[0])
    assert result.more_launches > 0 and 0 <= result.between_share <= 1
    assert found.undecided == [result]


@pytest.mark.slow
def test_sequential_mode_pairs_whole_launches(tmp_path):
    plan = make_plan(mode="sequential", launches=5)
    folder = write_results(tmp_path, plan=plan, truth=Truth(noise=0.01))
    found = conclude(folder)
    result = found.result("horovod-gloo")
    assert (result.launches, result.pairs) == (5, 5)
    assert result.ci_low < 1.1 < result.ci_high
    assert measured_minutes(plan, folder.records()) == pytest.approx(5 * 5), "four arms and the floor"


@pytest.mark.slow
def test_the_order_of_records_and_steps_does_not_matter(stored, sound):
    plan, records = stored.read_plan(), stored.records()
    shuffled = raw_steps(stored, records).sample(frac=1, random_state=3).reset_index(drop=True)
    beside = {"host_use": stored.host_use(records), "manifest": stored.read_manifest()}
    assert compare(plan, records[::-1], Steps.of(shuffled), **beside) == sound


@pytest.mark.slow
def test_parts_of_a_block_make_the_whole(stored):
    """Steps are read in parts, which end anywhere."""
    records = [record for record in stored.records() if record.launch == 0]
    raw, whole = raw_steps(stored, records), read_steps(stored, records)
    parts = Steps.joined([Steps.of(raw.iloc[start : start + 61]) for start in range(0, len(raw), 61)])
    pd.testing.assert_frame_equal(parts.rank_blocks, whole.rank_blocks)
    pd.testing.assert_frame_equal(parts.slowest, whole.slowest)


def test_of_ranks_that_take_equally_long_the_first_counts_as_the_slowest():
    rows = [(0, "ddp", rank, 0, 0, 0, "sync", 0, 1, 1.0) for rank in (2, 0, 1)]
    assert Steps.of(steps_by_hand(rows)).slowest["rank"].tolist() == [0]


def test_records_of_another_plan_are_refused(stored):
    with pytest.raises(RecordError, match="of another plan"):
        compare(make_plan(rounds=13), stored.records(), Steps.joined([]))


def test_records_of_a_plan_that_had_more_keys_have_the_digest_of_their_manifest(stored):
    records = [record.model_copy(update={"plan_digest": "of before"}) for record in stored.records()]
    manifest = stored.read_manifest().model_copy(update={"plan_digest": "of before"})
    with pytest.raises(RecordError, match="of another plan"):
        compare(stored.read_plan(), records, Steps.joined([]))
    assert compare(stored.read_plan(), records, Steps.joined([]), manifest=manifest).results


def test_a_folder_without_records_is_refused(tmp_path):
    folder = ResultsFolder(tmp_path)
    with pytest.raises(RecordError, match="holds no plan"):
        conclude(folder)
    folder.write_plan(make_plan())
    with pytest.raises(RecordError, match="holds no launch record yet"):
        conclude(folder)


def raw_steps(folder, records):
    return pd.concat([folder.steps(record).assign(launch=record.launch, arm=record.arm) for record in records], ignore_index=True)


def steps_by_hand(rows):
    names = ["launch", "arm", "rank", "turn", "round", "block", "kind", "step", "samples", "step_s"]
    table = pd.DataFrame(rows, columns=names)
    return table.assign(case=None, data_wait_s=0.0, forward_s=0.0, backward_s=table["step_s"], optimizer_s=0.0)


def test_blocks_and_pairs_by_hand():
    """Two ranks, one block of two steps each: the baseline's slowest rank takes 4 s, the candidate's 2 s, for 40 samples."""
    rows = [
        (0, arm, rank, turn, 0, 0, "sync", step, 10, seconds)
        for turn, arm, times in (
            (0, "ddp-gloo", {0: (1.0, 1.0), 1: (1.0, 3.0)}),
            (1, "horovod-gloo", {0: (1.0, 1.0), 1: (0.5, 0.5)}),
        )
        for rank in (0, 1)
        for step, seconds in enumerate(times[rank])
    ]
    blocks = tabulate_blocks(Steps.of(steps_by_hand(rows)))
    assert blocks["block_s"].tolist() == [4.0, 2.0]
    assert blocks["throughput_per_s"].tolist() == [10.0, 20.0]
    pairs = pair_blocks(make_plan(), blocks, "horovod-gloo")
    assert pairs["log_ratio"].tolist() == pytest.approx([math.log(2)])
    slowest = Steps.of(steps_by_hand(rows)).slowest
    assert slowest["step_s"].tolist() == [1.0, 3.0, 1.0, 1.0]
    assert slowest["rank"].tolist() == [0, 1, 0, 0]


def test_a_candidate_is_held_against_both_copies_of_the_baseline():
    times = {"ddp-gloo": (4.0, 4.0, 4.0), "ddp-gloo-control": (1.0, None, 1.0), "horovod-gloo": (1.0, 1.0, None)}
    rows = [
        (0, arm, 0, 3 * number + turn, number, number, "sync", 0, 8, seconds)
        for turn, (arm, by_round) in enumerate(times.items())
        for number, seconds in enumerate(by_round)
        if seconds is not None
    ]
    blocks = tabulate_blocks(Steps.of(steps_by_hand(rows)))
    pairs = pair_blocks(make_plan(), blocks, "horovod-gloo")
    assert pairs["round"].tolist() == [0, 1]
    assert pairs["log_ratio"].tolist() == pytest.approx([math.log(2), math.log(4)]), "8 and 2 per second make 4; 2 alone stays 2"
    (table,) = total_tables(make_plan(), blocks, [["horovod-gloo", "ddp-gloo", "ddp-gloo-control"]])[0]
    nan = math.nan
    expected = [[[8, 1], [8, 4], [8, 1]], [[8, 1], [8, 4], [nan, nan]], [[nan, nan], [8, 4], [8, 1]]]
    assert np.array_equal(table, expected, equal_nan=True)
    assert pair_blocks(make_plan(), blocks, "ddp-gloo-control")["log_ratio"].tolist() == pytest.approx([math.log(4)] * 2)
    without_baseline = blocks[blocks["arm"] != "ddp-gloo"]
    assert pair_blocks(make_plan(), without_baseline, "horovod-gloo").empty


@pytest.mark.slow
def test_candidates_are_held_against_each_other_and_ties_are_named(tmp_path):
    truth = Truth(ratios={"horovod-gloo": 1.1, "horovod-mpi": 1.1, "other-mpi": 1.02}, noise=0.01)
    found = conclude(write_results(tmp_path, truth=truth, plan=make_plan(truth.ratios, rounds=40, launches=5, floor=False)))
    assert sorted(found.fastest) == ["horovod-gloo", "horovod-mpi"]
    assert found.findings[-1].endswith("are tied")


@pytest.mark.slow
def test_steps_of_launches_that_are_not_ok_do_not_count(tmp_path):
    folder = write_results(tmp_path, truth=Truth(statuses={("horovod-gloo", 0): "failed", ("horovod-mpi", 2): "wrong"}))
    records = folder.records()
    timed = read_steps(folder, records).valid(records).slowest
    assert set(timed.loc[timed["arm"] == "horovod-gloo", "launch"]) == {1, 2}
    assert "horovod-mpi" not in set(timed["arm"])


@pytest.mark.slow
def test_where_every_arm_failed_after_some_blocks_there_is_still_a_conclusion(tmp_path):
    folder = write_results(tmp_path)
    for record in folder.records():
        folder.write_record(record.model_copy(update={"status": "failed", "error": Failure(message="rank 1 died")}))
    found = conclude(folder)
    assert {arm.status for arm in found.arms} == {"failed"}
    assert found.block_table["arm"] == []


@pytest.mark.slow
def test_blocks_with_a_skipped_step_do_not_count(stored):
    """A step that the optimizer does not take is shorter: one arm's overflows would make it faster."""
    records = stored.records()
    raw, arm = raw_steps(stored, records), "horovod-gloo"
    skipping = [block for record in records if record.arm == arm for block in record.blocks if block.kind == "sync"][:5]
    for block in skipping:
        block.skipped_steps = 2
    is_short = (raw["arm"] == arm) & raw["turn"].isin({block.turn for block in skipping}) & (raw["launch"] == 0)
    raw.loc[is_short, [name for name in raw if name.endswith("_s")]] /= 100
    found = compare(stored.read_plan(), records, Steps.of(raw))
    assert found.arm(arm).skipped_steps == 10
    assert found.result(arm).throughput_ratio == pytest.approx(1.1, rel=0.05)
    assert found.result(arm).pairs == 36 - 5
    assert any("skipped 10 timed steps" in line and "their blocks do not count" in line for line in found.warnings)
