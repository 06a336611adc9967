"""Whole comparisons on real ranks: every backend, both modes, resume, records and reports."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import pytest

from measurement.conditions.disturbing_variables import KEEP_FREED_MEMORY
from measurement.records.results import ResultsFolder
from runners.driver.progress import LaunchProgress
from tests.conftest import FORKED, REPOSITORY, needs_horovod, ringside_here
from tests.kit.comparisons import compare, compare_plan

pytestmark = pytest.mark.usefixtures("no_processes_left")

ALL_BATCHES = Path(__file__).parent / "plugins" / "all_batches.py"
HOROVOD = {
    "horovod-gloo": {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"},
    "horovod-mpi": {"backend": "horovod", "transport": "mpi", "launcher": "mpirun"},
}


@needs_horovod
def test_horovod_and_ddp_agree_with_the_reference_and_are_compared(tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", "1")  # an arm waits longer for its turn, and lives
    say, collects = LaunchProgress.say, {}
    monkeypatch.setattr(LaunchProgress, "say", lambda self, what: (collects.setdefault(what, gc.isenabled()), say(self, what)))
    ran = compare(tmp_path, arms={"ddp": "ddp", **HOROVOD})
    assert [is_on for what, is_on in collects.items() if "checking ddp" in what] == [False], "a search would fall into blocks"
    assert gc.isenabled()
    records = ran.records
    assert set(records) == {"ddp", *HOROVOD}
    for record in records.values():
        assert record.status == "ok", record.error
        assert record.parity.passed
        assert record.parity.gradient_error < 1e-5
        assert record.parity.samples_digest == records["ddp"].parity.samples_digest
        assert [block.kind for block in record.blocks].count("sync") == 3
        assert [block.kind for block in record.blocks].count("local") == 1
        assert [[*own] for own in record.rank_start_s] == [["interpreter", "imports", "rendezvous", "model"]] * 2
        assert [*record.stages_s] == ["start", "blocks", "gate", "end"]
        assert sum(record.stages_s.values()) <= record.launch_s + 0.01
        assert record.exit_codes == [0]
        assert [rank.world_size for rank in record.ranks] == [2, 2]
        assert not any(rank.environment.keys() & KEEP_FREED_MEMORY for rank in record.ranks), "a user's own run has none of them"
    for arm, controller in (("horovod-gloo", "gloo"), ("horovod-mpi", "mpi")):
        backend = records[arm].ranks[0].backend
        assert (backend["version"], backend["controller"], backend["transport"]) == ("0.28.1", controller, controller)
    assert all(arm in ran.done.stdout for arm in HOROVOD)
    assert not [line for line in ran.done.stdout.splitlines() if len(line.strip()) == 1], "no column is squeezed to letters"
    assert {arm["name"] for arm in ran.report["arms"]} == {"ddp", *HOROVOD}
    assert all((tmp_path / "out" / name).stat().st_size > 100 for name in ("report.html", "report.md", "report.csv"))


@needs_horovod
@pytest.mark.costly
def test_horovods_options_reach_the_library_and_pass_the_gate(tmp_path):
    def arm(transport="mpi", **options):
        return {"backend": "horovod", "transport": transport, "options": options}

    arms = {
        "fp16": arm(transport="gloo", op="Sum", compression="fp16", fusion_threshold_mb=1, cycle_time_ms=2.5, cache_capacity=0),
        "adasum": arm(op="Adasum"),
        "groups": arm(transport="gloo", num_groups=2, gradient_predivide_factor=2.0),
    }
    records = compare(tmp_path, arms=arms, micro_steps=2, measurement={"rounds": 1, "local_every": 1}).records
    kinds = {arm: [block.kind for block in record.blocks] for arm, record in records.items()}
    assert kinds["fp16"] == ["sync", "local"] and kinds["adasum"] == ["sync"], "Adasum has no step without exchange"
    fp16 = records["fp16"].ranks[0].backend
    assert (fp16["compression"], fp16["fusion_threshold_bytes"], fp16["cycle_time_ms"]) == ("fp16", 1 << 20, 2.5)
    assert fp16["backward_passes_per_step"] == 2
    assert 1e-6 < records["fp16"].parity.gradient_error < 2e-3
    assert "2 x the mean" in records["fp16"].parity.notes[0]
    assert "not compared" in records["adasum"].parity.notes[0]
    assert records["adasum"].parity.gradient_error is None


@pytest.mark.costly
def test_ddps_options_reach_the_library_and_one_process_may_take_the_place_of_all_ranks(tmp_path):
    """As ``dp`` does on GPUs: it trains on the batches of all of them, and its throughput counts all."""

    def arm(**options):
        return {"backend": "ddp", "options": options}

    arms = {
        "plain": "ddp",
        "buckets": arm(comm_hook="bf16", bucket_cap_mb=0.05, gradient_as_bucket_view=True, broadcast_buffers=False),
        "fp16": arm(comm_hook="fp16", static_graph=True, first_bucket_mb=0.05),
        "powersgd": arm(comm_hook="powersgd", bucket_cap_mb=100),
        "all": f"{ALL_BATCHES}:OneForAll",
        "server": f"{REPOSITORY / 'examples' / 'parameter_server.py'}:ParameterServer",
    }
    ran = compare(tmp_path, arms=arms, freed_memory="keep", measurement={"rounds": 1, "local_every": 1})
    plain, one, fp16 = (ran.records[arm] for arm in ("plain", "all", "fp16"))
    buckets = {arm: len(ran.records[arm].ranks[0].backend["bucket_sizes_bytes"]) for arm in ("plain", "fp16", "buckets")}
    assert plain.ranks[0].environment.items() >= KEEP_FREED_MEMORY.items()
    assert buckets.pop("buckets") > 1
    assert buckets == {"plain": 1, "fp16": 2}, "a first bucket of its own"
    assert max(plain.parity.gradient_error, ran.records["server"].parity.gradient_error) < 1e-5
    assert ran.records["server"].ranks[1].backend["transport"] == "gloo"
    assert 1e-6 < fp16.parity.gradient_error < 2e-3
    assert ran.records["powersgd"].parity.gradient_error is None
    assert [(record.status, record.world_size) for record in (plain, one)] == [("ok", 2), ("ok", 1)], ran.done.stdout
    assert {place.local_batch_size for place in one.ranks} == {2 * plain.ranks[0].local_batch_size}
    steps = [ran.folder.steps(record) for record in (plain, one)]
    a_step, of_one = (table.groupby(["turn", "step"])["samples"].sum().unique().tolist() for table in steps)
    assert a_step == of_one


@pytest.mark.costly
def test_single_spawned_and_synthetic(tmp_path):
    ran = compare(
        tmp_path,
        world_size=1,
        threads=1,
        workload="squeezenet1_1",
        workload_options={"image_size": 32, "num_classes": 2},
        local_batch_size=2,
        arms={"single": {"backend": "single", "launcher": FORKED}, "ddp": {"backend": "ddp", "launcher": "mpirun"}},
        baseline="single",
        measurement={"rounds": 1, "block_steps": 1, "warmup_steps": 0, "local_every": 0},
    )
    assert set(ran.statuses.values()) == {"ok"}
    one, other = (record.flops for record in ran.records.values())
    assert one == other and one.error is None and sum(one.by_operation.values()) > 1e6
    assert all(arm["resources"]["flops_per_s"]["value"] > 0 for arm in ran.report["arms"])


@pytest.mark.costly
def test_a_budget_of_minutes_makes_three_launches_at_least_and_is_spent_once(tmp_path):
    lengths = {"launches": None, "rounds": None, "local_every": 0, "minutes": 0.02}
    arms = {"ddp": "ddp", "other": {"backend": "ddp", "options": {"bucket_cap_mb": 1}}}
    ran = compare(tmp_path, arms=arms, world_size=1, measurement=lengths)
    records = ran.launches
    assert {launch for launch, _ in records} == {0, 1, 2}
    assert {len(record.blocks) for record in records.values()} == {4}
    assert all(record.launch_s > record.start_s for record in records.values())
    padded = {launch: {record.padding_bytes for (one, _), record in records.items() if one == launch} for launch in range(3)}
    assert {len(lengths) for lengths in padded.values()} == {1}, "all arms of a launch alike"
    assert len(set.union(*padded.values())) > 1
    assert "RINGSIDE_PADDING" not in str([record.commands for record in records.values()]), "records have its length alone"
    manifest = ran.folder.read_manifest()
    assert ([choice.rounds for choice in manifest.choices], manifest.looks) == ([None, 4, 4], [3])
    assert "every launch is measured already" in compare_plan(tmp_path / "plan.yaml").done.stderr


def test_a_finished_comparison_is_not_measured_again_and_its_reports_are_rebuilt(tmp_path):
    """In sequential mode, which a second launch must alternate in, too; DDP has rebuilt one arm's buckets when the other starts.

    The second launch is held against the first.
    """
    arms = {"ddp": {"backend": "ddp", "options": {"bucket_cap_mb": 0.05}}}
    compare(tmp_path, arms=arms, world_size=1, measurement={"mode": "sequential", "rounds": 2})
    plan = tmp_path / "plan.yaml"
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    names = ("report.html", "report.md", "report.csv", "comparison.json")
    for name in names:
        (tmp_path / "out" / name).unlink()
    rebuilt = ringside_here("report", tmp_path / "out")
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert all((tmp_path / "out" / name).read_bytes() == before[tmp_path / "out" / name] for name in names)
    old = shutil.copytree(tmp_path / "out", tmp_path / "old")
    longer = compare_plan(plan, "--set", "measurement.launches=2", "--against", old)
    said = longer.done.stdout
    assert said.startswith("Two dates compared, not two arms (") and "a single launch tells nothing" in said
    unlike = compare_plan(plan, "--set", "local_batch_size=3", "--against", old, code=2, out="unlike")
    assert "local_batch_size: " in unlike.done.stderr
    manifest = ResultsFolder(old).read_manifest()
    ResultsFolder(old).write_manifest(manifest.model_copy(update={"driver": {**manifest.driver, "torch": "1.0"}}))
    unlike = compare_plan(plan, "--against", old, code=2, out="unlike")
    assert "  torch: 1.0 -> " in unlike.done.stderr
    assert not (tmp_path / "unlike").exists(), "refused before anything is measured"
    records = longer.launches
    assert set(records) == {(launch, arm) for launch in (0, 1) for arm in ("ddp", "ddp-control")}
    assert all(len(record.ranks[0].backend["bucket_sizes_bytes"]) > 1 for record in records.values())
    for launch in (0, 1):
        turns = [sorted(block.turn for block in records[launch, arm].blocks) for arm in ("ddp", "ddp-control")]
        first_arm, second_arm = sorted(turns)
        assert max(first_arm) < min(second_arm)
    kept = tmp_path / "out" / "launch-000" / "ddp" / "record.json"
    assert kept.read_bytes() == before[kept]
    assert "results of another plan" in compare_plan(plan, "--set", "seed=9", code=2).done.stderr
