"""The parity gate and the fairness manifest, on real ranks: what computes wrongly is wrong, and its timing counts for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from measurement.records.results import ResultsFolder
from reports.schema import Comparison
from tests.conftest import FORKED, no_process_stays, ringside_here, write_plan

pytestmark = pytest.mark.usefixtures("no_processes_left")
WRONG = Path(__file__).parent / "plugins" / "wrong.py"


WRONGLY = {
    "SkipsOneParameter": "gradient of 'classify.bias' is off by",
    "SumsInsteadOfAveraging": "(relative L2, tolerance 0.0001)",
    "StartsApart": "differs from rank 0's",
    "SameShardEverywhere": "ranks 0 and 1 consumed the same samples",
    "SameInputsInside": "gradient of",
}
"""What is said of each backend that computes wrongly."""


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """A comparison of them all with one that is right, one that is unfair and one that is not here."""
    folder = tmp_path_factory.mktemp("gate")
    arms = {name.lower(): {"backend": f"{WRONG}:{name}", "transport": "gloo", "launcher": FORKED} for name in [*WRONGLY, "Unfair"]}
    arms["pytorchs-mpi"] = {"backend": "ddp", "transport": "mpi", "options": {"mpi_library": "torch"}}
    plan = write_plan(folder, arms={"ddp": {"backend": "ddp", "launcher": FORKED}, **arms}, measurement={"control": False})
    with no_process_stays():
        done = ringside_here("compare", plan, "-o", folder / "out")
    return done, ResultsFolder(folder / "out")


def record_of(gated, arm):
    (record,) = [record for record in gated[1].records() if record.arm == arm]
    return record


def test_the_right_one_is_timed(gated):
    done, folder = gated
    assert done.returncode == 1, done.stderr
    assert "wrong" in done.stdout
    assert record_of(gated, "ddp").status == "ok"
    assert len(folder.steps(record_of(gated, "ddp"))) > 0


@pytest.mark.parametrize("name", WRONGLY)
def test_every_wrong_backend_is_caught_and_its_timing_counts_for_nothing(gated, name):
    """Its steps are kept, for whoever wants to look."""
    record = record_of(gated, name.lower())
    assert record.status == "wrong", record.error
    assert WRONGLY[name] in record.error.message
    assert len(gated[1].steps(record)) > 0
    found = Comparison.model_validate_json((gated[1].root / "comparison.json").read_text())
    (arm,) = [arm for arm in found.arms if arm.name == record.arm]
    assert (arm.status, arm.throughput_per_s) == ("wrong", None)
    assert found.result(record.arm).throughput_ratio is None


def test_an_unasked_difference_is_an_error(gated):
    record = record_of(gated, "unfair")
    assert record.status == "failed"
    assert "threads is 2, ddp has 1" in record.error.message


@pytest.mark.skipif(torch.distributed.is_mpi_available(), reason="this PyTorch has an MPI of its own")
def test_pytorchs_own_mpi_is_refused_where_there_is_none(gated):
    record = record_of(gated, "pytorchs-mpi")
    assert record.status == "failed"
    assert "this PyTorch was built without MPI, as stock wheels are; use 'mpi4py' or 'auto'" in record.error.message


@pytest.mark.costly
def test_sums_in_another_order_are_no_fault_where_batch_norm_has_few_values(tmp_path):
    """Four ranks' sum has several orders. In three steps a ResNet makes percents of the rounding: Horovod was called wrong."""
    small = {"model": "resnet18", "image_size": 32, "num_classes": 4, "learning_rate": 0.1}
    arms = {name: {"backend": name, "transport": "gloo", "launcher": FORKED} for name in ("ddp", "naive")}
    what = {"workload": "synthetic", "workload_options": small, "local_batch_size": 4, "world_size": 4, "arms": arms}
    measurement = {"control": False, "floor": False, "rehearsal": "never", "rounds": 1, "block_steps": 1, "local_every": 0}
    plan = write_plan(tmp_path, **what, baseline="ddp", measurement=measurement)
    done = ringside_here("compare", plan, "-o", tmp_path / "out")
    records = {record.arm: record for record in ResultsFolder(tmp_path / "out").records()}
    assert {name: record.status for name, record in records.items()} == {"ddp": "ok", "naive": "ok"}, done.stderr
    assert records["naive"].parity.state_distance > 0.005, "else nothing was shown"
