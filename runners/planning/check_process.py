"""Checks a workload in a process of its own, so that nothing of it stays in the driver, or in the memory of a rank without one.

``python -m runners.planning.check_process JSON`` answers with what it found: here, or on another host.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from measurement.conditions.sources import digests, sources_of
from measurement.environment import forwarded_by_name
from measurement.errors import LaunchError, PlanError, shortened
from measurement.plans.plan import Plan
from measurement.registry import search_beside
from measurement.users_code import is_users, place_in
from runners.planning.arms import ArmSetup, resolve_arm
from runners.planning.own_work import OwnWork
from runners.planning.trial_findings import AskedArm, WorkloadFacts
from runners.planning.workload import WorkloadSetup, resolve_workload
from runners.planning.workload_check import check_workload
from runners.processes import remote
from runners.processes.answers import MARK, give, new_mark, taken
from runners.processes.local import base_environment
from runners.processes.remote import last_line
from runners.protocol.messages import Job
from workloads import REGISTRY, Workload

TIMEOUT_S = 300.0
DATA_TIMEOUT_S = 600.0
"""Reading all file names of a large data set over a network takes minutes."""
ASKED_OF_PLAN = (
    *("workload", "workload_options", "local_batch_size", "seed", "device", "world_size"),
    *("micro_steps", "speed", "training"),
)
OTHERS = ("synthetic",)
"""Workloads of ours whose model is not."""


class Asked(BaseModel):
    """What the process is asked, in plain values."""

    plan: dict[str, Any]
    """``ASKED_OF_PLAN``."""
    arms: list[AskedArm] | None
    """Those that will train the workload; None: look at its data, and nothing else."""
    beside: str | None = None
    worktree: str | None = None
    repository: str | None = None
    """Where an arm has a commit of its own, see ``OwnWork``."""

    def facts(self) -> WorkloadFacts:
        """Try the workload out in this process; raises a ``PlanError`` where there is none, or nothing to train."""
        facts = self._found()
        self._require_of_commit()
        cls = resolve_workload(self.plan["workload"], self.plan["workload_options"]).workload
        files = sources_of(cls)
        facts.sample_unit, shown = cls.sample_unit, digests(files)
        facts.sources = {name: (str(path), shown[name]) for name, path in files.items()}
        return facts

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

    def _found(self) -> WorkloadFacts:
        plan = self.plan
        setup = resolve_workload(plan["workload"], plan["workload_options"])
        if not issubclass(setup.workload, Workload):
            message = f"workload '{setup.reference}' is a micro-benchmark, which checks its results in every run; check a model"
            raise PlanError(message)
        if self.arms is None:
            setup.build(local_batch_size=plan["local_batch_size"], seed=plan["seed"]).require_data()
            return WorkloadFacts()
        return check_workload(
            setup,
            **{name: plan[name] for name in ("local_batch_size", "seed", "world_size")},
            device=torch.device("cuda" if plan["device"] != "cpu" and torch.cuda.is_available() else "cpu"),
            channels_last=plan["speed"]["channels_last"],
            steps_of=self._steps,
            arms=self.arms,
        )

    def _steps(self, workload: Workload) -> int | None:
        """How many steps a training takes; None: blocks go on for as long as they are given."""
        training, batches = self.plan["training"], workload.batches_per_epoch(world_size=self.plan["world_size"])
        return training["epochs"] * batches // self.plan["micro_steps"] if training and batches else None


def is_ours(reference: str) -> bool:
    """Whether a workload, by its name, is one of ours, which our tests check."""
    return reference in REGISTRY.table and reference not in OTHERS


def is_to_check(setup: WorkloadSetup) -> bool:
    """Whether a workload is trained and not one of ours, which our tests check."""
    return issubclass(setup.workload, Workload) and not is_ours(setup.reference)


def require_workable(plan: Plan, arms: Iterable[ArmSetup], *, host: str | None) -> list[str]:
    """Try the plan's workload out on one rank of a host (None: this one); returns what should be known, a sentence each.

    Raises:
        PlanError: it cannot work, or an arm cannot train it; a finding to a line.
        LaunchError: the host does not answer.
    """
    facts = facts_of(plan, AskedArm.of(arms), host=host)
    require_sound(facts, plan.workload, max_gradient_norm=plan.max_gradient_norm)
    return facts.notes


def require_workable_here(plan: Plan, job: Job) -> list[str]:
    """Try a workload out beside a rank that has no driver, in its environment; its one arm is the job's."""
    arm = AskedArm(name=None, backend=job.backend, transport=job.transport, options=job.options)
    facts = _facts_here(plan, [arm], os.environ)
    require_sound(facts, job.workload, max_gradient_norm=job.max_gradient_norm)
    return facts.notes


