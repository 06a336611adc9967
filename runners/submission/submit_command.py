"""``ringside submit`` and ``ringside status``."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from measurement.errors import PlanError, printable, quoted
from measurement.plans.settings import Section
from runners.flags import Flag, Given, command, values_of
from runners.hosts.batch_jobs import JOB_LOGS, JOB_SCRIPT, SLURM, SUBMITTED
from runners.submission import script
from runners.submission.job_request import JobRequest, most_ranks, require_fit, require_hosts, time_warnings
from runners.submission.schedulers import Scheduler, options_of

if TYPE_CHECKING:
    from measurement.plans.plan import Plan
    from measurement.records.results import ResultsFolder

LAST_LINES = 3
"""Lines of a job's log that ``ringside status`` shows."""


class SubmitOptions(Section):
    """What ``ringside submit`` is asked besides what the job asks the batch system for."""

    plan: Path | None = None
    """A comparison plan (YAML), without hosts: the job's nodes are used."""
    output: Path | None = None
    """Results folder, seen from all nodes. [results/NAME-TIME]"""
    settings: tuple[str, ...] = ()
    """Replace a value of the plan; may be repeated."""
    nodes: str = "1"
    """Nodes of the job. Several numbers, such as 1,2,4, are a scaling series: a job for each."""
    resume: Path | None = None
    """Submit the jobs of this folder again; they go on."""
    only_print: bool = False
    """Show the batch script, submit nothing."""


_job, _own = partial(Flag, "Job", JobRequest), partial(Flag, "Comparison", SubmitOptions)
FLAGS = (
    _own("plan", is_argument=True),
    _own("output", ("-o", "--output")),
    _own("settings", ("--set",), metavar="KEY=VALUE"),
    _own("resume"),
    _own("only_print", ("--print",)),
    Flag("Job", SubmitOptions, "nodes"),
    _job("tasks_per_node", ("--ntasks-per-node",), default=None),
    _job("time"),
    _job("scheduler"),
    _job("partition", ("-p", "-q", "--partition")),
    _job("account", ("-A", "--account")),
    _job("qos"),
    _job("constraint", ("-C", "--constraint")),
    _job("cpus_per_task", ("-c", "--cpus-per-task")),
    _job("gpus_per_node"),
    _job("prologue", metavar="LINE"),
    _job("others", ("--sbatch", "--directive")),
)


@dataclass(frozen=True, kw_only=True)
class _Submission:
    """One job: of a plan, or of a point of a series."""

    plan: Path
    name: str
    request: JobRequest
    folder: Path
    settings: Sequence[str]

    @property
    def text(self) -> str:
        """The script."""
        elsewhere = [f"hosts={self.request.scheduler}"] if self.request.nodes > 1 and self.request.scheduler != SLURM else []
        arguments = [word for setting in [*self.settings, *elsewhere] for word in ("--set", setting)]
        return script.script_of(self.request, self.plan, name=self.name, folder=self.folder, arguments=arguments)


def submit_given(given: Given) -> None:
    """Submit a plan, or the jobs of an earlier one again."""
    from measurement.records.results import ResultsFolder

    asked = SubmitOptions(**values_of(given, SubmitOptions))
    if (asked.plan is None) == (asked.resume is None):
        raise PlanError("give a plan, or --resume with the folder of an earlier job, and not both")
    if asked.resume is not None:
        folders = _folders(asked.resume.resolve(), JOB_SCRIPT)
        print(_submitted([script.submit_again(folder) for folder in folders], asked.resume))
        return
    root, study, jobs = _jobs(asked, JobRequest(**values_of(given, JobRequest)))
    texts = [job.text for job in jobs]
    if asked.only_print:
        print("\n".join(texts).rstrip())
        return
    if study is not None:
        results = ResultsFolder(root)
        if results.plan_path.exists():
            raise PlanError(f"'{root}' holds measurements; go on with --resume, or give another folder with -o")
        root.mkdir(parents=True, exist_ok=True)
        results.write_plan(study)
    print(_submitted([script.submit(text, job.folder) for text, job in zip(texts, jobs, strict=True)], root))


submit = command(submit_given, FLAGS, text="Submit a comparison to Slurm, PBS or LSF as a batch job.")


