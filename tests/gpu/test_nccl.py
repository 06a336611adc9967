"""DDP over NCCL on a real GPU, timed by CUDA events; skipped where there is none."""

from __future__ import annotations

import time

import pytest
import torch

from measurement.results import ResultsFolder
from measurement.step_timer import StepTimer
from tests.distributed.test_standalone import SHORT, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU is visible")]


def test_ddp_over_nccl(tmp_path):
    done = run("torchrun", "--standalone", "--nproc-per-node", "1", "-m", "runners.ddp", *SHORT, "-o", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = ResultsFolder(tmp_path).records()
    assert record.transport == "nccl"
    assert record.parity.passed
    assert (ResultsFolder(tmp_path).steps(record)["step_s"] > 0).all()


def test_events_and_the_wall_clock_agree():
    """Events read after the block: a queue of kernels far longer than their launches takes the time the wall shows."""
    device = torch.device("cuda")
    matrix = torch.randn(4096, 4096, device=device)
    timer = StepTimer(device)
    torch.cuda.synchronize()
    began = time.perf_counter()
    timer.start()
    for _ in range(10):
        matrix @ matrix
        timer.mark(1)
        timer.end_step()
    seconds = timer.read().sum()
    assert seconds == pytest.approx(time.perf_counter() - began, rel=0.2)
