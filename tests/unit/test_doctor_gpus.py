"""What the doctor says of GPUs, and what the proof on one judges."""

from __future__ import annotations

import sys
import tarfile

import pytest
import torch

from benchmarks.gpu_proof import DELAY_MS, DELAYS, Device, checks
from runners.doctor import gpu_findings
from tests.conftest import REPOSITORY
from tests.kit.commands import run

CARD = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1f)"
DRIVER = "| NVIDIA-SMI 580.159.04     Driver Version: 580.159.04     CUDA Version: 13.0 |"


@pytest.mark.process
def test_the_answer_of_a_machine_whose_driver_shows_a_gpu(tmp_path, monkeypatch):
    """A program of this name says what an H100's driver says; torch, which finds none, is asked as
    it is."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase $1 in -L) echo '{CARD}';; '') echo '{DRIVER}';; *) echo 9.0;; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")
    findings = {finding.name: finding for finding in gpu_findings()}
    assert list(findings) == ["GPUs", "torch on them", "MPS"]
    assert findings["GPUs"].detail == "GPU 0: NVIDIA H100 80GB HBM3"
    if not torch.cuda.is_available():
        assert findings["torch on them"].status == "missing"
        assert "driver 580.159.04: " in findings["torch on them"].detail
    assert "nvidia-cuda-mps-control" in findings["MPS"].remedy


@pytest.mark.costly
@pytest.mark.process
def test_the_proof_goes_on_after_a_failure_and_packs_what_came_out(tmp_path):
    """Its own logic, on the CPU. Unable to write, the loaders' check fails."""
    folder = tmp_path / "proof"
    (folder / "input").mkdir(parents=True)
    (folder / "input" / "results").write_text("in the way")
    options = ("--device", "cpu", "--output", folder, "--only", "input", "doctor")
    done = run(sys.executable, "benchmarks/gpu_proof.py", *options, PYTHONPATH=str(REPOSITORY))
    assert done.returncode == 1, done.stderr
    doctor, loaders = (folder / "checks.md").read_text().splitlines()
    assert doctor.startswith("- doctor: ok; not run on a GPU")
    assert loaders.startswith("- input: exit code 2: ringside: ")
    with tarfile.open(tmp_path / "proof.tar.gz") as packed:
        assert {"proof/checks.md", "proof/doctor/output.txt"} <= set(packed.getnames())


def arm(name, *, nccl="2.30.7 (torch's)", p50=0.01):
    machine = {"described": {"nccl": nccl}, "machine": [{"gpu_mhz": 1980.0}]}
    return {"name": name, "transport": "nccl", "step_time_s": {"p50": p50}, **machine}


def comparison_of(*arms, verdict="undecided"):
    return {
        "arms": arms,
        "traces": [{"arm": each["name"], "nccl": {"network": "IB"}} for each in arms],
        "results": [{"role": "control", "candidate": "ddp-control", "verdict": verdict}],
    }


@pytest.mark.parametrize(
    ("check", "comparison", "message"),
    [
        ("one-rank", comparison_of(arm("ddp"), arm("horovod")), ""),
        (
            "one-rank",
            comparison_of(arm("ddp"), arm("horovod", nccl="2.28.9 (own)")),
            "libraries call NCCL of several releases",
        ),
        (
            "one-rank",
            comparison_of(arm("ddp"), verdict="slower"),
            "the control does not come out equal",
        ),
        (
            "delayed",
            comparison_of(arm("ddp"), *(arm(by, p50=0.01 + DELAY_MS / 1000) for by in DELAYS)),
            "",
        ),
        (
            "delayed",
            comparison_of(arm("ddp"), *map(arm, DELAYS)),
            "steps are longer by something else than 2 ms",
        ),
    ],
)
def test_the_proof_judges_what_a_comparison_says(check, comparison, message):
    device = Device(kind="cuda", count=1, name="H100")
    (judge,) = [one.judge for one in checks(device) if one.name == check]
    said = judge(comparison)
    assert said.startswith(message) and bool(said) == bool(message)
