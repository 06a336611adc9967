"""``ringside submit`` and ``ringside status``."""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel, ConfigDict

from measurement.errors import PlanError, printable
from runners.flags import Flag, Given, command, values_of
from runners.submission import script
from runners.submission.script import JobRequest

if TYPE_CHECKING:
    from measurement.records.results import ResultsFolder

LAST_LINES = 3
"""Lines of a job's log that ``ringside status`` shows."""


class SubmitOptions(BaseModel):
    """What ``ringside submit`` is asked besides what the job asks Slurm for."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    plan: Path | None = None
    """A comparison plan (YAML), without hosts: the job's nodes are used."""
    output: Path | None = None
    """Results folder, seen from all nodes. [results/NAME-TIME]"""
    settings: list[str] = []
    """Replace a value of the plan; may be repeated."""
    resume: Path | None = None
    """Submit the job of this folder again; it goes on."""
    only_print: bool = False
    """Show the batch script, submit nothing."""


_job, _own = partial(Flag, "Job", JobRequest), partial(Flag, "Comparison", SubmitOptions)
FLAGS = (
    _own("plan", is_argument=True),
    _own("output", ("-o", "--output")),
    _own("settings", ("--set",), metavar="KEY=VALUE"),
    _own("resume"),
    _own("only_print", ("--print",)),
    _job("nodes"),
    _job("tasks_per_node", ("--ntasks-per-node",), default=None),
    _job("time"),
    _job("partition", ("-p", "--partition")),
    _job("account", ("-A", "--account")),
    _job("cpus_per_task", ("-c", "--cpus-per-task")),
    _job("gpus_per_node"),
    _job("others", ("--sbatch",)),
)


def submit_given(given: Given) -> None:
    """Submit a plan, or the job of an earlier one again."""
    from measurement.plans.plan_file import read_content
    from measurement.records.results import default_folder
    from runners.planning.plan_reading import find_plan, read_plan
    from runners.submission.requirements import most_ranks, require_fit, require_hosts, time_warnings

    asked, request = SubmitOptions(**values_of(given, SubmitOptions)), JobRequest(**values_of(given, JobRequest))
    if (asked.plan is None) == (asked.resume is None):
        raise PlanError("give a plan, or --resume with the folder of an earlier job, and not both")
    if asked.resume is not None:
        print(_submitted(script.submit_again(asked.resume.resolve()), asked.resume))
        return
    assert asked.plan is not None
    path = find_plan(asked.plan)
    chosen = read_plan(asked.plan, overrides=[*asked.settings, *_placeholders(request)])
    if request.nodes == 1 and "tasks_per_node" not in request.model_fields_set:
        request = request.model_copy(update={"tasks_per_node": most_ranks(chosen)})
    content = read_content(path, overrides=asked.settings)
    require_hosts(chosen, content.get("hosts") or content.get("hostfile"), nodes=request.nodes)
    require_fit(chosen, request)
    folder = (asked.output or default_folder(chosen.name)).resolve()
    arguments = [word for setting in asked.settings for word in ("--set", setting)]
    text = script.script_of(request, path.resolve(), name=chosen.name, folder=folder, arguments=arguments)
    for warning in time_warnings(chosen, request):
        print(f"ringside: {warning}", file=sys.stderr)
    print(text.rstrip() if asked.only_print else _submitted(script.submit(text, folder), folder))


submit = command(submit_given, FLAGS, text="Submit a comparison to Slurm as a batch job.")
submit.__name__ = "submit"


def _placeholders(request: JobRequest) -> list[str]:
    """Stand for nodes that are not known yet: with these the plan is checked as it will be read."""
    nodes = [f"node{number}:{request.tasks_per_node}" for number in range(1, request.nodes + 1)]
    return [f"hosts={','.join(nodes)}"] if len(nodes) > 1 else []


def _submitted(job_id: str, folder: Path) -> str:
    return f"job {job_id}; see how it stands: {shlex.join(['ringside', 'status', str(folder)])}"


def status(folder: Annotated[Path, typer.Argument(help="Folder that 'ringside submit' wrote.")]) -> None:
    """Show how a submitted comparison stands: its jobs in the queue, and what is measured."""
    from measurement.records.results import ResultsFolder

    if not (folder / script.JOBS).is_file():
        raise PlanError(f"'{folder}' holds no {script.JOBS}; give the folder that 'ringside submit PLAN -o FOLDER' wrote")
    jobs = (folder / script.JOBS).read_text(encoding="utf-8").split()
    listed = script.slurm("squeue", "-h", "-u", str(os.getuid()), "-o", "%i %T %M of %l %R")
    queued = {job_id: stands for job_id, _, stands in (line.partition(" ") for line in listed.splitlines())}
    for job_id in jobs:
        print(f"job {job_id}: {queued.get(job_id, 'not in the queue: it has ended')}")
    results = ResultsFolder(folder)
    if not results.plan_path.is_file():
        print("nothing is measured yet")
        return
    measurement = results.read_plan().measurement
    planned = f"{measurement.launches}" if measurement.minutes is None else f"the launches of {measurement.minutes:g} minutes"
    folders = [point for point in sorted((folder / "points").glob("*")) if point.is_dir()] or [folder]
    for one in folders:
        _print_launches(ResultsFolder(one), planned, of=f"{one.name}: " if one != folder else "")
    log = folder / f"slurm-{jobs[-1]}.log"
    if log.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        print(*(f"  {printable(line)}" for line in lines), sep="\n")


def _print_launches(results: ResultsFolder, planned: str, *, of: str) -> None:
    records = results.records()
    complete = {record.launch for record in records} - {record.launch for record in records if not record.complete}
    print(f"{of}{len(complete)} of {planned} launches are measured")
    for record in records:
        if record.status != "ok":
            print(f"{of}launch {record.launch}, {record.arm}: {record.status}: {record.error.message if record.error else ''}")
