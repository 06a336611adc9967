"""``ringside submit`` and ``ringside status``."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from measurement.errors import PlanError
from runners.submission.script import JobRequest

if TYPE_CHECKING:
    from measurement.records.results import ResultsFolder


def submit(
    plan: Annotated[Path | None, typer.Argument(help="A comparison plan (YAML), without hosts: the job's nodes are used.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the job.")] = 1,
    tasks_per_node: Annotated[int | None, typer.Option("--ntasks-per-node", min=1, help="Ranks on each node.")] = None,
    time: Annotated[
        str, typer.Option(help="Time limit, as sbatch takes it; what was measured by then is kept and reported.")
    ] = "1:00:00",
    partition: Annotated[str | None, typer.Option("-p", "--partition", help="Slurm's partition.")] = None,
    account: Annotated[str | None, typer.Option("-A", "--account", help="Slurm's account.")] = None,
    cpus_per_task: Annotated[int | None, typer.Option("-c", "--cpus-per-task", min=1, help="Cores for each rank.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="GPUs on each node.")] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(help="Pass a further option to sbatch, such as --sbatch=--exclusive; may be repeated.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Results folder, seen from all nodes. [results/NAME-TIME]")
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the plan.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Submit the job of this folder again; it goes on.")] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Show the batch script, submit nothing.")] = False,
) -> None:
    """Submit a comparison to Slurm as a batch job."""
    from measurement.plans.plan_file import read_content
    from measurement.records.results import default_folder
    from runners.planning.plan_reading import find_plan, read_plan
    from runners.submission import script
    from runners.submission.requirements import most_ranks, require_fit, require_hosts, time_warnings

    if (plan is None) == (resume is None):
        raise PlanError("give a plan, or --resume with the folder of an earlier job, and not both")
    if resume is not None:
        print(_told(script.submit_again(resume.resolve()), resume))
        return
    assert plan is not None
    path = find_plan(plan)
    tasks = tasks_per_node or 1
    overrides = list(settings or [])
    chosen = read_plan(plan, overrides=[*overrides, *_placeholders(nodes, tasks)])
    if tasks_per_node is None and nodes == 1:
        tasks = most_ranks(chosen)
    request = JobRequest(
        nodes=nodes,
        tasks_per_node=tasks,
        time=time,
        partition=partition,
        account=account,
        cpus_per_task=cpus_per_task,
        gpus_per_node=gpus_per_node,
        others=tuple(sbatch or ()),
    )
    content = read_content(path, overrides=overrides)
    require_hosts(chosen, content.get("hosts") or content.get("hostfile"), nodes=nodes)
    require_fit(chosen, request)
    folder = (output or default_folder(chosen.name)).resolve()
    arguments = [word for setting in overrides for word in ("--set", setting)]
    text = script.script_of(request, path.resolve(), name=chosen.name, folder=folder, arguments=arguments)
    for warning in time_warnings(chosen, request):
        print(f"ringside: {warning}", file=sys.stderr)
    print(text.rstrip() if only_print else _told(script.submit(text, folder), folder))


def _placeholders(nodes: int, tasks: int) -> list[str]:
    """The nodes are not known yet; with these the plan is checked as it will be read."""
    return [f"hosts={','.join(f'node{number}:{tasks}' for number in range(1, nodes + 1))}"] if nodes > 1 else []


def _told(job_id: str, folder: Path) -> str:
    return f"job {job_id}; see how it stands: {shlex.join(['ringside', 'status', str(folder)])}"


def status(folder: Annotated[Path, typer.Argument(help="Folder that 'ringside submit' wrote.")]) -> None:
    """Show how a submitted comparison stands: its jobs in the queue, and what is measured."""
    from measurement.records.results import ResultsFolder
    from runners.submission.script import JOBS, slurm

    if not (folder / JOBS).is_file():
        raise PlanError(f"'{folder}' holds no {JOBS}; give the folder that 'ringside submit PLAN -o FOLDER' wrote")
    jobs = (folder / JOBS).read_text(encoding="utf-8").split()
    listed = slurm("squeue", "-h", "-u", str(os.getuid()), "-o", "%i %T %M of %l %R")
    queued = {job_id: stands for job_id, _, stands in (line.partition(" ") for line in listed.splitlines())}
    for job_id in jobs:
        print(f"job {job_id}: {queued.get(job_id, 'not in the queue: it has ended')}")
    results = ResultsFolder(folder)
    if not results.plan_path.is_file():
        print("nothing is measured yet")
        return
    planned = results.read_plan().measurement.launches
    folders = [point for point in sorted((folder / "points").glob("*")) if point.is_dir()] or [folder]
    for one in folders:
        _tell(ResultsFolder(one), planned, of=f"{one.name}: " if one != folder else "")
    log = folder / f"slurm-{jobs[-1]}.log"
    if log.is_file():
        print(*_last_lines(log), sep="\n")


def _tell(results: ResultsFolder, planned: int, *, of: str) -> None:
    records = results.records()
    complete = {record.launch for record in records} - {record.launch for record in records if not record.complete}
    print(f"{of}{len(complete)} of {planned} launches are measured")
    for record in records:
        if record.status != "ok":
            print(f"{of}launch {record.launch}, {record.arm}: {record.status}: {record.error.message if record.error else ''}")


def _last_lines(log: Path, number: int = 3) -> Sequence[str]:
    from measurement.errors import printable

    return [f"  {printable(line)}" for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-number:]]
