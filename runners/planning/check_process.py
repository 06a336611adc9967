"""Looks at arms in processes of their own: a workload's data on another host; or what work of an arm's own is made of.

``python -m runners.planning.check_process JSON`` answers with what it found of a workload: here, or on another host, under the
arm's Python.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from measurement.agent.ringside_agent.users_lines import is_users
from measurement.conditions.sources import digests, sources_of
from measurement.environment import forwarded_by_name
from measurement.errors import LaunchError, PlanError, about
from measurement.own_packages import digest
from measurement.plans.plan import Plan
from measurement.registry import search_beside
from runners.planning.launched_arms import ArmSetup
from runners.planning.own_work import OwnWork
from runners.planning.workload import WorkloadSetup, require_model, resolve_workload
from runners.processes import remote
from runners.processes.answers import give
from runners.processes.local import base_environment
from workloads import Workload

TIMEOUT_S = 300.0
DATA_TIMEOUT_S = 600.0
"""Reading all file names of a large data set over a network takes minutes."""
ASKED_OF_PLAN = ("workload", "workload_options", "local_batch_size", "seed")
ANSWER = (
    "import json, runners.rank.engine, runners.rank.worker; from measurement.own_packages import digest; "
    "from measurement.conditions.conditions import fingerprint; from runners.processes.answers import give; "
    "give(json.dumps({'ringside': digest(), **fingerprint()}))"
)
"""What a rank imports, and which Ringside and which versions it is then."""
VERSIONS = ("python", "torch", "torchvision", "numpy", "horovod", "mpi4py", "openmpi", "cuda")
BY_COMMAND = "or compare commands, which need no Ringside there (command: in the arm, or ringside ab 'COMMAND' 'COMMAND')"


class WorkloadFacts(BaseModel):
    """What was found."""

    refused: str | None = None
    """Why it cannot be trained: there is no such workload, or its data is missing."""
    sample_unit: str = "samples"
    sources: dict[str, tuple[str, str]] = {}
    """Files that the workload is made of: where each lies, and its digest."""


class Asked(BaseModel):
    """What the process is asked, in plain values."""

    plan: dict[str, Any]
    """``ASKED_OF_PLAN``."""
    beside: str | None = None
    worktree: str | None = None
    repository: str | None = None
    """Where an arm has a commit of its own, see ``OwnWork``."""

    def facts(self) -> WorkloadFacts:
        """Look at the workload; raises a ``PlanError`` where there is none, or its data is missing."""
        setup = resolve_workload(self.plan["workload"], self.plan["workload_options"])
        require_model(setup)
        setup.build(local_batch_size=self.plan["local_batch_size"], seed=self.plan["seed"]).require_data()
        self._require_of_commit()
        files = sources_of(setup.workload)
        shown = digests(files)
        sources = {name: (str(path), shown[name]) for name, path in files.items()}
        return WorkloadFacts(sample_unit=setup.workload.sample_unit, sources=sources)

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
    with ThreadPoolExecutor(max_workers=64) as pool:
        answers = list(pool.map(lambda host: remote.ask(host, argv, timeout_s=DATA_TIMEOUT_S), hosts))
    refused = {host: WorkloadFacts.model_validate_json(one).refused for host, one in zip(hosts, answers, strict=True)}
    lines = [f"host '{host}': {' '.join(message.split())}" for host, message in refused.items() if message]
    if lines:
        raise PlanError("\n".join(lines))


def facts_of(plan: Plan, *, host: str | None = None, own: OwnWork | None = None) -> WorkloadFacts:
    """What a process of its own finds, on a host (None: here); ``own``: of the arm, where this has work of its own.

    Raises:
        PlanError: there is no such workload, or its data is missing.
        LaunchError: the process does not answer.
    """
    environment = base_environment() | forwarded_by_name(os.environ, plan.forward_environment) | plan.environment
    environment |= own.environment if own else {}
    with about(f"workload '{plan.workload}'"):
        answer = remote.ask(host, _argv(plan, own), timeout_s=TIMEOUT_S, environment=environment)
    facts = WorkloadFacts.model_validate_json(answer)
    if facts.refused:
        raise PlanError(facts.refused)
    return facts


def _argv(plan: Plan, own: OwnWork | None = None) -> list[str]:
    places = {name: getattr(own, name) for name in ("beside", "worktree", "repository")} if own else {}
    asked = Asked(
        plan=plan.model_dump(mode="json", include=set(ASKED_OF_PLAN)),
        **{name: str(place) for name, place in places.items() if place},
    )
    argv = remote.python("runners.planning.check_process", asked.model_dump_json())
    argv = [own.interpreter, *argv[1:]] if own else argv
    return [*plan.container, *argv[1:]] if plan.container else argv


@dataclass(frozen=True, kw_only=True)
class OwnFindings:
    """What was found of the arms that have work of their own."""

    sources: dict[str, str] = field(default_factory=dict)
    """Digests of their files, their commits and versions: what must be equal where a comparison goes on. Under the arms' names."""
    files: dict[str, Path] = field(default_factory=dict)
    """Those files of theirs that lie here."""
    sample_units: dict[str, str] = field(default_factory=dict)
    """By arm."""


