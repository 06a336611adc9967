"""Checks whether arms can run, before anything starts: which of them this machine has to leave out
(``ringside compare --available``) and, once hosts are known, their GPUs, launchers, MPI, and
variables of the shell.

Only variables that change what ranks do count (``measurement.environment``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backends import Backend
from measurement.agent.ringside_agent.place import HOROVOD
from measurement.environment import Disturbance, describe_variables
from measurement.errors import LaunchError, PlanError, UnavailableError, about, shortened
from measurement.host import installed_mpi
from measurement.plans.plan import Plan
from measurement.plans.sections import Arm
from measurement.records.results import ResultsFolder
from runners.hosts.host_facts import CARDS
from runners.launchers import REGISTRY, make_launcher
from runners.planning.arm_specs import ArmSpec, computes_on_gpu
from runners.planning.arms import ON_GPUS_ONLY, resolve_arm
from runners.planning.command_place import require_program
from runners.planning.plan_reading import DEFAULT
from runners.processes.local import search_path

FALLBACK_ARMS = {
    "ddp-mpi": Arm(backend="ddp", transport="mpi", launcher="mpirun"),
    "fsdp2-gloo": Arm(backend="fsdp2", transport="gloo", launcher="torchrun"),
}
"""Where Horovod is missing, the default plan compares DDP over Gloo with the first of these that
can run."""


def arms_to_compare(plan: Plan, folder: ResultsFolder, *, only_available: bool) -> Plan:
    """Return the plan with the arms to compare: those that its folder began with; in a new folder,
    if asked, those that can run.

    Raises:
        PlanError: too few arms are left.
    """
    if plan.are_scripts and only_available:
        raise PlanError(
            "--available is for arms of backends; arms by command all run, or none: leave the flag"
            " out"
        )
    if folder.plan_path.is_file():
        begun = folder.read_plan()
        arms = {
            name: arm
            for name, arm in {**begun.arms, **plan.arms}.items()
            if name not in begun.left_out
        }
        return _with_arms(plan, arms, left_out=begun.left_out) if begun.left_out else plan
    if not only_available:
        return plan
    reasons = {name: why_not_here(name, arm, plan) for name, arm in plan.arms.items()}
    left_out = {name: reason for name, reason in reasons.items() if reason}
    if not left_out:
        return plan
    arms = {name: arm for name, arm in plan.arms.items() if name not in left_out}
    if len(arms) == 1 and plan.name == DEFAULT:
        others = FALLBACK_ARMS.items()
        arms |= [(name, arm) for name, arm in others if not why_not_here(name, arm, plan)][:1]
    if len(arms) < 2:
        raise PlanError(f"fewer than two arms can run here; {left_out_line(left_out)}")
    return _with_arms(plan, arms, left_out=left_out)


def _with_arms(plan: Plan, arms: Mapping[str, Arm], *, left_out: Mapping[str, str]) -> Plan:
    changes: dict[str, Any] = {
        "arms": dict(arms),
        "baseline": plan.baseline if plan.baseline in arms else next(iter(arms)),
        "left_out": dict(left_out),
    }
    if plan.question not in {*arms, *(arm.backend for arm in arms.values())}:
        changes["question"] = None
    return plan.model_copy(update=changes)


def why_not_here(name: str, arm: Arm, plan: Plan) -> str | None:
    """What an arm needs and this machine lacks; None if nothing. A mistake in the plan is
    raised.
    """
    try:
        setup = resolve_arm(name, arm, plan)
        for module, title in setup.backend.imports().items():
            if arm.python is None and find_spec(module) is None:
                return f"{title} is not installed"
        require_executables([setup])
    except UnavailableError as error:
        return error.lack
    return None


def left_out_line(left_out: Mapping[str, str]) -> str:
    """Return which arms are left out, why, and what to do, in one line."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        by_reason.setdefault(reason, []).append(name)
    reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    return f"left out: {reasons}; 'ringside doctor' says why"


