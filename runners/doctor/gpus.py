"""What the doctor finds of GPUs: what the driver shows, whether torch computes on it, and what compiles Horovod for it."""

from __future__ import annotations

import os

from install import cuda_wheels, toolchain
from runners.doctor.software import Finding, finding, probe

GPU_PROBE = """
import json, warnings
warnings.simplefilter("ignore")
import torch
from torch.utils import collect_env
error = ""
try:
    for number in range(max(torch.cuda.device_count(), 1)):
        torch.ones(2, device=f"cuda:{number}").sum().item()
except Exception as told:
    error = " ".join(str(told).split())
cards = (collect_env.get_gpu_info(collect_env.run) or "").split("\\n")
print(json.dumps({"cards": cards, "driver": collect_env.get_nvidia_driver_version(collect_env.run), "error": error}))
"""


def gpu_findings() -> list[Finding]:
    """GPUs, and whether torch, Horovod's build and a comparison can use them; a machine without GPUs is in order."""
    if not toolchain.gpu_compute_capabilities():
        none = "none that nvidia-smi shows (comparisons run on the CPU)"
        return [finding("gpu", "GPUs", none), toolkit_finding(toolchain.find_cuda_toolkit(), has_gpus=False)]
    answer = probe(GPU_PROBE)
    found = {"cards": [], "driver": None, "error": answer} if isinstance(answer, str) else answer
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "")
    remedy = "install a driver and a torch that fit each other and these cards" if found["error"] else ""
    ends = "arms that wait would hold up those in its context: unset it, and echo quit | nvidia-cuda-mps-control" if pipe else ""
    return [
        finding("gpu", "GPUs", "; ".join(map(str.strip, found["cards"])) or "shown by nvidia-smi"),
        finding("gpu", "torch on them", f"driver {found['driver']}: {found['error'] or 'computes'}", remedy, status="missing"),
        toolkit_finding(toolchain.find_cuda_toolkit(), has_gpus=True),
        finding("gpu", "MPS", f"CUDA_MPS_PIPE_DIRECTORY={pipe}" if pipe else "off", ends),
    ]


def toolkit_finding(toolkit: toolchain.CudaToolkit | None, *, has_gpus: bool) -> Finding:
    """What compiles Horovod for GPUs."""
    if toolkit:
        return finding("gpu", "CUDA toolkit", f"{toolkit.version} ({toolkit.home})")
    release = cuda_wheels.torch_cuda_release()
    if release or not has_gpus:
        return finding("gpu", "CUDA toolkit", f"none; make setup fetches nvcc {release} for the build" if has_gpus else "none")
    return finding("gpu", "CUDA toolkit", "none", "Horovod on GPUs is compiled with nvcc: install a CUDA toolkit, then make setup")
