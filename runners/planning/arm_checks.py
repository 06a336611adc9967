"""Checks arms once hosts are known, before anything starts: their GPUs, launchers, MPI, and
variables of the shell.

Only variables that change what ranks do count (``measurement.environment``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from backends import Backend
from measurement.agent.ringside_agent.place import HOROVOD
from measurement.environment import Disturbance, describe_variables
from measurement.errors import LaunchError, PlanError, UnavailableError, about, shortened
from measurement.host import installed_mpi
from runners.hosts.host_facts import CARDS
from runners.launchers import REGISTRY, make_launcher
from runners.planning.arm_specs import ArmSpec, computes_on_gpu
from runners.planning.arms import ON_GPUS_ONLY
from runners.planning.command_place import require_program
from runners.processes.local import search_path


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
        path = setup.place.environment(search_path()).get("PATH", search_path())
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
