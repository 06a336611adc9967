"""Looks at a workload in a process of its own: its data, on another host; or what it is made of, under another Python or commit.

``python -m runners.planning.check_process JSON`` answers with what it found: here, or on another host.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from measurement.conditions.sources import digests, sources_of
from measurement.environment import forwarded_by_name
from measurement.errors import LaunchError, PlanError
from measurement.plans.plan import Plan
from measurement.registry import search_beside
from measurement.users_code import is_users
from runners.planning.own_work import OwnWork
from runners.planning.workload import WorkloadSetup, require_model, resolve_workload
from runners.processes import remote
from runners.processes.answers import MARK, give, new_mark, taken
from runners.processes.local import base_environment
from runners.processes.remote import last_line
from workloads import Workload

TIMEOUT_S = 300.0
DATA_TIMEOUT_S = 600.0
"""Reading all file names of a large data set over a network takes minutes."""
ASKED_OF_PLAN = ("workload", "workload_options", "local_batch_size", "seed")


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
    refused = {host: _read(answer, "", plan.workload).refused for host, answer in zip(hosts, answers, strict=True)}
    lines = [f"host '{host}': {' '.join(message.split())}" for host, message in refused.items() if message]
    if lines:
        raise PlanError("\n".join(lines))


def facts_of(plan: Plan, *, host: str | None = None, own: OwnWork | None = None) -> WorkloadFacts:
    """What a process of its own finds, on a host (None: here); ``own``: of the arm, where this has work of its own.

    Raises:
        PlanError: there is no such workload, or its data is missing.
        LaunchError: the process does not answer.
    """
    if host is not None:
        facts = _read(remote.ask(host, _argv(plan, own), timeout_s=TIMEOUT_S), "", plan.workload)
    else:
        environment = base_environment() | forwarded_by_name(os.environ, plan.forward_environment) | plan.environment
        facts = _facts_here(plan, environment | (own.environment if own else {}), own=own)
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
    return plan.container.inside(argv) if plan.container else argv


def _facts_here(plan: Plan, environment: Mapping[str, str], *, own: OwnWork | None) -> WorkloadFacts:
    mark = new_mark()
    try:
        done = subprocess.run(
            _argv(plan, own), env={**environment, MARK: mark}, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"workload '{plan.workload}' could not be looked at within {TIMEOUT_S:g} s") from error
    code = done.returncode
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return _read(taken(done.stdout, mark) or b"", f"{how}; {last_line(done.stderr.decode(errors='replace'))}", plan.workload)


def _read(said: bytes, ended: str, workload: str) -> WorkloadFacts:
    try:
        return WorkloadFacts.model_validate_json(said)
    except ValidationError:
        message = f"workload '{workload}': the process that looks at it ended in the middle ({ended or 'nothing said'})"
        raise LaunchError(f"{message}; try it in a script of your own: build the model and take a step") from None


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
