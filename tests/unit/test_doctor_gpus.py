"""What the doctor says of GPUs: a recorded answer of nvidia-smi (an H100, identifiers left out), and what it could have said."""

from __future__ import annotations

import sys
import tarfile

import pytest

from benchmarks.gpu_proof import DELAY_MS, DELAYS, IDENTIFIERS, Device, checks
from install import toolchain
from runners.doctor.gpus import cards, cards_without_driver, driver_finding, kernels_finding, mode_findings, read_machine
from runners.doctor.gpus import gpu_findings as all_findings
from tests.conftest import REPOSITORY
from tests.kit.commands import run

ANSWER = (REPOSITORY / "tests" / "data" / "gpu" / "nvidia-smi.xml").read_text(encoding="utf-8")


def machine(**changes):
    """The recorded machine, with texts replaced."""
    answer = ANSWER
    for old, new in changes.items():
        assert old in answer
        answer = answer.replace(old, new)
    return read_machine(answer)


def test_a_recorded_machine_is_in_order():
    found = machine()
    assert cards([*found.gpus, *found.gpus]) == "2 x NVIDIA H100 80GB HBM3, 81559 MiB, ECC enabled"
    (driver, kernels, *modes) = [
        driver_finding(found, "13.2"),
        kernels_finding(["90"], ["sm_80", "sm_90"]),
        *mode_findings(found.gpus, {}),
    ]
    assert driver.detail == "580.159.04, for CUDA up to 13.0; torch is for 13.2", "within a major release every driver runs all"
    assert {one.status for one in (driver, kernels, *modes)} == {"ok"}


@pytest.mark.parametrize(
    ("driver_cuda", "torch_cuda", "remedy"),
    [
        ("12.8", "13.2", "install driver 580 or newer; without root, a torch for CUDA 12"),
        ("11.4", "12.8", "install driver 525 or newer; without root, a torch for CUDA 11"),
        ("13.0", "14.1", "install a newer driver; without root, a torch for CUDA 13"),
        ("13.0", None, "torch is for CPUs only"),
        ("13.0", "12.8", ""),
        ("", "13.2", ""),
    ],
)
def test_a_driver_that_is_too_old_for_torch_is_told_with_the_one_that_does(driver_cuda, torch_cuda, remedy):
    found = driver_finding(machine(**{"<cuda_version>13.0": f"<cuda_version>{driver_cuda}"}), torch_cuda)
    assert found.remedy.startswith(remedy)
    assert bool(found.remedy) == bool(remedy)


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
        ("86", ["sm_80"], True),
        ("80", ["sm_86"], False),
        ("120", ["sm_90", "sm_100"], False),
        ("120", ["sm_90", "compute_90"], True),
        ("90", ["sm_90a"], True),
        ("103", ["sm_100a"], False),
        ("70", ["sm_75", "sm_80"], False),
        ("70", [], True),
    ],
)
def test_cards_that_torch_has_no_kernels_for_are_told(capability, archs, runs):
    assert kernels_finding([capability], archs).status == ("ok" if runs else "missing")


@pytest.mark.parametrize(
    ("changes", "variables", "name", "told"),
    [
        ({"<compute_mode>Default": "<compute_mode>Exclusive_Process"}, {}, "compute mode", "measurement.mode: sequential"),
        ({"<current_mig>Disabled": "<current_mig>Enabled"}, {}, "MIG", "nvidia-smi -mig 0"),
        ({"<persistence_mode>Enabled": "<persistence_mode>Disabled"}, {}, "persistence mode", "nvidia-smi -pm 1"),
        ({}, {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}, "MPS", "nvidia-cuda-mps-control"),
    ],
)
def test_modes_that_disturb_are_told_with_the_command_that_mends_them(changes, variables, name, told):
    (found,) = [one for one in mode_findings(machine(**changes).gpus, variables) if one.remedy]
    assert (found.name, told in found.remedy) == (name, True)


@pytest.mark.parametrize(
    ("maker", "kind", "told"),
    [
        ("0x10de", "0x030200", "1 of NVIDIA's on the bus"),
        ("0x1002", "0x038000", "HOROVOD_GPU=ROCM"),
        ("0x10de", "0x020000", "none"),
    ],
)
def test_cards_without_a_driver_are_seen_on_the_bus(tmp_path, maker, kind, told):
    device = tmp_path / "0000:00:06.0"
    device.mkdir()
    (device / "vendor").write_text(f"{maker}\n")
    (device / "class").write_text(f"{kind}\n")
    assert told in cards_without_driver(tmp_path).detail