def require_data_on(hosts: Sequence[str], plan: Plan, workload: WorkloadSetup) -> None:
    """Have other hosts look at the workload's data, all at once, as their ranks will see it.

    Raises:
        PlanError: it is missing or damaged on some; one line for each.
        LaunchError: a host does not answer.
    """
    if not hosts or not issubclass(workload.workload, Workload) or workload.workload.require_data is Workload.require_data:
        return
    argv = _argv(plan, None)
    with ThreadPoolExecutor(max_workers=64) as pool:
        answers = list(pool.map(lambda host: remote.ask(host, argv, timeout_s=DATA_TIMEOUT_S), hosts))
    refused = {host: _read(answer, "", plan.workload).refused for host, answer in zip(hosts, answers, strict=True)}
    lines = [f"host '{host}': {' '.join(message.split())}" for host, message in refused.items() if message]
    if lines:
        raise PlanError("\n".join(lines))


def require_sound(facts: WorkloadFacts, workload: str, *, max_gradient_norm: float | None = None) -> None:
    """Refuse a workload of which something cannot work, or that an arm cannot train, with a ``PlanError``."""
    if facts.refused:
        raise PlanError(facts.refused)
    errors = list(facts.errors)
    if facts.sparse and max_gradient_norm is not None:
        errors.append(
            f"max_gradient_norm = {max_gradient_norm:g}, but PyTorch clips no sparse gradients, which {shortened(facts.sparse)} "
            "have; leave it out, or build the embedding with sparse=False"
        )
    found = [*(f"workload '{workload}': {error}" for error in errors), *facts.arm_errors]
    if found:
        raise PlanError("\n".join(found))


def facts_of(plan: Plan, arms: Sequence[AskedArm] | None, *, host: str | None = None, own: OwnWork | None = None) -> WorkloadFacts:
    """What a process of its own finds in a plan's workload, see ``require_workable``.

    ``arms``: None: it looks at the data alone. ``own``: of the arms, where these have work of their own.
    """
    if host is not None:
        return _read(remote.ask(host, _argv(plan, arms, own), timeout_s=TIMEOUT_S), "", plan.workload)
    environment = base_environment() | forwarded_by_name(os.environ, plan.forward_environment) | plan.environment
    return _facts_here(plan, arms, environment | (own.environment if own else {}), own=own)


def _argv(plan: Plan, arms: Sequence[AskedArm] | None, own: OwnWork | None = None) -> list[str]:
    places = {name: getattr(own, name) for name in ("beside", "worktree", "repository")} if own else {}
    asked = Asked(
        plan=plan.model_dump(mode="json", include=set(ASKED_OF_PLAN)),
        arms=None if arms is None else list(arms),
        **{name: str(place) for name, place in places.items() if place},
    )
    argv = remote.python("runners.planning.check_process", asked.model_dump_json())
    argv = [own.interpreter, *argv[1:]] if own else argv
    return plan.container.inside(argv) if plan.container else argv


def _facts_here(
    plan: Plan, arms: Sequence[AskedArm] | None, environment: Mapping[str, str], *, own: OwnWork | None = None
) -> WorkloadFacts:
    mark = new_mark()
    command = _argv(plan, arms, own)
    try:
        done = subprocess.run(command, env={**environment, MARK: mark}, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return WorkloadFacts(notes=[f"the workload was not checked: one step of 2 samples took longer than {TIMEOUT_S:g} s"])
    code = done.returncode
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    ended = f"{how}; {_last_words(done.stderr.decode(errors='replace'))}"
    return _read(taken(done.stdout, mark) or b"", ended, plan.workload)


def _last_words(errors: str) -> str:
    """The user's line in what ``faulthandler`` says of a process that a signal ended; else the last line."""
    place = place_in("\n".join(reversed(errors.splitlines())))
    return f"at {place}" if place is not None else last_line(errors)


def _read(said: bytes, ended: str, workload: str) -> WorkloadFacts:
    try:
        return WorkloadFacts.model_validate_json(said)
    except ValidationError:
        message = f"workload '{workload}': the process that tried it out ended in the middle ({ended or 'nothing said'})"
        raise LaunchError(f"{message}; try it in a script of your own: build the model and take a step") from None


def check_and_print(plan: Plan, *, with_arms: bool) -> None:
    """Try a plan's workload out on the CPU, and print what was found, whatever it is.

    If wanted, its arms' backends are asked, too, but for arms with work of their own (``own_checks``).

    Raises:
        PlanError: something cannot work.
    """
    alike = {name: arm for name, arm in plan.arms.items() if not arm.has_own_work}
    arms = AskedArm.of(resolve_arm(name, arm, plan) for name, arm in alike.items()) if with_arms else []
    facts = facts_of(plan.model_copy(update={"device": "cpu"}), arms)
    if not facts.refused:
        found = [
            f"{name:10} {facts.found[name]}" for name in ("model", "optimizer", "batch", "step", "held out") if name in facts.found
        ]
        print(plan.workload, *found, *(f"note       {note}" for note in facts.notes), sep="\n  ")
    require_sound(facts, plan.workload, max_gradient_norm=plan.max_gradient_norm)


def main() -> None:
    """Check, and answer with what was found."""
    faulthandler.enable()
    asked = Asked.model_validate_json(sys.argv[1])
    search_beside(Path(asked.beside) if asked.beside else Path.cwd())
    try:
        facts = asked.facts()
    except PlanError as error:
        facts = WorkloadFacts(refused=str(error))
    give(facts.model_dump_json())


if __name__ == "__main__":
    main()
