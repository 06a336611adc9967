"""GPUs as arms share them: modes in which they cannot, and ranks that wait with a context on one.

No GPU is needed."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from backends import make_backend
from backends.base import WHILE_STOPPED_S
from measurement.errors import LaunchError, PlanError
from measurement.probes import fingerprint
from runners.driver.rehearsal import require_something_to_measure, short_of
from runners.hosts.host_facts import CARDS, facts
from runners.planning.arm_checks import require_gpus
from runners.planning.arms import resolve_arms
from tests.kit.changed import changed
from tests.kit.plans import tiny
from tests.kit.results_factory import Truth, make_launch, make_plan


def one_card():
    """Answers as NVML does."""
    return SimpleNamespace(
        NVMLError=OSError,
        nvmlDeviceGetName=lambda handle: "H100",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda number: number,
    )


def test_a_host_whose_driver_shows_gpus_takes_arms_over_nccl(monkeypatch):
    """What a host tells of itself, without torch: it is asked before anything of size is
    imported."""
    monkeypatch.setattr(fingerprint, "nvml", one_card)
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch")
        host_facts = json.loads(json.dumps(facts("127.0.0.1:1", ["node1"])))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    arm = {"a": {"backend": "ddp", "transport": "nccl"}}
    over_nccl = resolve_arms(tiny(hosts="node1:1,node2:1", arms=arm)).values()
    require_gpus({"node1": host_facts}, over_nccl)
    with pytest.raises(
        PlanError, match=r"arm 'a': transport 'nccl' needs a GPU on every host.* none on 'node2'"
    ):
        require_gpus({"node1": host_facts, "node2": {**host_facts, CARDS: []}}, over_nccl)


@pytest.mark.parametrize(
    ("device", "transport", "is_here", "is_refused"),
    [
        ("auto", None, False, True),
        ("cuda", None, False, False),
        ("cpu", None, False, False),
        ("auto", "gloo", False, False),
        ("auto", None, True, False),
    ],
)
def test_a_login_node_without_gpus_does_not_choose_for_hosts_that_have_some(
    monkeypatch, device, transport, is_here, is_refused
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: is_here)
    arm = {"backend": "ddp"} | ({"transport": transport} if transport else {})
    arms = resolve_arms(tiny(hosts="node1:1,node2:1", arms={"a": arm}, device=device)).values()
    message = r"arm 'a' names no transport, and got 'gloo', .* there are some on 'node1', 'node2': say device: cuda, or device: cpu"
    with pytest.raises(PlanError, match=message) if is_refused else nullcontext():
        require_gpus({host: {CARDS: ["H100"]} for host in ("node1", "node2")}, arms)


@pytest.mark.parametrize(
    ("on_gpus", "kept"), [(True, (64, True, True)), (False, (4, False, False))]
)
def test_a_rehearsal_on_gpus_has_all_that_their_memory_must_hold(on_gpus, kept):
    plan = changed(make_plan(floor=True), local_batch_size=64)
    short = short_of(plan, on_gpus=on_gpus)
    assert (short.local_batch_size, short.measurement.control, short.measurement.floor) == kept
    assert short.measurement.launches == 1


@pytest.mark.parametrize(
    "said",
    [
        "OutOfMemoryError: CUDA out of memory. Tried 2 GiB",
        "AcceleratorError: CUDA error: CUDA-capable devices are busy or unavailable",
    ],
)
@pytest.mark.parametrize(
    ("mode", "message"), [("interleaved", "measurement.mode: sequential"), ("sequential", None)]
)
def test_a_gpu_that_does_not_hold_all_arms_is_told_before_anything_is_measured(
    tmp_path, mode, message, said
):
    plan = make_plan(mode=mode)
    truth = Truth(
        statuses={("horovod-gloo", 0): "failed"},
        message=f"rank 0: {said}",
    )
    (record,) = [
        record
        for record in make_launch(plan, truth, 0, random=np.random.default_rng(0))
        if record.arm == "horovod-gloo"
    ]
    with (
        pytest.raises(LaunchError, match=f"does not hold all arms at once.*{message}")
        if message
        else nullcontext()
    ):
        require_something_to_measure(plan, {"horovod-gloo": record}, folder=tmp_path)


def test_nothing_ends_a_rank_over_nccl_that_waits_for_its_turn():
    variables = {
        name: make_backend("ddp", transport=name, options={}).environment()
        for name in ("nccl", "gloo")
    }
    assert variables == {
        "nccl": {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(WHILE_STOPPED_S)},
        "gloo": {},
    }
