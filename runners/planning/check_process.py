"""Checks workloads in separate processes: their data on another host, or the sources of an arm with
work of its own.

``python -m runners.planning.check_process JSON`` answers with ``WorkloadFacts``. It runs here or on
another host, under the arm's Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from measurement.agent.ringside_agent.machine import PACKAGES, fingerprint
from measurement.agent.ringside_agent.users_lines import is_users
from measurement.environment import forwarded_by_name
from measurement.errors import LaunchError, PlanError, about
from measurement.plans.plan import Plan
from measurement.registry import digest, digests, search_beside, sources_of
from runners.planning.arm_specs import ArmSpec
from runners.planning.command_place import CommandPlace
from runners.planning.workload import WorkloadSetup, require_model, resolve_workload
from runners.planning.workload_check import require_data
from runners.processes import remote
from runners.processes.local import base_environment
from runners.processes.remote import give
from workloads import Workload

TIMEOUT_S = 300.0
DATA_TIMEOUT_S = 600.0
"""Reading all file names of a large data set over a network takes minutes."""
CHECKED_PLAN_KEYS = ("workload", "workload_options", "local_batch_size", "seed")
VERSIONS = ("python", *PACKAGES, "cuda")
BY_COMMAND = (
    "or compare commands, which need no Ringside there (command: in the arm, or ringside ab"
    " 'COMMAND' 'COMMAND')"
)


class WorkloadFacts(BaseModel):
    """The answer of the process."""

    refused: str | None = None
    """Why it cannot be trained: there is no such workload, or its data is missing."""
    sample_unit: str = "samples"
    sources: dict[str, tuple[str, str]] = {}
    """Source files of the workload: the path of each, and its digest."""
    ringside: str
    """Digest of the Ringside that answers (``measurement.registry.digest``)."""
    versions: dict[str, str]
    """Its Python's, and its libraries'."""


class CheckRequest(BaseModel):
    """The question to the process, in plain values."""

    plan: dict[str, Any]
    """``CHECKED_PLAN_KEYS``."""
    is_model: bool = True
    """Whether the workload is to be trained; else only the Python is checked."""
    worktree: str | None = None
    repository: str | None = None
    """For an arm with its own commit: the checkout, and the repository that it is from."""

    def facts(self) -> dict[str, Any]:
        """Check the workload; raises a ``PlanError`` if there is none, or its data is missing."""
        if not self.is_model:
            return {}
        setup = resolve_workload(self.plan["workload"], self.plan["workload_options"])
        require_model(setup)
        require_data(setup, local_batch_size=self.plan["local_batch_size"], seed=self.plan["seed"])
        self._require_committed_modules()
        files = sources_of(setup.workload)
        digest_of = digests(files)
        sources = {name: (str(path), digest_of[name]) for name, path in files.items()}
        return {"sample_unit": setup.workload.sample_unit, "sources": sources}

    def _require_committed_modules(self) -> None:
        """Refuse modules imported from the repository's working files instead of the commit, with a
        ``PlanError``.
        """
        if self.repository is None or self.worktree is None:
            return
        for module in list(sys.modules.values()):
            file = Path(getattr(module, "__file__", None) or os.devnull).resolve()
            is_of_commit = file.is_relative_to(self.worktree)
            if file.is_relative_to(self.repository) and not is_of_commit and is_users(file):
                raise PlanError(
                    f"'{file}' is imported from the working files, not from the commit: it is on"
                    " PYTHONPATH, or installed in editable mode; remove it from there, or name the"
                    " workload by its file, which then finds the modules beside it"
                )


def require_data_on(hosts: Sequence[str], plan: Plan, workload: WorkloadSetup) -> None:
    """Have other hosts check the workload's data, all at once, as their ranks will see it.

    Raises:
        PlanError: it is missing or damaged on some; one line for each.
        LaunchError: a host does not answer.
    """
    if (
        not hosts
        or not issubclass(workload.workload, Workload)
        or workload.workload.require_data is Workload.require_data
    ):
        return
    argv = _argv(plan)
    answers = remote.on_each(hosts, lambda host: remote.ask(host, argv, timeout_s=DATA_TIMEOUT_S))
    lines = [
        f"host '{host}': {' '.join(refused.split())}"
        for host, answer in zip(hosts, answers, strict=True)
        if (refused := WorkloadFacts.model_validate_json(answer).refused)
    ]
    if lines:
        raise PlanError("\n".join(lines))


def facts_of(
    plan: Plan, *, host: str | None = None, place: CommandPlace | None = None, is_model: bool = True
) -> WorkloadFacts:
    """Check a workload in a separate process, on a host (None: here); ``place``: where an arm with
    work of its own starts.

    Raises:
        PlanError: there is no such workload, or its data is missing; or the Python has no Ringside,
            or another one.
        LaunchError: the process does not answer.
    """
    environment = (
        base_environment()
        | forwarded_by_name(os.environ, plan.forward_environment)
        | plan.environment
    )
    python = place.python if place else None
    try:
        with about(f"workload '{plan.workload}'"):
            answer = remote.ask(
                host,
                _argv(plan, place, is_model=is_model),
                timeout_s=TIMEOUT_S,
                environment=environment | (place.environment if place else {}),
                folder=place.folder if place else None,
            )
    except LaunchError as error:
        if python is None:
            raise
        raise PlanError(
            f"Ringside cannot be imported by '{python}' ({error}); install it there, for instance"
            f" by '{python} -m pip install', {BY_COMMAND}"
        ) from error
    facts = WorkloadFacts.model_validate_json(answer)
    if python and facts.ringside != digest():
        raise PlanError(
            f"'{python}' has another Ringside than this one (its files differ), and they would"
            f" measure differently; install this one there, {BY_COMMAND}"
        )
    if facts.refused:
        raise PlanError(facts.refused)
    return facts


def _argv(plan: Plan, place: CommandPlace | None = None, *, is_model: bool = True) -> list[str]:
    checkout = place.checkout if place else None
    request = CheckRequest(
        plan=plan.model_dump(mode="json", include=set(CHECKED_PLAN_KEYS)),
        is_model=is_model,
        worktree=str(checkout) if checkout else None,
        repository=str(place.repository) if checkout and place else None,
    )
    argv = remote.python("runners.planning.check_process", request.model_dump_json())
    argv = [place.interpreter, *argv[1:]] if place else argv
    return [*plan.container, *argv[1:]] if plan.container else argv


@dataclass(frozen=True, kw_only=True)
class OwnFindings:
    """Facts about the arms that have work of their own."""

    sources: dict[str, str] = field(default_factory=dict)
    """Digests of their files, and versions, under the arms' names. They must be equal where a
    comparison resumes."""
    files: dict[str, Path] = field(default_factory=dict)
    """Their files that are on this machine."""
    sample_units: dict[str, str] = field(default_factory=dict)
    """By arm."""


def require_own_work(
    arms: Iterable[ArmSpec], *, host: str | None, micro_benchmark: bool = False
) -> OwnFindings:
    """Check each arm that has work of its own, on a host (None: here), in a separate process under
    its Python.

    In a ``micro_benchmark``, an arm may have only its own Python. Equal work is checked once.

    Raises:
        PlanError: an arm's Python has no Ringside, or another one, or its work cannot be run.
        LaunchError: the host does not answer.
    """
    findings, checked = OwnFindings(), dict[tuple[object, ...], WorkloadFacts]()
    for setup in (setup for setup in arms if setup.arm.has_own_work):
        name, place, plan = setup.name, setup.place, setup.plan
        with about(f"arm '{name}'"):
            if micro_benchmark and setup.arm.model_copy(update={"python": None}).has_own_work:
                raise PlanError(
                    f"workload '{plan.workload}' is a micro-benchmark, whose cases all arms share;"
                    " leave workload, workload_options, directory and commit out"
                )
            key = (place, plan.workload, str(plan.workload_options))
            if key not in checked:
                checked[key] = facts_of(plan, host=host, place=place, is_model=not micro_benchmark)
            facts = checked[key]
        versions = facts.versions if place.python else {}
        findings.sources.update({f"{name}/{key}": version for key, version in versions.items()})
        if not micro_benchmark:
            findings.sample_units[name] = facts.sample_unit
        for file, (path, file_digest) in facts.sources.items():
            findings.sources[f"{name}/{file}"] = file_digest
            if Path(path).is_file():
                findings.files[f"{name}/{file}"] = Path(path)
    return findings


def main() -> None:
    """Answer the question on the command line."""
    request = CheckRequest.model_validate_json(sys.argv[1])
    search_beside(Path.cwd())
    try:
        facts = request.facts()
    except PlanError as error:
        facts = {"refused": str(error)}
    facts_here = fingerprint()
    versions = {name: str(facts_here[name]) for name in VERSIONS if facts_here.get(name)}
    give(WorkloadFacts(ringside=digest(), versions=versions, **facts).model_dump_json())


if __name__ == "__main__":
    main()
