"""Looks at arms in processes of their own: a workload's data on another host; or what work of an arm's own is made of.

``python -m runners.planning.check_process JSON`` answers with what it found of a workload: here, or on another host, under the
arm's Python.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from measurement.agent.ringside_agent.machine.host import PACKAGES, fingerprint
from measurement.agent.ringside_agent.users_lines import is_users
from measurement.conditions.sources import digests, sources_of
from measurement.environment import forwarded_by_name
from measurement.errors import LaunchError, PlanError, about
from measurement.own_packages import digest
from measurement.plans.plan import Plan
from measurement.registry import search_beside
from runners.planning.arm_specs import ArmSpec
from runners.planning.command_place import CommandPlace
from runners.planning.workload import WorkloadSetup, require_model, resolve_workload
from runners.planning.workload_check import require_data
from runners.processes import remote
from runners.processes.answers import give
from runners.processes.local import base_environment, search_path
from workloads import Workload

TIMEOUT_S = 300.0
DATA_TIMEOUT_S = 600.0
"""Reading all file names of a large data set over a network takes minutes."""
CHECKED_PLAN_KEYS = ("workload", "workload_options", "local_batch_size", "seed")
VERSIONS = ("python", *PACKAGES, "cuda")
BY_COMMAND = "or compare commands, which need no Ringside there (command: in the arm, or ringside ab 'COMMAND' 'COMMAND')"


class WorkloadFacts(BaseModel):
    """What was found."""

    refused: str | None = None
    """Why it cannot be trained: there is no such workload, or its data is missing."""
    sample_unit: str = "samples"
    sources: dict[str, tuple[str, str]] = {}
    """Files that the workload is made of: where each lies, and its digest."""
    ringside: str
    """Which Ringside looked (``measurement.own_packages.digest``)."""
    versions: dict[str, str]
    """Its Python's, and its libraries'."""


class CheckRequest(BaseModel):
    """What the process is asked, in plain values."""

    plan: dict[str, Any]
    """``CHECKED_PLAN_KEYS``."""
    is_model: bool = True
    """Whether it is to be trained; else only the Python is looked at."""
    worktree: str | None = None
    repository: str | None = None
    """Where an arm has a commit of its own: its checkout, and what it is of."""

    def facts(self) -> dict[str, Any]:
        """Look at the workload; raises a ``PlanError`` where there is none, or its data is missing."""
        if not self.is_model:
            return {}
        setup = resolve_workload(self.plan["workload"], self.plan["workload_options"])
        require_model(setup)
        require_data(setup, local_batch_size=self.plan["local_batch_size"], seed=self.plan["seed"])
        self._require_of_commit()
        files = sources_of(setup.workload)
        shown = digests(files)
        sources = {name: (str(path), shown[name]) for name, path in files.items()}
        return {"sample_unit": setup.workload.sample_unit, "sources": sources}

    def _require_of_commit(self) -> None:
        """Refuse modules that were imported from the repository's own files where a commit is asked for, with a ``PlanError``."""
        if self.repository is None or self.worktree is None:
            return
        own, worktree = Path(self.repository), Path(self.worktree)
        loaded = sorted(
            Path(file).resolve() for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))
        )
        stray = next(
            (file for file in loaded if file.is_relative_to(own) and not file.is_relative_to(worktree) and is_users(file)), None
        )
        if stray is not None:
            raise PlanError(
                f"'{stray}' is imported as it lies there, not from the commit: it is on PYTHONPATH, or installed in editable form; "
                "take it from there, or name the workload by its file, which then finds what lies beside it"
            )


def require_data_on(hosts: Sequence[str], plan: Plan, workload: WorkloadSetup) -> None:
    """Have other hosts look at the workload's data, all at once, as their ranks will see it.

    Raises:
        PlanError: it is missing or damaged on some; one line for each.
        LaunchError: a host does not answer.
    """
    if not hosts or not issubclass(workload.workload, Workload) or workload.workload.require_data is Workload.require_data:
        return
    argv = _argv(plan)
    answers = remote.on_each(hosts, lambda host: remote.ask(host, argv, timeout_s=DATA_TIMEOUT_S))
    refused = {host: WorkloadFacts.model_validate_json(one).refused for host, one in zip(hosts, answers, strict=True)}
    lines = [f"host '{host}': {' '.join(message.split())}" for host, message in refused.items() if message]
    if lines:
        raise PlanError("\n".join(lines))