def require_own_work(arms: Iterable[ArmSetup], *, host: str | None, micro_benchmark: bool = False) -> OwnFindings:
    """Look at each arm that has work of its own, on a host (None: here), in a process of its own under its Python.

    Of a ``micro_benchmark``, only a Python may be an arm's own.

    Raises:
        PlanError: an arm's Python has no Ringside, or another one, or its work cannot be run.
        LaunchError: the host does not answer.
    """
    found, asked, seen = OwnFindings(), dict[str, dict[str, str]](), dict[str, WorkloadFacts]()
    for arm in arms:
        if not arm.arm.has_own_work:
            continue
        own, name = arm.own, arm.name
        if own.python is not None:
            if own.python not in asked:
                asked[own.python] = _require_ringside(own, name, host=host)
            found.sources.update({f"{name}/{package}": version for package, version in asked[own.python].items()})
        if own.commit is not None:
            found.sources[f"{name}/commit"] = own.commit
        if not micro_benchmark:
            facts = _seen(arm, seen, host=host)
            found.sample_units[name] = facts.sample_unit
            found.sources.update({f"{name}/{file}": shown for file, (_, shown) in facts.sources.items()})
            places = {f"{name}/{file}": Path(place) for file, (place, _) in facts.sources.items()}
            found.files.update({file: place for file, place in places.items() if place.is_file()})
        elif arm.arm.model_copy(update={"python": None}).has_own_work:
            raise PlanError(
                f"arm '{name}': workload '{own.reference}' is a micro-benchmark, whose cases all arms share; leave workload, "
                "workload_options and commit out"
            )
    return found


def _seen(arm: ArmSetup, seen: dict[str, WorkloadFacts], *, host: str | None) -> WorkloadFacts:
    """What an arm's work is made of; looked at once for what is run by the same Python, whatever the copies of an arm."""
    own = arm.own
    key = json.dumps([own.python, own.workload, own.options])
    if key not in seen:
        with about(f"arm '{arm.name}'"):
            seen[key] = facts_of(arm.plan, host=host, own=own)
    return seen[key]


def _require_ringside(own: OwnWork, arm: str, *, host: str | None) -> dict[str, str]:
    """Ask an arm's Python which Ringside it has; returns its versions.

    Raises:
        PlanError: none that can be imported, or another one.
    """
    argv, environment = [own.interpreter, "-P", "-c", ANSWER], base_environment() | own.environment
    try:
        versions = json.loads(remote.ask(host, argv, timeout_s=TIMEOUT_S, environment=environment))
    except LaunchError as error:
        raise PlanError(
            f"arm '{arm}': Ringside cannot be imported by '{own.python}' ({error}); install it there, for instance by "
            f"'{own.python} -m pip install', {BY_COMMAND}"
        ) from error
    if versions["ringside"] != digest():
        raise PlanError(
            f"arm '{arm}': '{own.python}' has another Ringside than this one (its files differ), and they would measure unlike; "
            f"install this one there, {BY_COMMAND}"
        )
    return {name: versions[name] for name in VERSIONS if versions.get(name)}


def main() -> None:
    """Look, and answer with what was found."""
    asked = Asked.model_validate_json(sys.argv[1])
    search_beside(Path(asked.beside) if asked.beside else Path.cwd())
    try:
        facts = asked.facts()
    except PlanError as error:
        facts = WorkloadFacts(refused=str(error))
    give(facts.model_dump_json())


if __name__ == "__main__":
    main()
