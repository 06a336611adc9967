"""``ringside job``: prints a plan's job for a batch system or an orchestrator, from one template
each. Nothing is called.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from measurement.errors import PlanError, quoted

if TYPE_CHECKING:
    from measurement.plans.plan import Plan

Engine = Literal["slurm", "pbs", "lsf", "mpijob", "trainjob", "jobset", "dstack", "skypilot", "ray"]
SHARED_FILES = ("slurm", "pbs", "lsf")
"""Their nodes see this machine's folders."""
PODS = ("mpijob", "trainjob", "jobset")
IN_IMAGES = (*PODS, "dstack", "skypilot")
PLAN_IN_IMAGE = "/etc/ringside/plan.yaml"
TIME = re.compile(r"([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])")
STOPS_BEFORE_S = 60
"""Seconds before the time limit: what was measured is kept and reported."""
MAX_NAME = 40
"""Letters in a job's name: pod names add up to 20, and a host name has at most 63."""


def job(
    plan: Annotated[
        Path, typer.Argument(help="A comparison plan (YAML). Its hosts are the nodes of the job.")
    ],
    *,
    engine: Annotated[Engine, typer.Option("--for", help="What the job is for.")],
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Nodes of the job. [as many as the plan has hosts, or 1]"),
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="H:MM:SS", help="Time limit. [what the plan may need]")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Image with Ringside on PATH, for pods, dstack and SkyPilot.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Results folder, which outlives the job. [results/NAME-TIME or /results/NAME]",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Replace a value of the plan; may be repeated."
        ),
    ] = None,
) -> None:
    """Print a job that runs a comparison.

    Edit what else your site needs. Submitted again, the comparison resumes.
    """
    from measurement.files import read_text
    from measurement.records.results import default_folder
    from runners.planning.plan_reading import find_plan

    if (image is None) == (engine in IN_IMAGES):
        rule = (
            "needs an --image with Ringside on PATH"
            if image is None
            else "takes no --image; a plan names one by 'container'"
        )
        raise PlanError(f"--for {engine} {rule}")
    plan_path = find_plan(plan)
    path = plan_path.absolute()
    placed, replaced, size = _place(plan, engine, nodes=nodes, settings=settings or ())
    name = re.sub("[^a-z0-9]+", "-", f"ringside-{placed.name.lower()}")[:MAX_NAME].rstrip("-")
    if engine in SHARED_FILES:
        folder = (output or default_folder(placed.name)).absolute()
        named = str(path if plan_path is plan else plan)
        compare = [sys.executable, "-P", "-m", "runners.cli", "compare", named]
    else:
        folder = output or Path("/results", name)
        compare = ["ringside", "compare", path.name if engine == "ray" else PLAN_IN_IMAGE]
    values = {
        "name": name,
        "plan": str(path),
        "plan_text": read_text(path).rstrip("\n"),
        "compare": [
            *compare,
            "-o",
            str(folder),
            *(word for setting in replaced for word in ("--set", setting)),
        ],
        "image": image or "",
        "working_folder": str(Path.cwd()),
        "seconds": _seconds(time) if time else _planned_seconds(placed),
        **size,
    }
    print(_filled(engine, values), end="")


def _place(
    plan_path: Path, engine: Engine, *, nodes: int | None, settings: Sequence[str]
) -> tuple[Plan, list[str], dict[str, Any]]:
    """Place a plan on the nodes of a job.

    Returns:
        The plan; the settings given, and those that the job adds; and what the templates need to
        know of its size. With ``takes_hosts`` the plan's hosts are the job's nodes; else all ranks
        are on one, or scripts' commands list hosts.
    """
    from measurement.plans.plan_file import read_content, world_size_at
    from runners.hosts.host_lists import JOBS, KUBERNETES
    from runners.hosts.placement import (
        commands_of,
        hosts_of_commands,
        planned_hosts,
        ranks_by_flags,
    )
    from runners.planning.plan_reading import find_plan, read_plan

    content = read_content(find_plan(plan_path), overrides=settings)
    are_scripts = commands_of(content)
    is_sized = (
        "world_size" in content
        or bool(content.get("points"))
        or ranks_by_flags(content) is not None
    )
    if not is_sized and (nodes or are_scripts):
        raise PlanError(
            "neither the plan nor a command says how many ranks there are, and a job must; give"
            " --set world_size=8, or such"
        )
    if nodes is None and content.get("hosts") in [*JOBS]:
        raise PlanError(
            f"hosts: {content['hosts']} does not say how many nodes; give --nodes 2, or such"
        )
    hosts = ",".join(f"node{number}" for number in range(1, (nodes or 0) + 1))
    lists_hosts = are_scripts and bool(hosts_of_commands(content))
    placeholders = [f"hosts={hosts}"] if nodes and not lists_hosts else []
    plan = read_plan(plan_path, overrides=[*settings, *placeholders])
    nodes = nodes or len(planned_hosts(plan))
    max_world_size = max([world_size_at(plan, name) for name in plan.points] or [plan.world_size])
    ranks = -(-max_world_size // nodes)
    if engine in PODS and nodes == 1:
        raise PlanError(
            f"--for {engine} has 2 nodes or more; give --nodes 2, or run 'ringside compare' in a"
            " plain Job"
        )
    takes_hosts = nodes > 1 and not lists_hosts
    word = KUBERNETES if engine in PODS else engine
    changes = [f"hosts={word}"] if takes_hosts and engine in (*SHARED_FILES, *PODS) else []
    changes += ["hosts=null"] if nodes == 1 and content.get("hosts") and not lists_hosts else []
    changes += [] if is_sized else [f"world_size={plan.world_size}"]
    on_gpus = plan.device == "cuda" or any(arm.transport == "nccl" for arm in plan.arms.values())
    size = {
        "nodes": nodes,
        "ranks": ranks,
        "gpus": ranks if on_gpus else 0,
        "takes_hosts": takes_hosts,
    }
    return plan, [*settings, *changes], size


def _seconds(time: str) -> int:
    match = TIME.fullmatch(time)
    hours, minutes, seconds = map(int, match.groups()) if match else (0, 0, 0)
    limit_s = (hours * 60 + minutes) * 60 + seconds
    if limit_s <= STOPS_BEFORE_S:
        raise PlanError(
            f"--time {quoted(time)}: give hours, minutes and seconds, more than a minute, such as"
            " 2:00:00"
        )
    return limit_s


def _planned_seconds(plan: Plan) -> int:
    """Twice the plan's measuring time, and ten minutes; an hour if its length is not given by
    time.
    """
    measurement = plan.measurement
    if (
        measurement.rounds is not None
        or measurement.steps_per_launch is not None
        or plan.training is not None
    ):
        return 3600
    launches_s = measurement.expected_launches * measurement.expected_launch_s
    planned_s = launches_s if measurement.minutes is None else 60 * measurement.minutes
    planned_s = max(planned_s, 60 * (measurement.max_minutes or 0))
    return 600 * math.ceil(2 * planned_s * max(len(plan.points), 1) / 600 + 1)


def _filled(engine: Engine, values: Mapping[str, Any]) -> str:
    """Return the template of an engine, filled with these values."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("runners", "job_templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["sh"] = lambda value: shlex.join(
        [value] if isinstance(value, str) else value
    )
    environment.filters["yaml"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["stops_before_s"] = STOPS_BEFORE_S
    (file,) = environment.list_templates(filter_func=lambda name: name.startswith(f"{engine}."))
    return environment.get_template(file).render(values, job=values)
