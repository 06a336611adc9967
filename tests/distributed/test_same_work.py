"""Arms are compared with each other in the gate: what comes to something else is wrong, whatever
its gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from measurement.records.record import GATE_STEPS
from tests.conftest import HAS_HOROVOD, HOROVOD, needs_horovod, no_process_stays
from tests.kit.comparisons import compare

pytestmark = [pytest.mark.costly("same work"), pytest.mark.usefixtures("no_processes_left")]
UNEQUAL = Path(__file__).parent / "plugins" / "unequal.py"
STEPS = GATE_STEPS
ARMS = {
    "ddp": "ddp",
    "zero": {"backend": "ddp", "options": {"zero_redundancy_optimizer": True}},
    "fsdp2": "fsdp2",
    "fp16": {"backend": "ddp", "options": {"comm_hook": "fp16"}},
    "dropshooks": f"{UNEQUAL}:DropsHooks",
    **({"horovod": HOROVOD} if HAS_HOROVOD else {}),
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The records of a comparison, by arm."""
    what = {
        "workload": f"{UNEQUAL}:Averaged",
        "workload_options": {"weight_decay": 0.01},
        "baseline": "ddp",
    }
    with no_process_stays():
        ran = compare(tmp_path_factory.mktemp("same-work"), arms=ARMS, **what, code=1)
    return ran.records


@pytest.mark.parametrize(
    "arm", ["ddp", "zero", "fsdp2", "fp16", pytest.param("horovod", marks=needs_horovod)]
)
def test_equal_work_is_timed(compared, arm):
    record = compared[arm]
    assert record.status == "ok", record.error
    if arm != "ddp":
        assert record.parity.compared_with == "ddp"
        assert record.parity.state_distance is not None


def test_lossy_compression_is_told(compared):
    (note,) = [note for note in compared["fp16"].parity.notes if "ddp" in note]
    assert (
        f"after {STEPS} steps" in note
        and "options of one ask for other gradients, or for less exact ones" in note
    )


def test_dropped_hooks_are_wrong(compared):
    record = compared["dropshooks"]
    assert record.status == "wrong"
    assert "parameter 'block1.1.weight' is " in record.error.message, "the hook changes parameters"
    assert record.parity.gradient_error < 1e-5
    assert not record.parity.passed
