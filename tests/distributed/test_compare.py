"""Whole comparisons on real ranks: every backend, both modes, resume, records and reports."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from measurement.environment import KEEP_FREED_MEMORY
from measurement.plans.plan import FLOOR
from tests.conftest import REPOSITORY, ended_well, needs_horovod, no_process_stays, ringside_here
from tests.kit.comparisons import compare, compare_plan

pytestmark = pytest.mark.usefixtures("no_processes_left")

ALL_BATCHES = Path(__file__).parent / "plugins" / "all_batches.py"
HOROVOD = {
    "horovod-gloo": {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"},
    "horovod-mpi": {"backend": "horovod", "transport": "mpi", "launcher": "mpirun"},
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Both libraries, the one over both transports, beside the floor."""
    with pytest.MonkeyPatch.context() as patch, no_process_stays():
        # an arm waits longer for its turn, and lives
        patch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", "1")
        return compare(
            tmp_path_factory.mktemp("compared"),
            arms={"ddp": "ddp", **HOROVOD},
            measurement={"floor": True, "local_every": 1, "rounds": 2},
        )


@needs_horovod
def test_horovod_and_ddp_agree_with_the_reference_and_are_compared(compared):
    ran = compared
    for arm in ("ddp", *HOROVOD):
        record = ran.records[arm]
        assert (record.status, record.exit_codes) == ("ok", [0]), record.error
        assert record.parity.passed and record.parity.gradient_error < 1e-5
        assert record.parity.samples_digest == ran.records["ddp"].parity.samples_digest
        assert sorted(block.kind for block in record.blocks) == ["local", "local", "sync", "sync"]
        assert [rank.world_size for rank in record.ranks] == [2, 2]
        assert not any(rank.environment.keys() & KEEP_FREED_MEMORY for rank in record.ranks), (
            "a user's own run has none of them"
        )
    for controller in ("gloo", "mpi"):
        backend = ran.records[f"horovod-{controller}"].ranks[0].backend
        assert (backend["controller"], backend["transport"]) == (controller, controller)


@needs_horovod
def test_the_floor_has_no_library_and_no_exchange_and_tells_overhead_from_computing(compared):
    ran, found = compared, compared.report
    assert "launch 1 of 1: starting " in ran.done.stderr
    floor, horovod = ran.records[FLOOR], ran.records["horovod-gloo"]
    assert (floor.status, floor.role, len(floor.ranks)) == ("ok", "floor", 2)
    assert {(block.kind, block.threads.library_s) for block in floor.blocks} == {("local", 0)}
    assert all(block.threads.library_s > 0 for block in horovod.blocks if block.kind == "sync")
    beside = ran.folder.host_use([horovod])
    assert set(beside["turn"].dropna()) == {block.turn for block in horovod.blocks}
    assert set(beside["host"]) == {horovod.ranks[0].host}
    assert all(arm["step_terms_s"]["library_overhead"] for arm in found["arms"])


@needs_horovod
@pytest.mark.costly
def test_horovods_options_reach_the_library_and_pass_the_gate(tmp_path):
    def arm(transport="mpi", **options):
        return {"backend": "horovod", "transport": transport, "options": options}

    lossy = {"op": "Sum", "compression": "fp16", "fusion_threshold_mb": 1, "cycle_time_ms": 2.5}
    arms = {
        "fp16": arm("gloo", **lossy, cache_capacity=0),
        "adasum": arm(op="Adasum"),
        "groups": arm("gloo", num_groups=2, gradient_predivide_factor=2.0),
    }
    records = compare(
        tmp_path, arms=arms, micro_steps=2, measurement={"rounds": 1, "local_every": 1}
    ).records
    kinds = {arm: [block.kind for block in record.blocks] for arm, record in records.items()}
    assert kinds["fp16"] == ["sync", "local"] and kinds["adasum"] == ["sync"], (
        "Adasum has no step without exchange"
    )
    fp16 = records["fp16"].ranks[0].backend
    assert (fp16["compression"], fp16["fusion_threshold_bytes"], fp16["cycle_time_ms"]) == (
        "fp16",
        1 << 20,
        2.5,
    )
    assert fp16["backward_passes_per_step"] == 2
    assert 1e-6 < records["fp16"].parity.gradient_error < 2e-3
    assert "not compared" in records["adasum"].parity.notes[0]
    assert records["adasum"].parity.gradient_error is None


