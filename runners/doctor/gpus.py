"""What the doctor finds of GPUs: driver, kernels of torch, modes of the cards, and what compiles Horovod for them."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from install import cuda_wheels, toolchain
from runners.doctor.software import TORCH_PROBE, Finding, finding, probe

LEAST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""By CUDA's major release, the oldest branch of the driver that runs it (CUDA Compatibility, "Minor Version Compatibility")."""
PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA, AMD = "0x10de", "0x1002"
GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""Display, 3D and other display controllers, and accelerators."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What ``nvidia-smi -q -x`` says."""

    driver: str
    cuda: str
    """The newest release of CUDA that the driver runs."""
    gpus: Sequence[Mapping[str, str]]
    """Each has name, memory, ecc, compute_mode, mig, persistence; "N/A" where a model has no such thing."""


def read_machine(text: str) -> Machine | None:
    """Read the answer of ``nvidia-smi -q -x``; None where it is none."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return None
    paths = {
        "name": "product_name",
        "memory": "fb_memory_usage/total",
        "ecc": "ecc_mode/current_ecc",
        "compute_mode": "compute_mode",
        "mig": "mig_mode/current_mig",
        "persistence": "persistence_mode",
    }
    gpus = [{name: gpu.findtext(path, "N/A").strip() for name, path in paths.items()} for gpu in root.findall("gpu")]
    return Machine(driver=root.findtext("driver_version", ""), cuda=root.findtext("cuda_version", ""), gpus=gpus) if gpus else None


def gpu_findings() -> list[Finding]:
    """GPUs, and whether torch, Horovod's build and a comparison can use them; a machine without GPUs is in order."""
    machine = read_machine(toolchain.output_of(["nvidia-smi", "-q", "-x"]) or "")
    if machine is None:
        return [cards_without_driver(PCI_DEVICES), toolkit_finding(toolchain.find_cuda_toolkit(), has_gpus=False)]
    torch = probe(TORCH_PROBE)
    known = torch if isinstance(torch, dict) else {}
    return [
        finding("gpu", "GPUs", cards(machine.gpus)),
        driver_finding(machine, known.get("cuda")),
        kernels_finding(toolchain.gpu_compute_capabilities(), known.get("archs", [])),
        toolkit_finding(toolchain.find_cuda_toolkit(), has_gpus=True),
        *mode_findings(machine.gpus, os.environ),
    ]


def cards(gpus: Iterable[Mapping[str, str]]) -> str:
    """Such as ``2 x NVIDIA H100 80GB HBM3, 81559 MiB, ECC enabled``; unlike cards one after the other."""
    names = [f"{one['name']}, {one['memory']}, ECC {one['ecc'].lower()}" for one in gpus]
    return "; ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def cards_without_driver(devices: Path) -> Finding:
    """GPUs that only the PCI bus shows. ``devices``: its folder in sysfs."""
    makers = [_word(device / "vendor") for device in sorted(devices.glob("*")) if _word(device / "class")[:6] in GPU_CLASSES]
    if number := makers.count(NVIDIA):
        remedy = f"install NVIDIA's driver, {LEAST_DRIVERS[13]} or newer for the torch that make setup installs"
        return finding("gpu", "GPUs", f"{number} of NVIDIA's on the bus, and nvidia-smi does not answer", remedy)
    if AMD in makers:
        return finding("gpu", "GPUs", "of AMD: never tried, neither torch for ROCm nor Horovod's build with HOROVOD_GPU=ROCM")
    return finding("gpu", "GPUs", "none (comparisons run on the CPU)")