def facts_of(plan: Plan, *, host: str | None = None, place: CommandPlace | None = None, is_model: bool = True) -> WorkloadFacts:
    """What a process of its own finds, on a host (None: here); ``place``: where an arm with work of its own starts.

    Raises:
        PlanError: there is no such workload, or its data is missing; or the Python has no Ringside, or another one.
        LaunchError: the process does not answer.
    """
    environment = base_environment() | forwarded_by_name(os.environ, plan.forward_environment) | plan.environment
    argv, folder, python = _argv(plan, place, is_model=is_model), place.folder if place else None, place.python if place else None
    environment |= place.environment(search_path()) if place else {}
    try:
        with about(f"workload '{plan.workload}'"):
            answer = remote.ask(host, argv, timeout_s=TIMEOUT_S, environment=environment, folder=folder)
    except LaunchError as error:
        if python is None:
            raise
        raise PlanError(
            f"Ringside cannot be imported by '{python}' ({error}); install it there, for instance by '{python} -m pip install', "
            f"{BY_COMMAND}"
        ) from error
    facts = WorkloadFacts.model_validate_json(answer)
    if python and facts.ringside != digest():
        raise PlanError(
            f"'{python}' has another Ringside than this one (its files differ), and they would measure unlike; install this one "
            f"there, {BY_COMMAND}"
        )
    if facts.refused:
        raise PlanError(facts.refused)
    return facts


def _argv(plan: Plan, place: CommandPlace | None = None, *, is_model: bool = True) -> list[str]:
    checkout = place.checkout if place else None
    asked = CheckRequest(
        plan=plan.model_dump(mode="json", include=set(CHECKED_PLAN_KEYS)),
        is_model=is_model,
        worktree=str(checkout) if checkout else None,
        repository=str(place.repository) if checkout and place else None,
    )
    argv = remote.python("runners.planning.check_process", asked.model_dump_json())
    argv = [place.interpreter, *argv[1:]] if place else argv
    return [*plan.container, *argv[1:]] if plan.container else argv


@dataclass(frozen=True, kw_only=True)
class OwnFindings:
    """What was found of the arms that have work of their own."""

    sources: dict[str, str] = field(default_factory=dict)
    """Digests of their files, and versions: what must be equal where a comparison goes on. Under the arms' names."""
    files: dict[str, Path] = field(default_factory=dict)
    """Those files of theirs that lie here."""
    sample_units: dict[str, str] = field(default_factory=dict)
    """By arm."""


def require_own_work(arms: Iterable[ArmSpec], *, host: str | None, micro_benchmark: bool = False) -> OwnFindings:
    """Look at each arm that has work of its own, on a host (None: here), in a process of its own under its Python.

    Of a ``micro_benchmark``, only a Python may be an arm's own. What is run alike is looked at once.

    Raises:
        PlanError: an arm's Python has no Ringside, or another one, or its work cannot be run.
        LaunchError: the host does not answer.
    """
    found, seen = OwnFindings(), dict[str, WorkloadFacts]()
    for setup in (setup for setup in arms if setup.arm.has_own_work):
        name, place, plan = setup.name, setup.place, setup.plan
        with about(f"arm '{name}'"):
            if micro_benchmark and setup.arm.model_copy(update={"python": None}).has_own_work:
                raise PlanError(
                    f"workload '{plan.workload}' is a micro-benchmark, whose cases all arms share; leave workload, "
                    "workload_options, directory and commit out"
                )
            key = json.dumps([place.python, place.commit, str(place.typed_in), plan.workload, plan.workload_options])
            facts = seen[key] = seen.get(key) or facts_of(plan, host=host, place=place, is_model=not micro_benchmark)
        if place.python is not None:
            found.sources.update({f"{name}/{package}": version for package, version in facts.versions.items()})
        if not micro_benchmark:
            found.sample_units[name] = facts.sample_unit
        found.sources.update({f"{name}/{file}": shown for file, (_, shown) in facts.sources.items()})
        places = {f"{name}/{file}": Path(lies) for file, (lies, _) in facts.sources.items()}
        found.files.update({file: lies for file, lies in places.items() if lies.is_file()})
    return found


def main() -> None:
    """Look, and answer with what was found."""
    asked = CheckRequest.model_validate_json(sys.argv[1])
    search_beside(Path.cwd())
    try:
        facts = asked.facts()
    except PlanError as error:
        facts = {"refused": str(error)}
    known = fingerprint()
    versions = {name: str(known[name]) for name in VERSIONS if known.get(name)}
    give(WorkloadFacts(ringside=digest(), versions=versions, **facts).model_dump_json())


if __name__ == "__main__":
    main()
