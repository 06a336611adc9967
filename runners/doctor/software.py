"""What the doctor finds in this Python: packages, torch, Horovod and MPI; and what a finding is.

torch, Horovod and MPI are asked in processes of their own, so that a broken installation is a finding and not a crash.
"""

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Literal

from install import cache, toolchain
from runners.processes.local import find_program
from runners.processes.remote import last_line

Status = Literal["ok", "missing", "warning"]

SETUP = "make setup"
MIN_PYTHON = (3, 11)
PROBE_TIMEOUT_S = 120.0

TORCH_PROBE = """
import json, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "available": dist.is_available(),
    "gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(),
    "nccl_version": ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else None,
    "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
}))
"""

HOROVOD_PROBE = """
import json, warnings
warnings.simplefilter("ignore")
import horovod, horovod.torch as hvd
print(json.dumps({
    "version": horovod.__version__, "mpi": bool(hvd.mpi_built()), "gloo": bool(hvd.gloo_built()),
    "nccl": int(hvd.nccl_built()), "cuda": bool(hvd.cuda_built()), "ddl": bool(hvd.ddl_built()),
    "ccl": bool(hvd.ccl_built()),
}))
"""

MPI_PROBE = """
import json
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(json.dumps({"version": mpi4py.__version__, "library": MPI.Get_library_version().split(",")[0].strip()}))
"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    """What it belongs to, such as "torch" or "launchers"."""
    name: str
    """What was looked for, such as "gloo"."""
    status: Status
    """"ok", "missing" (something cannot be done without it) or "warning" (it can, but worse)."""
    detail: str
    """What was found: a version, a path, a size, the error."""
    remedy: str = ""
    """What to type or do; empty only where the status is "ok"."""


def python_findings() -> list[Finding]:
    """The interpreter and the packages that ringside itself computes with."""
    version = sys.version.split()[0]
    new_enough = sys.version_info >= MIN_PYTHON
    remedy = "" if new_enough else f"make clean setup PYTHON=python{MIN_PYTHON[0]}.{MIN_PYTHON[1]}"
    python = Finding(
        topic="python",
        name="python",
        status="ok" if new_enough else "missing",
        detail=f"{version} ({sys.executable})",
        remedy=remedy,
    )
    return [python, *(package_finding("python", name) for name in ("numpy", "pandas", "scipy", "pyarrow"))]


def package_finding(topic: str, package: str) -> Finding:
    """Whether a distribution is installed, and which version."""
    version = installed_version(package)
    return Finding(
        topic=topic,
        name=package,
        status="ok" if version else "missing",
        detail=version or "not installed",
        remedy="" if version else SETUP,
    )


def torch_findings() -> list[Finding]:
    """Torch, torchvision, and the transports that this build of torch.distributed has."""
    told = probe(TORCH_PROBE)
    if isinstance(told, str):
        return [Finding(topic="torch", name="torch", status="missing", detail=told, remedy=SETUP)]
    cuda = f", CUDA {told['cuda']}" if told["cuda"] else ", CPU only"
    nccl = f"NCCL {told['nccl_version']}" if told["nccl"] else "not in this build of torch"
    return [
        Finding(topic="torch", name="torch", status="ok", detail=f"{told['version']}{cuda}"),
        package_finding("torch", "torchvision"),
        transport_finding("gloo", built=told["gloo"], detail="CPU"),
        transport_finding("nccl", built=told["nccl"], detail=nccl if told["gpus"] else f"{nccl}; no GPU to use it on"),
    ]


def transport_finding(name: str, *, built: bool, detail: str) -> Finding:
    """Whether torch.distributed has a transport."""
    remedies = {
        "gloo": f"reinstall torch: make clean, then {SETUP}",
        "nccl": "needed on GPUs only: install a CUDA build of torch",
    }
    return Finding(
        topic="torch",
        name=f"transport {name}",
        status="ok" if built else "warning",
        detail=detail if built else "not in this build of torch",
        remedy="" if built else remedies[name],
    )


def horovod_findings() -> list[Finding]:
    """Horovod, its controllers and its operations, as the compiled library itself tells them."""
    told = probe(HOROVOD_PROBE)
    if isinstance(told, str):
        return [missing_horovod(told)]
    gpu = f"NCCL (built with {told['nccl']})" if told["nccl"] else "none: CPU build"
    controllers = [name for name, there in (("MPI", told["mpi"]), ("Gloo", told["gloo"])) if there]
    return [
        Finding(topic="horovod", name="horovod", status="ok", detail=told["version"]),
        Finding(
            topic="horovod",
            name="controllers",
            status="ok" if len(controllers) == 2 else "warning",
            detail=", ".join(controllers) or "none",
            remedy="" if len(controllers) == 2 else f"rebuild it: make clean, then {SETUP}",
        ),
        horovod_gpu_finding(gpu, has_nccl=bool(told["nccl"])),
    ]


def horovod_gpu_finding(detail: str, *, has_nccl: bool) -> Finding:
    """Whether Horovod can reduce on the GPUs that are here."""
    wanting = bool(toolchain.gpu_compute_capabilities()) and not has_nccl
    return Finding(
        topic="horovod",
        name="GPU operations",
        status="warning" if wanting else "ok",
        detail=detail,
        remedy="install a CUDA toolkit (nvcc), then: make clean setup HOROVOD_OPERATIONS=nccl" if wanting else "",
    )


def missing_horovod(error: str) -> Finding:
    """Why Horovod cannot be used: what its build left behind, else what the import said."""
    state = cache.read_state()
    if state is None or state.status == "installed":
        return Finding(topic="horovod", name="horovod", status="missing", detail=error, remedy=SETUP)
    log = f"; build log: {state.log}" if state.log else ""
    return Finding(
        topic="horovod",
        name="horovod",
        status="missing",
        detail=f"not built: {state.reason.splitlines()[0]}{log}",
        remedy=f"{toolchain.INSTALL_HINT}; then: {SETUP}",
    )


def mpi_findings() -> list[Finding]:
    """The MPI library that mpi4py loads, which DDP's transport mpi goes over too."""
    told = probe(MPI_PROBE)
    if isinstance(told, str):
        return [Finding(topic="mpi", name="mpi4py", status="missing", detail=told, remedy=SETUP)]
    return [
        Finding(topic="mpi", name="mpi4py", status="ok", detail=told["version"]),
        Finding(topic="mpi", name="library", status="ok", detail=told["library"]),
        Finding(topic="mpi", name="transport mpi", status="ok", detail="for torch.distributed, through mpi4py"),
    ]


def program_finding(topic: str, name: str, remedy: str, *, version: str = "", status: Status = "missing") -> Finding:
    """Whether a program is there.

    Args:
        topic: What the finding belongs to.
        name: Name of the program.
        remedy: What to do where it is not there.
        version: Its version, where known.
        status: Status where it is not there.
    """
    path = find_program(name)
    detail = f"{version} ({path})".strip() if path and version else str(path or "not found")
    return Finding(topic=topic, name=name, status="ok" if path else status, detail=detail, remedy="" if path else remedy)


def probe(script: str) -> dict[str, Any] | str:
    """Run a script in a Python of its own and read the JSON object that it prints last.

    Args:
        script: Python source.

    Returns:
        The object, or one line that says what went wrong.
    """
    argv = [sys.executable, "-c", script]
    try:
        done = subprocess.run(argv, capture_output=True, encoding="utf-8", errors="replace", timeout=PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"did not answer within {PROBE_TIMEOUT_S:.0f} s"
    if done.returncode != 0:
        return last_line(done.stderr) or f"exit code {done.returncode}"
    answer: dict[str, Any] = json.loads(last_line(done.stdout))
    return answer


def installed_version(package: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
