"""The command line of a standalone run: from its flags to a plan whose single arm are these
ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from backends import backend_class, make_backend
from measurement.agent.ringside_agent.place import HOROVOD, MPI, World
from measurement.environment import describe_variables, disturbances
from measurement.errors import LaunchError, PlanError
from measurement.plans.plan import Plan
from measurement.plans.plan_file import check_plan
from measurement.plans.sections import Arm
from measurement.records.results import ResultsFolder, default_folder, folder_name
from runners.flags import FlagValues, command, values_of
from runners.launchers import read_own_world
from runners.planning.arm_specs import libraries_of
from runners.planning.arms import choose_transport, require_given, require_gpu
from runners.planning.standalone_flags import FLAGS, MODULES, RunOptions, plan_content, settings
from runners.rank.resources import take_resources, threads_of
from runners.standalone.run import StandaloneRun
from workloads import REGISTRY


def epilog(backend: str) -> str:
    """The text of ``--help`` below the flags: the known workloads, and the options of this
    backend.
    """
    fields = backend_class(backend).Options.model_fields
    options = ", ".join(
        f"{name}={field.get_default(call_default_factory=True)}" for name, field in fields.items()
    )
    workloads = ", ".join(sorted(REGISTRY.names()))
    return (
        f"--workload: {workloads}; a torchvision model, such as resnet50; yours by"
        " package.module:Class or path/to/file.py:Class, which 'ringside check' tries.\n\n--option"
        f" of {backend}, with defaults: {options or 'none'}."
    )


def command_line(backend: str) -> Callable[..., None]:
    """Return the command for typer."""
    text = (
        "Measure the throughput of one workload on the ranks this was started on, or train it with"
        " --epochs."
    )
    return command(partial(measure, backend), FLAGS, text=text)


def measure(backend: str, flags: FlagValues) -> None:
    """Run what the flags ask for, as one of the ranks. Collective."""
    content, options = plan_content(flags), RunOptions(**values_of(flags, RunOptions))
    world = read_own_world()
    _require_launcher_in_pod(world, MODULES[backend])
    threads = content["threads"] = threads_of(
        world, asked=content.get("threads"), environment=os.environ
    )
    plan = resolve_plan(options.backend or backend, content, values_of(flags, Arm), world)
    folder = ResultsFolder(
        options.output or default_folder(f"{plan.baseline}-{folder_name(plan.workload)}")
    )
    if world.rank == 0 and (folder.plan_path.exists() or any(folder.root.glob("launch-*"))):
        raise PlanError(
            f"'{folder.root}' holds a run already; give another folder with -o, one for each run,"
            " or remove it"
        )
    take_resources(
        world,
        threads=threads,
        device=plan.device,
        affinity=plan.affinity,
        freed_memory=plan.freed_memory,
    )
    StandaloneRun(plan=plan, world=world, options=options, folder=folder).run()


def _require_launcher_in_pod(world: World, module: str) -> None:
    """Refuse a plain ``python -m module`` in a pod of a Kubernetes job, with a ``LaunchError`` that
    has the command to use.
    """
    if world.launcher != World().launcher:
        return
    says = "and python alone is a world of 1, without the other pods; start the ranks with:"
    if os.environ.get("K_MPI_JOB_ROLE") == "launcher":
        raise LaunchError(f"this is the launcher of an MPIJob, {says} mpirun python -m {module}")
    if "PET_NNODES" in os.environ:
        raise LaunchError(f"this is a pod of a TrainJob, {says} torchrun -m {module}")


def resolve_plan(
    backend: str, content: Mapping[str, Any], arm: Mapping[str, Any], world: World
) -> Plan:
    """Make a plan with these ranks as its single arm, and refuse what cannot work.

    Raises:
        PlanError: the launcher does not give what the backend needs, or the backend cannot do what
            is asked.
    """
    name, options = folder_name(backend), settings(arm.get("options"), "--option")
    arms = {name: {**arm, "backend": backend, "options": options}}
    ranks = {"name": name, "world_size": world.world_size, "baseline": name, "arms": arms}
    plan = check_plan({**content, **ranks}, source="command line")
    planned = plan.arms[name]
    # or refuse; None leaves it to the library
    choose_transport(backend, planned.transport, device=plan.device)
    chosen = make_backend(
        backend, transport=planned.transport, options=options, micro_steps=plan.micro_steps
    )
    if chosen.transport is None and world.launcher == "srun" and HOROVOD in chosen.needs():
        # Horovod would look for variables of horovodrun's or mpirun's
        chosen.transport = "mpi" if MPI in world.gives else "gloo"
        plan = plan.model_copy(
            update={"arms": {name: planned.model_copy(update={"transport": chosen.transport})}}
        )
    if world.world_size > 1:
        require_given(world.gives, chosen, launcher=world.launcher, reference=backend)
    require_gpu(plan.device, chosen.transport, is_here=True)
    if world.rank == 0:
        variables = disturbances(os.environ, chosen.steered_by | libraries_of(plan.device))
        for warning in describe_variables(
            {name: [variable for variable in variables if not variable.variable.is_refused]}
        ):
            print(f"warning: {warning}", file=sys.stderr, flush=True)
    chosen.check(world_size=plan.world_size)
    return plan
