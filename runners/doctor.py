"""Finds what is installed, built and reachable on this machine, with the remedy for what is not.

It needs neither torch nor Horovod: these and MPI are probed in separate processes, so that a broken
installation is a finding and not a crash. Checks this host only; ``ringside hosts`` checks others.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from install import build_horovod, toolchain
from measurement.agent.ringside_agent.machine import usable_cores
from measurement.conditions import faults
from measurement.errors import LaunchError
from measurement.host import BUSY_REMEDY, OPEN_MPI, busy_warning, core_count, installed_mpi
from measurement.registry import clashes, on_python_path
from runners.launchers.slurm import slurm_hosts
from runners.processes.local import find_program
from runners.processes.remote import last_line

Status = Literal["ok", "missing", "warning"]

SETUP, BUILD = "make setup", "python -m install.build_horovod"
PROBE_TIMEOUT_S = 120.0

TORCH_PROBE = """
import json, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda,
    "nccl": ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else None,
}))
"""

HOROVOD_PROBE = """
import json, warnings
warnings.simplefilter("ignore")
import horovod, horovod.torch as hvd
print(json.dumps({
    "version": horovod.__version__, "mpi": bool(hvd.mpi_built()),
    "gloo": bool(hvd.gloo_built()), "nccl": int(hvd.nccl_built()),
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


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    """What was checked, such as "gloo"."""
    detail: str
    """What was found: a version, a path, a size, the error."""
    remedy: str = ""
    """What to type or do; empty if all is well."""
    gap: Literal["missing", "warning"] = "warning"
    """The status with a remedy: something cannot be done without it, or it can, but worse."""

    @property
    def status(self) -> Status:
        """``ok`` without a remedy."""
        return self.gap if self.remedy else "ok"


def version_finding(name: str, detail: str, version: str, *, package: str = "") -> Finding:
    """An installed version, with its known faults."""
    known_faults = faults(package or name, version)
    return Finding(
        name,
        "; ".join([detail, *known_faults]),
        "; ".join(filter(None, known_faults.values())),
    )


def python_findings() -> list[Finding]:
    """The interpreter, and modules that would shadow ours."""
    clash = next(iter({**clashes(Path.cwd()), **on_python_path(os.environ)}.values()), None)
    return [
        Finding("python", f"{sys.version.split()[0]} ({sys.executable})"),
        Finding(
            "names",
            f"'{clash}' has the name of a package of ringside's" if clash else "no clash",
            "rename it, or start from another folder" if clash else "",
        ),
    ]


def torch_findings() -> list[Finding]:
    """Torch, and whether this build of it has NCCL."""
    answer = probe(TORCH_PROBE)
    if isinstance(answer, str):
        return [Finding("torch", answer, SETUP, "missing")]
    cuda = f"CUDA {answer['cuda']}" if answer["cuda"] else "CPU only"
    nccl, remedy = answer["nccl"], "needed on GPUs only: install a CUDA build of torch"
    return [
        version_finding("torch", f"{answer['version']}, {cuda}", answer["version"]),
        version_finding("transport nccl", f"NCCL {nccl}", nccl, package="nccl")
        if nccl
        else Finding("transport nccl", "not in this build of torch", remedy),
    ]


def horovod_findings() -> list[Finding]:
    """Horovod, with the controllers and operations that the compiled library reports."""
    answer = probe(HOROVOD_PROBE)
    if isinstance(answer, str):
        return [missing_horovod(answer)]
    controllers = [name for name in ("MPI", "Gloo") if answer[name.lower()]]
    rebuild = "" if len(controllers) == 2 else f"rebuild it: make clean, then {SETUP}"
    gpu = f"NCCL (built with {answer['nccl']})" if answer["nccl"] else "none: CPU build"
    wanting = toolchain.gpu_compute_capabilities() and not answer["nccl"]
    remedy = (
        "make clean setup HOROVOD_OPERATIONS=nccl, which fetches nvcc where it is missing"
        if wanting
        else ""
    )
    return [
        Finding("horovod", answer["version"]),
        Finding("controllers", ", ".join(controllers) or "none", rebuild),
        Finding("GPU operations", gpu, remedy),
    ]


def missing_horovod(error: str) -> Finding:
    """Why Horovod cannot be used, from its build's state or the error of its import."""
    state = build_horovod.read_state()
    if state is None or state.status == "installed":
        return Finding("horovod", error, f"{BUILD} --rebuild", "missing")
    log = f"; build log: {state.log}" if state.log else ""
    detail = f"not built: {state.reason.splitlines()[0]}{log}"
    remedy = f"{toolchain.INSTALL_HINT}; then: {BUILD}"
    return Finding("horovod", detail, remedy, "missing")


def mpi_findings() -> list[Finding]:
    """The MPI library that mpi4py loads, through which DDP's transport mpi goes."""
    answer = probe(MPI_PROBE)
    if isinstance(answer, str):
        return [Finding("mpi4py", answer, SETUP, "missing")]
    return [Finding("mpi4py", f"{answer['version']}, {answer['library']}")]


def probe(script: str) -> dict[str, Any] | str:
    """Run a script in a new Python.

    Returns the JSON object that it prints last, or one line that says what went wrong.
    """
    argv = [sys.executable, "-c", script]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not answer within {PROBE_TIMEOUT_S:.0f} s"
    if done.returncode != 0:
        return last_line(done.stderr) or f"exit code {done.returncode}"
    answer: dict[str, Any] = json.loads(last_line(done.stdout))
    return answer


MIN_SHM_BYTES = 512 * 2**20
GPU_PROBE = """
import json, warnings
warnings.simplefilter("ignore")
import torch
from torch.utils import collect_env
error = ""
try:
    for number in range(max(torch.cuda.device_count(), 1)):
        torch.ones(2, device=f"cuda:{number}").sum().item()
except Exception as exception:
    error = " ".join(str(exception).split())
cards = (collect_env.get_gpu_info(collect_env.run) or "").split("\\n")
driver = collect_env.get_nvidia_driver_version(collect_env.run)
print(json.dumps({"cards": cards, "driver": driver, "error": error}))
"""
FITTING = "install a driver and a torch that fit each other and these cards"
GPUS_BY_TASK = ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_TRES_PER_TASK")
"""With these, Slurm shows a task only some of its node's GPUs."""


def launcher_findings() -> list[Finding]:
    """The programs that start ranks."""
    programs = {name: find_program(name) for name in ("torchrun", "horovodrun", "mpirun")}
    findings = [
        Finding(name, path or "not found", "" if path else SETUP, "missing")
        for name, path in programs.items()
    ]
    mpi = installed_mpi(programs["mpirun"] or "mpirun")
    if mpi:
        package = "openmpi" if mpi.name == OPEN_MPI else mpi.name
        detail = f"{mpi} ({programs['mpirun']})"
        findings[-1] = version_finding("mpirun", detail, mpi.version, package=package)
    return findings


def gpu_findings() -> list[Finding]:
    """GPUs, and whether torch and a comparison can use them; a machine without GPUs is ok."""
    if not toolchain.gpu_compute_capabilities():
        return [Finding("GPUs", "none that nvidia-smi shows (comparisons run on the CPU)")]
    answer = probe(GPU_PROBE)
    if isinstance(answer, str):
        return [Finding("torch on them", answer, FITTING, "missing")]
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "")
    stop_mps = (
        "arms that wait would delay others in its context: unset it, and echo quit |"
        " nvidia-cuda-mps-control"
    )
    return [
        Finding("GPUs", "; ".join(map(str.strip, answer["cards"]))),
        Finding(
            "torch on them",
            f"driver {answer['driver']}: {answer['error'] or 'computes'}",
            FITTING if answer["error"] else "",
            "missing",
        ),
        Finding(
            "MPS",
            f"CUDA_MPS_PIPE_DIRECTORY={pipe}" if pipe else "off",
            stop_mps if pipe else "",
        ),
    ]


def host_findings() -> list[Finding]:
    """Cores and shared memory for ranks on this host, and ssh for other hosts."""
    busy, ssh, shared = busy_warning(usable_cores()), find_program("ssh"), Path("/dev/shm")
    shared_bytes = shutil.disk_usage(shared).total if shared.is_dir() else 0
    more = "give the container more: docker run --shm-size=8g, or --ipc=host"
    needed = "needed for several hosts: apt-get install openssh-client"
    return [
        Finding("cores", f"{core_count()} usable of {os.cpu_count() or 1}"),
        Finding("load", busy or "others use little of the cores", BUSY_REMEDY if busy else ""),
        Finding(
            "/dev/shm",
            f"{shared_bytes / 2**20:.0f} MiB",
            more if shared_bytes < MIN_SHM_BYTES else "",
        ),
        Finding("ssh", ssh or "not found", "" if ssh else needed),
    ]


def slurm_findings(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """What a Slurm job lacks; nothing outside of one."""
    try:
        hosts = slurm_hosts(environment)
    except LaunchError as error:
        return [Finding("job", str(error), "start a new job: salloc, sbatch")]
    if not hosts:
        return []
    per_task = next(
        (f"{name}={environment[name]}" for name in GPUS_BY_TASK if environment.get(name)), None
    )
    remedy = "ask for GPUs by node (--gpus-per-node): ranks choose theirs by their local rank"
    return [
        Finding("job", f"{environment['SLURM_JOB_ID']}: {','.join(map(str, hosts))}"),
        Finding(
            "GPUs per task",
            f"{per_task}: NCCL may reach no other task's GPU" if per_task else "all of its node",
            remedy if per_task else "",
        ),
    ]


TOPICS: Mapping[str, Callable[[], list[Finding]]] = {
    "python": python_findings,
    "torch": torch_findings,
    "horovod": horovod_findings,
    "mpi": mpi_findings,
    "launchers": launcher_findings,
    "gpu": gpu_findings,
    "host": host_findings,
    "slurm": slurm_findings,
}
STYLES: Mapping[Status, str] = {"ok": "green", "warning": "yellow", "missing": "red"}


def diagnose() -> dict[str, list[Finding]]:
    """Check this machine. Returns the findings by topic, in reading order."""
    with ThreadPoolExecutor() as pool:  # most time is spent in processes that import torch
        findings = pool.map(lambda find: find(), TOPICS.values())
        return dict(zip(TOPICS, findings, strict=True))


def print_findings(
    findings: Mapping[str, Sequence[Finding]], console: Console | None = None
) -> None:
    """Print findings as a table, then the remedy for each that is not ok."""
    console = console or Console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("topic", "what", "", "found"):
        table.add_column(column, overflow="fold")
    gaps = []
    for topic, of_topic in findings.items():
        for number, finding in enumerate(of_topic):
            status = f"[{STYLES[finding.status]}]{finding.status}[/]"
            table.add_row("" if number else topic, finding.name, status, escape(finding.detail))
            if finding.status != "ok":
                gaps.append(f"{topic} / {finding.name}: {escape(finding.remedy)}")
    console.print(table)
    console.print("\n[bold]Remedies[/]" if gaps else "\nNothing is missing.")
    for number, gap in enumerate(gaps, start=1):
        console.print(f"{number:2d}. {gap}", soft_wrap=True)
