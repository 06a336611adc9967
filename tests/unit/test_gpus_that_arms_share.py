"""GPUs as arms share them: modes in which they cannot, and ranks that wait with a context on one. No GPU is needed."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from backends import make_backend
from backends.base import WHILE_STOPPED_S
from measurement.errors import PlanError
from runners.planning import arms
from tests.kit.results_factory import make_plan


def cards(*modes):
    """Answers as NVML does for cards in these compute modes."""
    return SimpleNamespace(
        NVML_COMPUTEMODE_DEFAULT=0,
        nvmlDeviceGetCount=lambda: len(modes),
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetComputeMode=lambda handle: modes[handle],
    )


@pytest.mark.parametrize(("mode", "second", "is_refused"), [("interleaved", 3, 1), ("interleaved", 0, 0), ("sequential", 3, 0)])
def test_an_exclusive_card_is_refused_where_arms_are_up_at_once(monkeypatch, mode, second, is_refused):
    monkeypatch.setattr(arms, "nvml", lambda: cards(0, second))
    monkeypatch.setattr(arms, "computes_on_gpu", lambda device: True)
    said = r"GPU 1 is in an exclusive compute mode.*'nvidia-smi -c DEFAULT', or set measurement\.mode: sequential"
    with pytest.raises(PlanError, match=said) if is_refused else nullcontext():
        arms.require_shared_gpus(make_plan(mode=mode))


def test_nothing_ends_a_rank_over_nccl_that_waits_for_its_turn():
    found = {name: make_backend("ddp", transport=name, options={}).environment() for name in ("nccl", "gloo")}
    assert found == {"nccl": {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(WHILE_STOPPED_S)}, "gloo": {}}