@pytest.mark.process
def test_the_whole_answer_of_a_machine_whose_driver_answers(tmp_path, monkeypatch):
    """A program of this name gives the recorded answer; torch and its wheels are asked as they are."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncase $1 in -q) cat {REPOSITORY}/tests/data/gpu/nvidia-smi.xml;; *) echo 9.0;; esac\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert toolchain.gpu_compute_capabilities() == ("90",)
    found = {one.name: one for one in all_findings()}
    assert list(found)[:4] == ["GPUs", "driver", "capabilities", "CUDA toolkit"]
    assert found["GPUs"].detail.startswith("1 x NVIDIA H100")
    assert not found["CUDA toolkit"].remedy, "nvcc is fetched for the build"


@pytest.mark.costly
@pytest.mark.process
def test_the_proof_goes_on_after_a_failure_and_packs_what_came_out(tmp_path):
    """Its own logic, on the CPU. Unable to write, the loaders' check fails."""
    folder = tmp_path / "proof"
    (folder / "input").mkdir(parents=True)
    (folder / "input" / "results").write_text("in the way")
    command = [sys.executable, "benchmarks/gpu_proof.py", "--device", "cpu", "--output", folder, "--only", "input", "doctor"]
    done = run(*command, PYTHONPATH=str(REPOSITORY))
    assert done.returncode == 1, done.stderr
    doctor, loaders = (folder / "checks.md").read_text().splitlines()
    assert doctor.startswith("- doctor: ok; not run on a GPU")
    assert loaders.startswith("- input: exit code 2: ringside: ")
    with tarfile.open(tmp_path / "proof.tar.gz") as packed:
        assert {"proof/checks.md", "proof/packages.txt", "proof/doctor/output.txt"} <= set(packed.getnames())


def arm(name, *, transport="nccl", nccl="2.30.7 (torch's)", p50=0.01, mhz=1980.0):
    told = {"described": {"nccl": nccl}, "machine": [{"gpu_mhz": mhz}]}
    return {"name": name, "transport": transport, "step_time_s": {"p50": p50}, **told}


def found(*arms, verdict="undecided", read=True, candidate="waiting"):
    results = [{"role": "control", "candidate": "ddp-control", "verdict": verdict}, {"role": "candidate", "candidate": candidate}]
    traced = [{"arm": one["name"], "nccl": {"network": "IB"} if read else None} for one in arms]
    return {"arms": arms, "traces": {"arms": traced}, "results": [results[0], {**results[1], "verdict": verdict}]}


@pytest.mark.parametrize(
    ("check", "comparison", "said"),
    [
        ("one-rank", found(arm("ddp"), arm("horovod"), arm("dp", transport=None)), ""),
        ("one-rank", found(arm("ddp"), arm("horovod", nccl="2.28.9 (own)")), "libraries call NCCL of several releases"),
        ("one-rank", found(arm("ddp"), read=False), "NCCL's log was not read: ddp"),
        ("one-rank", found(arm("ddp", mhz=None)), "NVML tells no clock of the GPU"),
        ("one-rank", found(arm("ddp"), verdict="slower"), "the control does not come out equal"),
        ("delayed", found(arm("ddp"), *(arm(by, p50=0.01 + DELAY_MS / 1000) for by in DELAYS)), ""),
        ("delayed", found(arm("ddp"), *map(arm, DELAYS)), "steps are longer by something else than 2 ms (kernel: 0.00 ms, stream"),
        ("waiting-host", found(arm("ddp"), verdict="slower"), ""),
        ("waiting-host", found(arm("ddp"), verdict="faster"), "it is called faster"),
    ],
)
def test_the_proof_judges_what_a_comparison_says(check, comparison, said):
    (one,) = [one for one in checks(Device(kind="cuda", count=1, name="H100")) if one.name == check]
    assert one.judge(comparison).startswith(said) and bool(one.judge(comparison)) == bool(said)


def test_identifiers_of_cards_stay_at_home():
    told = "<serial>165</serial><uuid>GPU-1f</uuid><pdi>0x4</pdi><gpu_part_number>2330</gpu_part_number><mode>Default</mode>"
    assert IDENTIFIERS.sub(r"<\1/>", told) == "<serial/><uuid/><pdi/><gpu_part_number/><mode>Default</mode>"
