"""Checks a workload in a process of its own, so that nothing of it stays in the driver, or in the memory of a rank without one.

``python -m runners.planning.check_process JSON`` prints what it found as its last line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from pydantic import ValidationError

from backends import backend_class, check_options
from measurement.environment import forwarded_by_name
from measurement.errors import LaunchError, PlanError, shortened
from measurement.plan import Plan
from measurement.registry import search_beside
from runners.planning.arms import ArmSetup
from runners.planning.workload import WorkloadSetup, resolve_workload
from runners.planning.workload_check import WorkloadFacts, check_workload
from runners.processes import remote
from runners.processes.answers import MARK, give, new_mark, taken
from runners.processes.local import base_environment
from runners.processes.remote import last_line
from runners.protocol.messages import Job
from workloads import REGISTRY, Workload

TIMEOUT_S = 300.0
OTHERS = ("synthetic",)
"""Workloads of ours whose model is not."""


def is_to_check(setup: WorkloadSetup) -> bool:
    """Whether a workload is trained and not one of ours, which our tests check."""
    own = setup.reference in REGISTRY.table and setup.reference not in OTHERS
    return issubclass(setup.workload, Workload) and not own


def require_workable(plan: Plan, arms: Iterable[ArmSetup], *, host: str | None) -> list[str]:
    """Try the plan's workload out on one rank of a host.

    Args:
        plan: names the workload.
        arms: those that will train it.
        host: None: this one.

    Returns:
        What should be known, a sentence each.

    Raises:
        PlanError: it cannot work, or an arm cannot train it; a finding to a line.
        LaunchError: the host does not answer.
    """
    facts = _facts(plan, host)
    require_sound(facts, plan.workload, max_gradient_norm=plan.max_gradient_norm)
    return [*facts.notes, *arm_notes(facts, arms)]


def require_workable_here(plan: Plan, job: Job) -> list[str]:
    """The same beside a rank that has no driver, in its environment; its one arm is the job's."""
    facts = _facts_here(plan, os.environ)
    require_sound(facts, job.workload, max_gradient_norm=job.max_gradient_norm)
    backend = backend_class(job.backend)
    options = check_options(job.backend, job.options, source=f"options of backend '{job.backend}'")
    missing, sparse = facts.without_gradient, facts.sparse
    return [*facts.notes, *backend.check_gradients(transport=job.transport, options=options, missing=missing, sparse=sparse)]


def require_sound(facts: WorkloadFacts, workload: str, *, max_gradient_norm: float | None = None) -> None:
    """Refuse a workload of which something cannot work.

    Raises:
        PlanError: with all that was found.
    """
    errors = list(facts.errors)
    if facts.sparse and max_gradient_norm is not None:
        errors.append(
            f"max_gradient_norm = {max_gradient_norm:g}, but PyTorch clips no sparse gradients, which {shortened(facts.sparse)} "
            "have; leave it out, or build the embedding with sparse=False"
        )
    if errors:
        raise PlanError("\n".join(f"workload '{workload}': {error}" for error in errors))


def arm_notes(facts: WorkloadFacts, arms: Iterable[ArmSetup]) -> list[str]:
    """What each arm's backend makes of parameters without gradients, or with sparse ones.

    Raises:
        PlanError: it cannot train them.
    """
    notes: dict[str, None] = {}
    for setup in arms:
        try:
            found = setup.backend.check_gradients(
                transport=setup.transport, options=setup.options, missing=facts.without_gradient, sparse=facts.sparse
            )
        except PlanError as error:
            raise PlanError(f"arm '{setup.name}': {error}") from error
        notes |= dict.fromkeys(f"arm '{setup.name}': {note}" for note in found)
    return list(notes)


def _facts(plan: Plan, host: str | None) -> WorkloadFacts:
    if host is not None:
        return _read(remote.ask(host, _argv(plan), timeout_s=TIMEOUT_S), "")
    return _facts_here(plan, base_environment() | forwarded_by_name(os.environ, plan.forward_environment) | plan.environment)


def _argv(plan: Plan) -> list[str]:
    wanted = ("workload", "workload_options", "local_batch_size", "seed", "device", "world_size")
    return remote.python("runners.planning.check_process", json.dumps(plan.model_dump(mode="json", include=set(wanted))))


def _facts_here(plan: Plan, environment: Mapping[str, str]) -> WorkloadFacts:
    mark = new_mark()
    try:
        done = subprocess.run(_argv(plan), env={**environment, MARK: mark}, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return WorkloadFacts(notes=[f"the workload was not checked: one step of 2 samples took longer than {TIMEOUT_S:g} s"])
    ended = f"exit code {done.returncode}; {last_line(done.stderr.decode(errors='replace'))}"
    return _read(taken(done.stdout, mark) or b"", ended)


def _read(said: bytes, ended: str) -> WorkloadFacts:
    try:
        return WorkloadFacts.model_validate_json(said)
    except ValidationError:
        raise LaunchError(
            f"the process that tried the workload out ended without an answer ({ended or 'nothing said'}); "
            "try: ringside check WORKLOAD"
        ) from None


def main() -> None:
    """Check, and answer with what was found."""
    asked = json.loads(sys.argv[1])
    search_beside(Path.cwd())
    setup = resolve_workload(asked["workload"], asked["workload_options"])
    device = torch.device("cuda" if asked["device"] != "cpu" and torch.cuda.is_available() else "cpu")
    given = {name: asked[name] for name in ("local_batch_size", "seed", "world_size")}
    give(check_workload(setup, **given, device=device).model_dump_json())


if __name__ == "__main__":
    main()