def _word(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def driver_finding(machine: Machine, torch_cuda: str | None) -> Finding:
    """Whether the driver runs the CUDA release of torch. Within a major release, any driver that runs one runs all."""
    detail = f"{machine.driver}, for CUDA up to {machine.cuda}"
    wanted, offered = _major(torch_cuda), _major(machine.cuda)
    if wanted is None:
        return finding("gpu", "driver", detail, "torch is for CPUs only: make clean setup installs one for CUDA")
    if offered is None or wanted <= offered:
        return finding("gpu", "driver", f"{detail}; torch is for {torch_cuda}")
    least = LEAST_DRIVERS.get(wanted)
    newer = f"driver {least} or newer" if least else "a newer driver"
    remedy = f"install {newer}; without root, a torch for CUDA {offered}, whose index is https://download.pytorch.org/whl"
    return finding("gpu", "driver", f"{detail}; torch is for {torch_cuda}, which it does not run", remedy, status="missing")


def _major(release: str | None) -> int | None:
    major = (release or "").partition(".")[0]
    return int(major) if major.isdecimal() else None


def kernels_finding(capabilities: Sequence[str], archs: Sequence[str]) -> Finding:
    """Whether torch has kernels for these GPUs. ``archs``: such as sm_90 (code), or compute_120 (which the driver translates)."""
    cannot = [one for one in capabilities if archs and not any(_runs(arch, one) for arch in archs)]
    detail = f"torch has kernels for {', '.join(archs) or 'none known'}; the GPUs are of {', '.join(capabilities) or 'unknown'}"
    remedy = f"install a torch that lists sm_{cannot[0]}: an older one for older GPUs, a newer one for newer" if cannot else ""
    return finding("gpu", "capabilities", detail, remedy, status="missing")


def _runs(arch: str, capability: str) -> bool:
    """Code runs on its major capability from its minor on (with a letter on its own only), intermediate code on all newer ones."""
    kind, _, of = arch.partition("_")
    digits = "".join(filter(str.isdigit, of))
    if not digits or of != digits:
        return of[:-1] == capability
    is_newer = int(capability) >= int(digits)
    return is_newer and (kind == "compute" or digits[:-1] == capability[:-1])


def toolkit_finding(toolkit: toolchain.CudaToolkit | None, *, has_gpus: bool) -> Finding:
    """What compiles Horovod for GPUs."""
    if toolkit:
        return finding("gpu", "CUDA toolkit", f"{toolkit.version} ({toolkit.home})")
    release = cuda_wheels.torch_cuda_release()
    if release or not has_gpus:
        return finding("gpu", "CUDA toolkit", f"none; make setup fetches nvcc {release} for the build" if has_gpus else "none")
    return finding("gpu", "CUDA toolkit", "none", "Horovod on GPUs is compiled with nvcc: install a CUDA toolkit, then make setup")


def mode_findings(gpus: Sequence[Mapping[str, str]], environment: Mapping[str, str]) -> list[Finding]:
    """The modes in which a comparison fails or measures something else."""
    exclusive = [one["compute_mode"] for one in gpus if one["compute_mode"] in ("Exclusive_Process", "Prohibited")]
    sliced = [one for one in gpus if one["mig"] == "Enabled"]
    unloads = [one for one in gpus if one["persistence"] == "Disabled"]
    pipe = environment.get("CUDA_MPS_PIPE_DIRECTORY", "")
    whole = "NCCL joins no two slices of a card: one rank for each card, or sudo nvidia-smi -mig 0" if sliced else ""
    alone = "" if "Prohibited" in exclusive else ", or measurement.mode: sequential"
    shares = f"all arms have a process on a GPU: sudo nvidia-smi -c DEFAULT{alone}" if exclusive else ""
    stays = "without it the driver starts anew for each run: sudo nvidia-smi -pm 1" if unloads else ""
    ends = "arms that wait would hold up those in its context: unset it, and echo quit | nvidia-cuda-mps-control" if pipe else ""
    return [
        finding("gpu", "compute mode", exclusive[0] if exclusive else "shared", shares, status="missing"),
        finding("gpu", "MIG", f"on in {len(sliced)} of {len(gpus)} cards" if sliced else "off", whole),
        finding("gpu", "persistence mode", "off" if unloads else "on", stays),
        finding("gpu", "MPS", f"CUDA_MPS_PIPE_DIRECTORY={pipe}" if pipe else "off", ends),
    ]
