"""What the doctor finds on this machine: launchers, GPUs, cores, shared memory, and the Slurm job that it runs in."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from install import toolchain
from measurement.agent.ringside_agent.machine.core_use import usable_cores
from measurement.errors import LaunchError
from measurement.probes.fingerprint import core_count
from measurement.probes.installed_mpi import OPEN_MPI, installed_mpi
from runners.doctor.software import SETUP, Finding, finding, installed_version, probe, program_finding
from runners.launchers.mpirun import ALLOW_ROOT
from runners.launchers.slurm_job import slurm_job
from runners.processes.busy_machine import BUSY_REMEDY, busy_warning
from runners.processes.local import find_program

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
except Exception as told:
    error = " ".join(str(told).split())
cards = (collect_env.get_gpu_info(collect_env.run) or "").split("\\n")
print(json.dumps({"cards": cards, "driver": collect_env.get_nvidia_driver_version(collect_env.run), "error": error}))
"""
PER_TASK = ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_TRES_PER_TASK")
"""By these Slurm shows a task some of its node's GPUs only."""


def launcher_findings() -> list[Finding]:
    """The programs that start ranks."""
    mpirun = find_program("mpirun")
    mpi = installed_mpi(mpirun) if mpirun else None
    versions = {"torchrun": installed_version("torch"), "horovodrun": installed_version("horovod"), "mpirun": str(mpi or "")}
    found = [program_finding("launchers", name, SETUP, version=version or "") for name, version in versions.items()]
    return [*found, *([as_root_finding()] if mpi and mpi.name == OPEN_MPI and os.geteuid() == 0 else [])]


def as_root_finding() -> Finding:
    """Whether Open MPI lets root start ranks; ``ringside compare`` allows it by itself."""
    missing = [name for name in ALLOW_ROOT if os.environ.get(name) != "1"]
    remedy = f"for commands of your own: export {' '.join(f'{name}=1' for name in missing)}" if missing else ""
    detail = "refused by Open MPI, but under ringside compare" if missing else "allowed"
    return finding("launchers", "mpirun as root", detail, remedy)


def gpu_findings() -> list[Finding]:
    """GPUs, and whether torch and a comparison can use them; a machine without GPUs is in order."""
    if not toolchain.gpu_compute_capabilities():
        return [finding("gpu", "GPUs", "none that nvidia-smi shows (comparisons run on the CPU)")]
    answer = probe(GPU_PROBE)
    found = {"cards": [], "driver": None, "error": answer} if isinstance(answer, str) else answer
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "")
    remedy = "install a driver and a torch that fit each other and these cards" if found["error"] else ""
    ends = "arms that wait would hold up those in its context: unset it, and echo quit | nvidia-cuda-mps-control" if pipe else ""
    return [
        finding("gpu", "GPUs", "; ".join(map(str.strip, found["cards"])) or "shown by nvidia-smi"),
        finding("gpu", "torch on them", f"driver {found['driver']}: {found['error'] or 'computes'}", remedy, status="missing"),
        finding("gpu", "MPS", f"CUDA_MPS_PIPE_DIRECTORY={pipe}" if pipe else "off", ends),
    ]


def host_findings() -> list[Finding]:
    """Cores and shared memory that ranks on this host may use, who they run as, and ssh for other hosts."""
    usable = core_count()
    busy = busy_warning(usable_cores())
    shared = Path("/dev/shm")
    shared_bytes = shutil.disk_usage(shared).total if shared.is_dir() else 0
    more = "" if shared_bytes >= MIN_SHM_BYTES else "give the container more: docker run --shm-size=8g, or --ipc=host"
    return [
        user_finding(),
        finding("host", "cores", f"{usable} usable of {os.cpu_count() or 1}"),
        finding("host", "load", busy or "others use little of the cores", BUSY_REMEDY if busy else ""),
        finding("host", "/dev/shm", f"{shared_bytes / 2**20:.0f} MiB", more),
        program_finding("host", "ssh", "needed for several hosts: apt-get install openssh-client", status="warning"),
    ]


def user_finding() -> Finding:
    """Whether the system knows who runs this; in a container it often does not."""
    number = os.getuid()
    try:
        return finding("host", "user", pwd.getpwuid(number).pw_name)
    except KeyError:
        remedy = f"Open MPI and torch.compile need to know; for commands of your own: export HOME=A_FOLDER_OF_YOURS USER={number}"
        return finding("host", "user", f"user id {number} has no name here", remedy)


def slurm_findings(
    environment: Mapping[str, str] = os.environ, ask: Callable[[list[str]], str | None] = toolchain.output_of
) -> list[Finding]:
    """What a Slurm job lacks; nothing outside of one. ``ask`` runs a program and returns what it prints, None where it fails."""
    try:
        job = slurm_job(environment)
    except LaunchError as error:
        return [finding("slurm", "job", str(error), "begin a job anew: salloc, sbatch")]
    if job is None:
        return []
    shared = re.search(r"OverSubscribe=(\w+)", ask(["scontrol", "show", "job", "-o", job.job_id]) or "")
    is_own = shared is not None and shared[1] in ("NO", "EXCLUSIVE")
    cores, has_cores = environment.get("SLURM_CPUS_PER_TASK"), environment.get("SRUN_CPUS_PER_TASK")
    loses_cores = bool(cores and not has_cores)
    per_task = next((f"{name}={environment[name]}" for name in PER_TASK if environment.get(name)), None)
    has_pmix = "pmix" in (ask(["sh", "-c", "srun --mpi=list 2>&1"]) or "")  # on either output, by version
    return [
        finding("slurm", "job", f"{job.job_id}: {job.host_list}"),
        finding(
            "slurm",
            "nodes",
            "its own" if is_own else "other jobs may run on them",
            "" if is_own else "ask for whole nodes (--exclusive); what others take of the ranks' cores is measured, and told",
        ),
        finding(
            "slurm",
            "cores per task",
            f"{cores} of the job, but srun alone gives its tasks one" if loses_cores else cores or "not asked for",
            'before srun of your own: export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"' if loses_cores else "",
        ),
        finding(
            "slurm",
            "GPUs per task",
            f"{per_task}: a task may see one GPU only, as device 0, and NCCL reach no other" if per_task else "all of its node",
            "ask for GPUs by node (--gpus-per-node): ranks choose theirs by their local rank" if per_task else "",
        ),
        finding(
            "slurm",
            "srun and MPI",
            "--mpi=pmix" if has_pmix else "no PMIx",
            "" if has_pmix else "start MPI by mpirun inside the job, or have the site install Slurm's PMIx plug-in",
        ),
    ]