@pytest.mark.costly
def test_ddps_options_reach_the_library_and_one_process_may_take_the_place_of_all_ranks(tmp_path):
    """As ``dp`` does on GPUs: it trains on the batches of all of them, and its throughput counts
    all."""

    def arm(**options):
        return {"backend": "ddp", "options": options}

    arms = {
        "plain": "ddp",
        "buckets": arm(comm_hook="bf16", bucket_cap_mb=0.05, gradient_as_bucket_view=True),
        "fp16": arm(comm_hook="fp16", static_graph=True, first_bucket_mb=0.05),
        "powersgd": arm(comm_hook="powersgd", bucket_cap_mb=100),
        "new": arm(batched_grad_copy=True, bucket_cap_mb_list=[1, 25]),
        "all": f"{ALL_BATCHES}:OneForAll",
        "server": f"{REPOSITORY / 'examples' / 'parameter_server.py'}:ParameterServer",
    }
    short = {"rounds": 1, "local_every": 1}
    ran = compare(tmp_path, arms=arms, freed_memory="keep", measurement=short)
    plain, one, fp16 = (ran.records[arm] for arm in ("plain", "all", "fp16"))
    buckets = {
        arm: len(ran.records[arm].ranks[0].backend["bucket_sizes_bytes"])
        for arm in ("plain", "fp16", "buckets")
    }
    assert plain.ranks[0].environment.items() >= KEEP_FREED_MEMORY.items()
    assert buckets.pop("buckets") > 1
    assert buckets == {"plain": 1, "fp16": 2}, "a first bucket of its own"
    assert max(plain.parity.gradient_error, ran.records["server"].parity.gradient_error) < 1e-5
    assert (
        ran.records["new"].ranks[0].backend.items()
        >= {"batched_grad_copy": True, "bucket_cap_bytes": 25 << 20}.items()
    )
    assert 1e-6 < fp16.parity.gradient_error < 2e-3
    assert ran.records["powersgd"].parity.gradient_error is None
    assert [(record.status, record.world_size) for record in (plain, one)] == [
        ("ok", 2),
        ("ok", 1),
    ], ran.done.stdout
    assert {place.local_batch_size for place in one.ranks} == {2 * plain.ranks[0].local_batch_size}
    a_step, of_one = (
        ran.folder.steps(record).groupby(["turn", "step"])["samples"].sum().unique().tolist()
        for record in (plain, one)
    )
    assert a_step == of_one


def test_a_finished_comparison_is_not_measured_again_and_its_reports_are_rebuilt(tmp_path):
    """In sequential mode, which a second launch must alternate in, too.

    The second launch is compared with the first.
    """
    compare(tmp_path, world_size=1, measurement={"mode": "sequential", "rounds": 2})
    plan = tmp_path / "plan.yaml"
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    for name in ("report.html", "report.md", "report.csv", "comparison.json"):
        (tmp_path / "out" / name).unlink()
    ended_well(ringside_here("report", tmp_path / "out"))
    assert before == {path: path.read_bytes() for path in before}
    old = shutil.copytree(tmp_path / "out", tmp_path / "old")
    longer = compare_plan(plan, "--set", "measurement.launches=2", "--against", old)
    said = longer.done.stdout
    assert (
        said.startswith("Two dates compared, not two arms (")
        and "a single launch does not show" in said
    )
    other = ("--set", "local_batch_size=3", "--against", old)
    assert "local_batch_size: " in compare_plan(plan, *other, code=2, out="unlike").done.stderr
    assert not (tmp_path / "unlike").exists(), "refused before anything is measured"
    records = longer.launches
    assert set(records) == {(launch, arm) for launch in (0, 1) for arm in ("ddp", "ddp-control")}
    for launch in (0, 1):
        turns = [
            sorted(block.turn for block in records[launch, arm].blocks)
            for arm in ("ddp", "ddp-control")
        ]
        first_arm, second_arm = sorted(turns)
        assert max(first_arm) < min(second_arm)
    assert "results of another plan" in compare_plan(plan, "--set", "seed=9", code=2).done.stderr
