"""GPUs as arms share them: modes in which they cannot, and ranks that wait with a context on one.

No GPU is needed."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from backends import make_backend
from backends.base import WHILE_STOPPED_S
from measurement import host
from measurement.errors import LaunchError, PlanError
from measurement.records.record import Failure
from runners.driver.rehearsal import require_something_to_measure, short_of
from runners.hosts.host_facts import CARDS, facts
from runners.planning.arm_checks import require_gpus
from runners.planning.arms import resolve_arms
from tests.kit.changed import changed
from tests.kit.plans import tiny
from tests.kit.results_factory import make_plan, make_record


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
    monkeypatch.setattr(host, "nvml", one_card)
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch")
        told = json.loads(json.dumps(facts("127.0.0.1:1", ["node1"])))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    arm = {"a": {"backend": "ddp", "transport": "nccl"}}
    over_nccl = resolve_arms(tiny(hosts="node1:1,node2:1", arms=arm)).values()
    require_gpus({"node1": told}, over_nccl)
    message = r"arm 'a': transport 'nccl' needs a GPU on every host.* none on 'node2'"
    with pytest.raises(PlanError, match=message):
        require_gpus({"node1": told, "node2": {**told, CARDS: []}}, over_nccl)


@pytest.mark.parametrize(
    ("asked", "is_here", "is_refused"),
    [
        ({}, False, True),
        ({"device": "cuda"}, False, False),
        ({"arms": {"a": {"backend": "ddp", "transport": "gloo"}}}, False, False),
        ({}, True, False),
    ],
)
def test_a_login_node_without_gpus_does_not_choose_for_hosts_that_have_some(
    monkeypatch, asked, is_here, is_refused
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: is_here)
    plan = {"hosts": "node1:1,node2:1", "arms": {"a": {"backend": "ddp"}}, "device": "auto"}
    arms = resolve_arms(tiny(**plan | asked)).values()
    message = r"arm 'a' names no transport, and got 'gloo', .* there are some on 'node1', 'node2': say device: cuda, or device: cpu"
    with pytest.raises(PlanError, match=message) if is_refused else nullcontext():
        require_gpus({host: {CARDS: ["H100"]} for host in ("node1", "node2")}, arms)


@pytest.mark.parametrize("on_gpus", [True, False])
def test_a_rehearsal_on_gpus_has_all_that_their_memory_must_hold(on_gpus):
    short = short_of(changed(make_plan(floor=True), local_batch_size=64), on_gpus=on_gpus)
    assert short.local_batch_size == (64 if on_gpus else 4)
    assert short.measurement.control == short.measurement.floor == on_gpus


@pytest.mark.parametrize(
    "said",
    [
        "OutOfMemoryError: CUDA out of memory. Tried 2 GiB",
        "AcceleratorError: CUDA error: CUDA-capable devices are busy or unavailable",
    ],
)
@pytest.mark.parametrize(
    ("mode", "advice"), [("interleaved", "measurement.mode: sequential"), ("sequential", None)]
)
def test_a_gpu_that_does_not_hold_all_arms_is_told_before_anything_is_measured(
    tmp_path, mode, advice, said
):
    """Arms that are up one at a time fail by themselves."""
    record = make_record(status="failed", error=Failure(message=f"rank 0: {said}"))
    message = f"does not hold all arms at once.*{advice}"
    with pytest.raises(LaunchError, match=message) if advice else nullcontext():
        require_something_to_measure(
            make_plan(mode=mode), {"horovod-gloo": record}, folder=tmp_path
        )


def test_nothing_ends_a_rank_over_nccl_that_waits_for_its_turn():
    assert make_backend("ddp", transport="nccl", options={}).environment() == {
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(WHILE_STOPPED_S)
    }
    assert make_backend("ddp", transport="gloo", options={}).environment() == {}
