"""DDP over NCCL on a real GPU, timed by CUDA events; skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from measurement.records.results import ResultsFolder
from measurement.step_timer import StepTimer
from tests.conftest import ended_well
from tests.kit.commands import SHORT, run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU is visible")

RESOLUTION_MS = 0.01
"""Of ten differences between events, half a microsecond each."""


def test_ddp_over_nccl(tmp_path):
    command = ["torchrun", "--standalone", "--nproc-per-node", "1", "-m", "runners.ddp"]
    ended_well(run(*command, *SHORT, "-o", tmp_path))
    (record,) = ResultsFolder(tmp_path).records()
    assert record.transport == "nccl"
    assert record.parity.passed
    assert (ResultsFolder(tmp_path).steps(record)["step_s"] > 0).all()


def test_a_step_lasts_as_long_as_its_kernels_and_marks_wait_for_none():
    """The queue is held up first, so that all marks are set before a kernel runs: events know when
    each did."""
    device = torch.device("cuda")
    matrix = torch.randn(4096, 4096, device=device)
    matrix @ matrix  # the library is loaded in its first call
    torch.cuda.synchronize()
    torch.cuda._sleep(2 * 10**9)
    timer = StepTimer(device)
    before = recorded()
    timer.start()
    begin = recorded()
    for _ in range(10):
        matrix @ matrix
        end = recorded()
        timer.mark(1)
        timer.end_step()
    after = recorded()
    assert not begin.query(), "no mark waits for the device"
    times = timer.read()
    after.synchronize()
    assert (times[:, 1] > 0).all() and (times[:, [0, 2, 3]] == 0).all()
    assert begin.elapsed_time(end) <= 1e3 * times.sum() + RESOLUTION_MS
    assert 1e3 * times.sum() <= before.elapsed_time(after) + RESOLUTION_MS


def recorded():
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
