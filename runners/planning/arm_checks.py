"""Checks arms before anything starts, once hosts are known: their GPUs, launchers and MPI, and what is left in the shell.

Of the shell's variables those count that change what ranks do (``conditions.disturbing_variables``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from backends import Backend
from measurement.agent.ringside_agent.place import HOROVOD
from measurement.conditions.disturbing_variables import Disturbance, told
from measurement.errors import LaunchError, PlanError, UnavailableError, about, shortened
from measurement.plans.plan import Plan
from measurement.probes.installed_libraries import installed_mpi
from runners.hosts.host_facts import CARDS
from runners.launchers import HERE, REGISTRY, make_launcher
from runners.planning.arm_specs import ArmSpec, computes_on_gpu
from runners.planning.arms import ON_GPUS_ONLY
from runners.planning.command_place import require_program
from runners.processes.local import search_path


def require_findable(unfindable: Mapping[str, str], backend: Backend, *, network_interface: str | None) -> None:
    """Refuse hosts whose ranks would tell each other wrong addresses over Gloo.

    Args:
        unfindable: hosts to the reason, see ``runners.hosts.host_facts``.
        backend: over the transport that it will use. Horovod 0.28.1 meets over Gloo under NCCL, too, and heeds no interface there.
        network_interface: where other backends' Gloo takes the address from instead.

    Raises:
        LaunchError: one line for each host.
    """
    if HOROVOD in backend.needs() or (backend.transport == "gloo" and not network_interface):
        lines = [f"host '{host}': {why}" for host, why in unfindable.items()]
        if lines:
            raise LaunchError("\n".join(lines))


def require_gpus_on(facts: Mapping[str, Mapping[str, Any]], arms: Iterable[ArmSpec]) -> None:
    """Refuse a transport that needs GPUs where a host has none. ``facts``: ``runners.hosts.host_facts`` by host.

    Raises:
        PlanError: with the hosts.
    """
    without = [host for host, found in facts.items() if not found.get(CARDS)]
    for setup in arms:
        if without and setup.backend.transport in ON_GPUS_ONLY:
            raise PlanError(
                f"arm '{setup.name}': transport '{setup.backend.transport}' needs a GPU on every host, and NVIDIA's driver shows "
                f"none on {shortened(without)}; use 'gloo', or other hosts"
            )


def require_known_device(facts: Mapping[str, Mapping[str, Any]], arms: Iterable[ArmSpec]) -> None:
    """Have the plan name the device where hosts have GPUs and this machine has none, as a login node.

    ``device: auto`` gave their arms transports for CPUs here, and the ranks would compute on GPUs.
    ``facts``: ``runners.hosts.host_facts`` by host.

    Raises:
        PlanError: with an arm that names no transport, and with the hosts.
    """
    having = [host for host, found in facts.items() if found.get(CARDS)]
    for setup in arms:
        is_open = setup.arm.transport is None and any(name in ON_GPUS_ONLY for name in setup.backend.transports)
        if having and is_open and setup.plan.device == "auto" and not computes_on_gpu("auto"):
            raise PlanError(
                f"arm '{setup.name}' names no transport, and got '{setup.transport}', since this machine shows no GPU; "
                f"there are some on {shortened(having)}: say device: cuda, or device: cpu"
            )


def require_shared_gpus(plan: Plan, exclusive: Mapping[str, Sequence[int]]) -> None:
    """Refuse GPUs that let in one process at a time, where every arm keeps one there. ``exclusive``: their numbers, by host.

    Raises:
        PlanError: with the first of them.
    """
    found = [(host, numbers[0]) for host, numbers in exclusive.items() if numbers]
    if found and plan.measurement.mode != "sequential" and plan.device != "cpu":
        host, number = found[0]
        where = "" if host == HERE else f" of host '{host}'"
        raise PlanError(
            f"GPU {number}{where} is in an exclusive compute mode, and every arm has a process on it; have an administrator set "
            "'nvidia-smi -c DEFAULT', or set measurement.mode: sequential"
        )


def require_executables(arms: Iterable[ArmSpec]) -> None:
    """Check that every launcher's command is there, and is of the right MPI.

    Raises:
        PlanError: one is missing, or is another MPI's.
    """
    here, remedy = Path.cwd(), "run 'make setup', or see 'ringside doctor' for the remedy"
    for setup in arms:
        container, path = setup.plan.container, setup.place.environment(search_path()).get("PATH", search_path())
        if container and not setup.plan.hosts:
            with about("container"):
                load = "load the module that has it, or give its path"
                require_program(container[0], path=search_path(), folder=here, remedy=load)
        with about(f"arm '{setup.name}'"):
            require_program(setup.launcher.executable, path=path, folder=here, remedy=remedy)
        require_mpi(setup, path)


def require_mpi(setup: ArmSpec, path: str) -> None:
    """Check that the program on PATH by which an arm's launcher starts MPI belongs to the MPI that the launcher is for.

    Raises:
        PlanError: it is another MPI's.
    """
    program, wanted = setup.launcher.mpi_program(setup.transport) or ("", "")
    found = installed_mpi(program, path) if program else None
    if found is None or found.name == wanted:
        return
    others = [name for name in REGISTRY.table if (make_launcher(name).mpi_program(setup.transport) or ("", ""))[1] == found.name]
    remedy = f"use launcher '{others[0]}', or " if others else ""
    raise UnavailableError(
        f"arm '{setup.name}': launcher '{setup.launcher_reference}' needs {wanted}, and '{program}' here is {found}'s; "
        f"{remedy}put the '{program}' of {wanted} first on PATH",
        lack=f"'{program}' is {found.name}'s",
    )


def require_undisturbed(arms: Iterable[ArmSpec]) -> list[str]:
    """Refuse variables with which an arm would not be measured truly.

    Returns:
        What readers should know of the others that the shell has, a sentence each.

    Raises:
        PlanError: the first of them.
    """
    found: dict[str, list[Disturbance]] = {}
    for setup in arms:
        refused = setup.backend.refused_environment(setup.rank_environment)
        if refused:
            raise PlanError(f"arm '{setup.name}': {refused} (in the environment of 'ringside' or in the plan's)")
        chosen = setup.plan.environment | setup.environment
        found[setup.name] = [one for one in setup.disturbances if one.name not in chosen]
    return told(found)