def require_findable(
    unfindable: Mapping[str, str], backend: Backend, *, network_interface: str | None
) -> None:
    """Refuse hosts whose ranks would give each other wrong addresses over Gloo.

    Args:
        unfindable: hosts to the reason, see ``runners.hosts.host_facts``.
        backend: over the transport that it will use. Horovod 0.28.1 meets over Gloo under NCCL,
            too, and ignores interfaces there.
        network_interface: where other backends' Gloo takes the address from instead.

    Raises:
        LaunchError: one line for each host.
    """
    if HOROVOD in backend.needs() or (backend.transport == "gloo" and not network_interface):
        lines = [f"host '{host}': {why}" for host, why in unfindable.items()]
        if lines:
            raise LaunchError("\n".join(lines))


def require_gpus(facts: Mapping[str, Mapping[str, Any]], arms: Iterable[ArmSpec]) -> None:
    """Refuse a transport that needs GPUs where a host has none, and ``device: auto`` where hosts
    have GPUs and this machine has none, as a login node: arms would get transports for CPUs here,
    and their ranks would compute on GPUs.

    ``facts``: ``runners.hosts.host_facts`` by host.

    Raises:
        PlanError: with an arm, and with the hosts.
    """
    with_gpus = [host for host, host_facts in facts.items() if host_facts.get(CARDS)]
    without = [host for host in facts if host not in with_gpus]
    for setup in arms:
        if without and setup.backend.transport in ON_GPUS_ONLY:
            raise PlanError(
                f"arm '{setup.name}': transport '{setup.backend.transport}' needs a GPU on every"
                f" host, and NVIDIA's driver shows none on {shortened(without)}; use 'gloo', or"
                " other hosts"
            )
        is_open = setup.arm.transport is None and {*ON_GPUS_ONLY} & {*setup.backend.transports}
        if with_gpus and is_open and setup.plan.device == "auto" and not computes_on_gpu("auto"):
            raise PlanError(
                f"arm '{setup.name}' names no transport, and got '{setup.transport}', since this"
                f" machine shows no GPU; there are some on {shortened(with_gpus)}: say device:"
                " cuda, or device: cpu"
            )


def require_executables(arms: Iterable[ArmSpec]) -> None:
    """Check that every launcher's command exists and belongs to the right MPI.

    Raises:
        PlanError: one is missing, or belongs to another MPI.
    """
    here, remedy = Path.cwd(), "run 'make setup', or see 'ringside doctor' for the remedy"
    for setup in arms:
        container = setup.plan.container
        path = setup.place.environment.get("PATH", search_path())
        if container and not setup.plan.hosts:
            with about("container"):
                load = "load the module that has it, or give its path"
                require_program(container[0], path=search_path(), folder=here, remedy=load)
        with about(f"arm '{setup.name}'"):
            require_program(setup.launcher.executable, path=path, folder=here, remedy=remedy)
        require_mpi(setup, path)


def require_mpi(setup: ArmSpec, path: str) -> None:
    """Check that the MPI program on PATH belongs to the MPI that an arm's launcher is for.

    Raises:
        PlanError: it belongs to another MPI.
    """
    program, required_mpi = setup.launcher.mpi_program(setup.transport) or ("", "")
    installed = installed_mpi(program, path) if program else None
    if installed is None or installed.name == required_mpi:
        return
    usable_launchers = [
        name
        for name in REGISTRY.table
        if (make_launcher(name).mpi_program(setup.transport) or ("", ""))[1] == installed.name
    ]
    remedy = f"use launcher '{usable_launchers[0]}', or " if usable_launchers else ""
    raise UnavailableError(
        f"arm '{setup.name}': launcher '{setup.launcher_reference}' needs {required_mpi}, and"
        f" '{program}' here is {installed}'s; {remedy}put the '{program}' of {required_mpi} first"
        " on PATH",
        lack=f"'{program}' is {installed.name}'s",
    )


def require_undisturbed(arms: Iterable[ArmSpec]) -> list[str]:
    """Refuse variables that would distort an arm's measurement.

    Returns:
        Notes on other variables of the shell, a sentence each.

    Raises:
        PlanError: with the first such variable.
    """
    disturbances: dict[str, list[Disturbance]] = {}
    for setup in arms:
        refused = setup.backend.refused_environment(setup.rank_environment)
        if refused:
            raise PlanError(
                f"arm '{setup.name}': {refused} (in the environment of 'ringside' or in the plan's)"
            )
        set_by_plan = setup.plan.environment | setup.environment
        disturbances[setup.name] = [
            disturbance for disturbance in setup.disturbances if disturbance.name not in set_by_plan
        ]
    return describe_variables(disturbances)
