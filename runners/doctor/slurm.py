"""What the doctor finds of the Slurm job that it runs in; nothing outside of one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial

from install.toolchain import output_of
from measurement.errors import LaunchError
from runners.doctor.software import Finding, finding
from runners.launchers.slurm_job import SlurmJob, expand_counts, slurm_job

_found = partial(finding, "slurm")
Ask = Callable[[list[str]], str | None]
"""Runs a program and returns what it prints; None where it fails."""


def slurm_findings() -> list[Finding]:
    """The job's nodes, whether it shares them, what ``srun`` gives its tasks, and which MPI it can start."""
    return findings_of(os.environ, output_of)


def findings_of(environment: Mapping[str, str], ask: Ask) -> list[Finding]:
    """Return what this environment says of the job, and what ``ask`` answers. Pure but for that."""
    try:
        job = slurm_job(environment)
    except LaunchError as error:
        return [_found("job", str(error), "begin a job anew: salloc, sbatch")]
    if job is None:
        return []
    nodes = _found("job", f"{job.job_id}: {job.host_list}")
    found = [_shared(job, ask), _alike(job, environment, ask), _cores(environment), _gpus(environment), _export(environment)]
    return [nodes, *found, _mpi(ask)]


def _shared(job: SlurmJob, ask: Ask) -> Finding:
    shared = re.search(r"OverSubscribe=(\w+)", ask(["scontrol", "show", "job", "-o", job.job_id]) or "")
    if shared is not None and shared[1] in ("NO", "EXCLUSIVE"):
        return _found("nodes", "its own")
    return _found(
        "nodes",
        "other jobs may run on them",
        "ask for whole nodes (--exclusive); what others take of the ranks' cores is measured, and told",
    )


def _alike(job: SlurmJob, environment: Mapping[str, str], ask: Ask) -> Finding:
    names = ",".join(entry.host for entry in job.hosts)
    kinds = sorted(set((ask(["sinfo", "-h", "-N", "-n", names, "-o", "%c cores, %m MB, %G, %f"]) or "").splitlines()))
    cores = environment.get("SLURM_JOB_CPUS_PER_NODE", "")
    uneven = len(set(expand_counts(cores))) > 1 if cores else False
    if len(kinds) > 1 or uneven:
        detail = "; ".join(kinds) if len(kinds) > 1 else f"cores of the job: {cores}"
        return _found(
            "kinds of node", detail, "ask for nodes of one kind (--constraint) with as many tasks each (--ntasks-per-node)"
        )
    return _found("kinds of node", "one")


def _cores(environment: Mapping[str, str]) -> Finding:
    asked, given = environment.get("SLURM_CPUS_PER_TASK"), environment.get("SRUN_CPUS_PER_TASK")
    if asked and not given:
        return _found(
            "cores per task",
            f"{asked} of the job, but srun alone gives its tasks one",
            'before srun of your own: export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',
        )
    bound = environment.get("SLURM_CPU_BIND_TYPE", "")
    return _found("cores per task", f"{asked or 'not asked for'}{f', bound: {bound}' if bound else ''}")


def _gpus(environment: Mapping[str, str]) -> Finding:
    names = ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_TRES_PER_TASK")
    per_task = next((name for name in names if environment.get(name)), None)
    if per_task:
        return _found(
            "GPUs per task",
            f"{per_task}={environment[per_task]}: a task may see one GPU only, as device 0, and NCCL reach no other",
            "ask for GPUs by node (--gpus-per-node): ranks choose theirs by their local rank",
        )
    return _found("GPUs per task", "a node's tasks see all of its GPUs that the job has")


def _export(environment: Mapping[str, str]) -> Finding:
    if environment.get("SLURM_EXPORT_ENV", "ALL") != "ALL":
        detail = f"SLURM_EXPORT_ENV={environment['SLURM_EXPORT_ENV']}: srun of your own gives its tasks another environment"
        return _found("environment", detail, "before srun of your own: export SLURM_EXPORT_ENV=ALL")
    return _found("environment", "handed on to tasks")


def _mpi(ask: Ask) -> Finding:
    """``srun --mpi=list`` says it on either output, by version."""
    listed = ask(["sh", "-c", "srun --mpi=list 2>&1"]) or ""
    if "pmix" in listed:
        return _found("srun and MPI", "--mpi=pmix")
    return _found("srun and MPI", "no PMIx", "start MPI by mpirun inside the job, or have the site install Slurm's PMIx plug-in")