def _jobs(asked: SubmitOptions, request: JobRequest) -> tuple[Path, Plan | None, list[_Submission]]:
    """Return the results folder, a series' plan with its points, and each job; refuses what does not fit."""
    from measurement.plans.plan_file import check_plan, read_content
    from measurement.plans.points import plan_at
    from measurement.records.results import default_folder
    from runners.planning.plan_reading import find_plan, read_plan

    assert asked.plan is not None
    counts, path = _node_counts(asked.nodes), find_plan(asked.plan).resolve()
    if len(counts) == 1:
        chosen, request = _fitting(asked, request.model_copy(update={"nodes": counts[0]}), asked.settings)
        content = read_content(path, overrides=asked.settings)
        require_hosts(chosen, content.get("hosts") or content.get("hostfile"), nodes=request.nodes)
        root = (asked.output or default_folder(chosen.name)).resolve()
        return root, None, [_Submission(plan=path, name=chosen.name, request=request, folder=root, settings=asked.settings)]
    whole = read_plan(asked.plan, overrides=asked.settings)
    if whole.points or whole.hosts:
        raise PlanError(f"--nodes {asked.nodes} makes the points of a study, and the plan has points or hosts of its own")
    tasks = request.tasks_per_node if "tasks_per_node" in request.model_fields_set else -(-whole.world_size // counts[0])
    points = {f"nodes-{nodes}": {"world_size": nodes * tasks} for nodes in counts}
    study = check_plan(whole.model_dump() | {"points": points}, source=str(asked.plan))
    root, jobs = (asked.output or default_folder(whole.name)).resolve(), []
    for nodes, name in zip(counts, points, strict=True):
        point = plan_at(study, name)
        settings = [*asked.settings, f"name={point.name}", f"world_size={nodes * tasks}"]
        settings += [f"local_batch_size={point.local_batch_size}"] if study.scaling == "strong" else []
        _, one = _fitting(asked, request.model_copy(update={"nodes": nodes, "tasks_per_node": tasks}), settings)
        folder = root / "points" / name
        jobs.append(_Submission(plan=path, name=point.name, request=one, folder=folder, settings=settings))
    return root, study, jobs


def _fitting(asked: SubmitOptions, request: JobRequest, settings: Sequence[str]) -> tuple[Plan, JobRequest]:
    """Read the plan as it will be read in the job, and refuse a job that does not fit it."""
    from runners.planning.plan_reading import read_plan

    assert asked.plan is not None
    nodes = [f"node{number}:{request.tasks_per_node}" for number in range(1, request.nodes + 1)]
    placeholders = [f"hosts={','.join(nodes)}"] if len(nodes) > 1 else []
    chosen = read_plan(asked.plan, overrides=[*settings, *placeholders])
    if request.nodes == 1 and "tasks_per_node" not in request.model_fields_set:
        request = request.model_copy(update={"tasks_per_node": most_ranks(chosen)})
    options_of(request, name=chosen.name, folder=Path())  # refused before anything else
    require_fit(chosen, request)
    for warning in time_warnings(chosen, request):
        print(f"ringside: {warning}; 'ringside submit --resume' goes on after it", file=sys.stderr)
    return chosen, request


def _node_counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("[1-9][0-9]{0,4}", word) for word in words) or len(set(words)) < len(words):
        raise PlanError(f"--nodes {quoted(text)}: give a number of nodes, or different ones divided by commas, such as 1,2,4")
    return sorted(map(int, words))


def _submitted(job_ids: Sequence[str], folder: Path) -> str:
    jobs = f"job{'s' if len(job_ids) > 1 else ''} {', '.join(job_ids)}"
    after = f"; once all have ended: {shlex.join(['ringside', 'report', str(folder)])}" if len(job_ids) > 1 else ""
    return f"{jobs}; see how it stands: {shlex.join(['ringside', 'status', str(folder)])}{after}"


def _folders(root: Path, file: str) -> list[Path]:
    """Return a folder, or those of its points where they have a file that it has not."""
    points = [path.parent for path in sorted(root.glob(f"points/*/{file}"))]
    return [root] if (root / file).is_file() or not points else points


def status(folder: Annotated[Path, typer.Argument(help="Results folder, of 'ringside submit' or of a job in pods.")]) -> None:
    """Show how a comparison stands elsewhere: its jobs in the queue, what is measured, and what failed."""
    from measurement.records.results import ResultsFolder

    if not folder.is_dir():
        raise PlanError(f"there is no folder '{folder}'; give the one that the comparison writes, once its job has begun")
    for one in _folders(folder, SUBMITTED):
        of = f"{one.name}: " if one != folder else ""
        system, job_ids = script.scheduler_of(one), script.jobs_of(one)
        if system and job_ids:
            _print_jobs(system, job_ids, of=of)
        if ResultsFolder(one).plan_path.is_file():
            _print_measured(ResultsFolder(one), of=of)
        else:
            print(f"{of}nothing is measured yet")
        if system and job_ids:
            _print_log(one / JOB_LOGS[system.name].format(job_ids[-1]))


def _print_jobs(system: Scheduler, job_ids: Sequence[str], *, of: str) -> None:
    queued = system.queued()
    for job_id in job_ids:
        print(f"{of}job {job_id}: {queued.get(job_id, 'not in the queue: it has ended')}")


def _print_log(log: Path) -> None:
    if log.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        print(*(f"  {printable(line)}" for line in lines), sep="\n")


def _print_measured(results: ResultsFolder, *, of: str) -> None:
    plan = results.read_plan()
    minutes = plan.measurement.minutes
    planned = f"{plan.measurement.launches}" if minutes is None else f"the launches of {minutes:g} minutes"
    for point in plan.points:
        _print_launches(results.point(point), planned, of=f"{point}: ")
    if not plan.points:
        _print_launches(results, planned, of=of)


def _print_launches(results: ResultsFolder, planned: str, *, of: str) -> None:
    records = results.records()
    complete = {record.launch for record in records} - {record.launch for record in records if not record.complete}
    print(f"{of}{len(complete)} of {planned} launches are measured")
    for record in records:
        if record.status != "ok":
            print(f"{of}launch {record.launch}, {record.arm}: {record.status}: {record.error.message if record.error else ''}")
