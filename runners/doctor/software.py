"""What the doctor finds in this Python: packages, torch, Horovod and MPI; and what a finding is.

torch, Horovod and MPI are asked in processes of their own, so that a broken installation is a finding and not a crash.
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from install import cache, toolchain
from measurement.own_packages import clashes, on_python_path
from runners.processes.local import find_program
from runners.processes.remote import last_line

Status = Literal["ok", "missing", "warning"]

SETUP = "make setup"
PROBE_TIMEOUT_S = 120.0

TORCH_PROBE = """
import json, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "gloo": dist.is_gloo_available(),
    "nccl": ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else None,
}))
"""

HOROVOD_PROBE = """
import json, warnings
warnings.simplefilter("ignore")
import horovod, horovod.torch as hvd
print(json.dumps({
    "version": horovod.__version__, "mpi": bool(hvd.mpi_built()), "gloo": bool(hvd.gloo_built()), "nccl": int(hvd.nccl_built()),
}))
"""

MPI_PROBE = """
import json
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
library = MPI.Get_library_version().split(",")[0].splitlines()[0]
print(json.dumps({"version": mpi4py.__version__, "library": " ".join(library.split())}))
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


def finding(topic: str, name: str, detail: str, remedy: str = "", *, status: Status = "warning") -> Finding:
    """Return what was found: in order where there is nothing to do, else with this status."""
    return Finding(topic=topic, name=name, status=status if remedy else "ok", detail=detail, remedy=remedy)


def python_findings() -> list[Finding]:
    """The interpreter, and modules that would hide ours from it."""
    python = finding("python", "python", f"{sys.version.split()[0]} ({sys.executable})")
    clash = next(iter({**clashes(Path.cwd()), **on_python_path(os.environ)}.values()), None)
    where = f"'{clash}' has the name of a package of ringside's" if clash else "no module here has that of a package of ringside's"
    return [python, finding("python", "names", where, "rename it, or start from another folder" if clash else "")]


def torch_findings() -> list[Finding]:
    """Torch, torchvision, and the transports that this build of torch.distributed has."""
    answer = probe(TORCH_PROBE)
    if isinstance(answer, str):
        return [finding("torch", "torch", answer, SETUP, status="missing")]
    cuda = f"CUDA {answer['cuda']}" if answer["cuda"] else "CPU only"
    vision, absent = installed_version("torchvision"), "not in this build of torch"
    return [
        finding("torch", "torch", f"{answer['version']}, {cuda}"),
        finding("torch", "torchvision", vision or "not installed", "" if vision else SETUP, status="missing"),
        finding(
            "torch", "transport gloo", "CPU" if answer["gloo"] else absent, "" if answer["gloo"] else f"make clean, then {SETUP}"
        ),
        finding(
            "torch",
            "transport nccl",
            f"NCCL {answer['nccl']}" if answer["nccl"] else absent,
            "" if answer["nccl"] else "needed on GPUs only: install a CUDA build of torch",
        ),
    ]


def horovod_findings() -> list[Finding]:
    """Horovod, its controllers and its operations, as the compiled library itself tells them."""
    answer = probe(HOROVOD_PROBE)
    if isinstance(answer, str):
        return [missing_horovod(answer)]
    controllers = [name for name, there in (("MPI", answer["mpi"]), ("Gloo", answer["gloo"])) if there]
    rebuild = "" if len(controllers) == 2 else f"rebuild it: make clean, then {SETUP}"
    gpu = f"NCCL (built with {answer['nccl']})" if answer["nccl"] else "none: CPU build"
    wanting = toolchain.gpu_compute_capabilities() and not answer["nccl"]
    remedy = "make clean setup HOROVOD_OPERATIONS=nccl, which fetches nvcc where it is missing" if wanting else ""
    return [
        finding("horovod", "horovod", answer["version"]),
        finding("horovod", "controllers", ", ".join(controllers) or "none", rebuild),
        finding("horovod", "GPU operations", gpu, remedy),
    ]


def missing_horovod(error: str) -> Finding:
    """Why Horovod cannot be used: what its build left behind, else what the import said."""
    state = cache.read_state()
    if state is None or state.status == "installed":
        return finding("horovod", "horovod", error, SETUP, status="missing")
    log = f"; build log: {state.log}" if state.log else ""
    detail = f"not built: {state.reason.splitlines()[0]}{log}"
    return finding("horovod", "horovod", detail, f"{toolchain.INSTALL_HINT}; then: {SETUP}", status="missing")


def mpi_findings() -> list[Finding]:
    """The MPI library that mpi4py loads, which DDP's transport mpi goes over too."""
    answer = probe(MPI_PROBE)
    if isinstance(answer, str):
        return [finding("mpi", "mpi4py", answer, SETUP, status="missing")]
    return [finding("mpi", "mpi4py", answer["version"]), finding("mpi", "transport mpi", f"through mpi4py, {answer['library']}")]


def program_finding(topic: str, name: str, remedy: str, *, version: str = "", status: Status = "missing") -> Finding:
    """Whether a program is there, with its version where that is known; ``remedy`` and ``status`` are for where it is not."""
    path = find_program(name)
    detail = f"{version} ({path})".strip() if path and version else str(path or "not found")
    return finding(topic, name, detail, "" if path else remedy, status=status)


def probe(script: str) -> dict[str, Any] | str:
    """Run a script in a Python of its own. Returns the JSON object that it prints last, or one line that says what went wrong."""
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
