"""A comparison with ``--trace`` on real ranks: files that follow the format's rules, with every
step and exchange in them."""

from __future__ import annotations

import pytest

from reports.traces import traced_steps
from runners.driver.rehearsal import TRACED_STEPS
from tests.conftest import HOROVOD, needs_horovod, no_process_stays
from tests.kit import trace_format
from tests.kit.comparisons import compare

pytestmark = [needs_horovod, pytest.mark.costly("traces")]

ARMS = {
    "ddp": {"backend": "ddp", "options": {"bucket_cap_mb": 0.01, "find_unused_parameters": True}},
    "ddp-mpi": {
        "backend": "ddp",
        "transport": "mpi",
        "launcher": "mpirun",
        "options": {"comm_hook": "fp16"},
    },
    "fsdp2": "fsdp2",
    "horovod": HOROVOD | {"options": {"cycle_time_ms": 5, "compression": "fp16"}},
}


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    with no_process_stays():
        measurement = {"rounds": 1, "local_every": 1}
        return compare(
            tmp_path_factory.mktemp("traced"), "--trace", arms=ARMS, measurement=measurement
        ).folder


def test_every_file_follows_the_formats_rules(traced):
    traces = traced.traces()
    assert {trace.arm: trace.error for trace in traces.arms} == dict.fromkeys(ARMS)
    assert len(traced.records()) == len(ARMS), "its launch is no record"
    for trace in traces.arms:
        events = trace_format.read(traced.traces_folder / trace.file)
        assert trace_format.faults(events) == [], trace.arm
        names = [one["name"] for one in trace_format.slices(events, row="training")]
        steps = [name for name in names if name.startswith("ProfilerStep#")]
        assert len(steps) == 2 * TRACED_STEPS
        assert trace_format.slices(events, row="exchange")


@pytest.mark.parametrize("arm", ARMS)
def test_every_steps_exchange_has_the_bytes_of_its_gradients(traced, arm):
    (trace,) = (one for one in traced.traces().arms if one.arm == arm)
    (record,) = (one for one in traced.records() if one.arm == arm)
    steps, gradients = traced_steps(trace), record.ranks[0].model["gradient_bytes"]
    gradients /= 2 if arm == "ddp-mpi" else 1
    assert len(steps) == TRACED_STEPS
    for step in steps:
        assert sum(one.ranks[0].num_bytes for one in step.collectives) >= gradients
        own = [one for one in step.spans if one.row == "step"]
        begin_ns, end_ns = min(one.begin_ns for one in own), max(one.end_ns for one in own)
        # a collective may be noted as done later: Gloo's thread wakes the training first
        assert all(
            begin_ns <= one.arrived_ns <= min(one.done_ns, end_ns) for one in step.collectives
        )
    if arm == "ddp":
        assert {one.name for one in trace.spans if one.row == "library"} >= {
            "torch.distributed.ddp.reducer::search_unused_parameters",
            "torch.distributed.ddp.reducer::copy_bucket_to_grad",
        }
    if arm == "horovod":
        assert {len(one.ranks[0].tensors) for step in steps for one in step.collectives} != {1}, (
            "nothing was fused"
        )
