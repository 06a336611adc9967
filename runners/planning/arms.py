"""A plan held against what exists: every name resolved, every combination that cannot work refused before anything starts."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from backends import Backend, backend_class
from backends.single import Single
from measurement.errors import PlanError, unknown_name
from measurement.fingerprint import usable_cores
from measurement.plan import Arm, Plan
from measurement.plan_file import checked
from measurement.record import Case
from runners.epochs import steps_per_epoch
from runners.launchers import Launcher, make_launcher
from runners.places import planned_hosts
from workloads import MicroBenchmark, Workload, workload_class

WHY_NOT = {
    ("horovod", "torchrun"): "no HOROVOD_* variables: each rank would be a world of 1",
    ("horovod", "spawn"): "no HOROVOD_* variables: each rank would be a world of 1",
    ("ddp", "horovodrun"): "it gives DDP's ranks no address to meet at",
}


@dataclass(frozen=True, kw_only=True)
class ArmSetup:
    """An arm with everything it names made real."""

    name: str
    arm: Arm
    plan: Plan
    """As this arm runs it: see ``plan_of_arm``."""
    backend: type[Backend]
    options: BaseModel
    transport: str | None
    launcher: Launcher
    launcher_reference: str

    @property
    def environment(self) -> dict[str, str]:
        """What this arm alone sets in its ranks."""
        return self.backend.environment(transport=self.transport, options=self.options) | self.arm.environment


@dataclass(frozen=True, kw_only=True)
class WorkloadSetup:
    """The workload with its options checked."""

    reference: str
    workload: type[Workload] | type[MicroBenchmark]
    options: BaseModel

    def training(self, *, local_batch_size: int, seed: int) -> Workload:
        """What is trained."""
        assert issubclass(self.workload, Workload)
        return self.workload(local_batch_size=local_batch_size, seed=seed, options=self.options)

    def micro_benchmark(self, *, seed: int) -> MicroBenchmark | None:
        """What is repeated; None where it is trained."""
        return self.workload(seed=seed, options=self.options) if issubclass(self.workload, MicroBenchmark) else None


def resolve_arms(plan: Plan) -> dict[str, ArmSetup]:
    """Every arm that will run, the control included, by name.

    Raises:
        PlanError: an unknown backend, launcher, transport or option, or a combination that cannot work.
        HostfileError: its hosts cannot be read, or are too small.
    """
    arms = {name: resolve_arm(name, arm, plan) for name, arm in plan.all_arms().items()}
    for setup in arms.values():
        hosts = planned_hosts(setup.plan)
        reason = setup.launcher.refuses(hosts)
        if reason:
            listed = ",".join(map(str, hosts))
            raise PlanError(f"arm '{setup.name}': launcher '{setup.launcher_reference}' does not fit hosts {listed}: {reason}")
    return arms


def resolve_arm(name: str, arm: Arm, plan: Plan) -> ArmSetup:
    """One arm; see ``resolve_arms``."""
    backend = backend_class(arm.backend)
    plan = plan_of_arm(plan, backend)
    options = checked(backend.Options, arm.options, source=f"options of arm '{name}'")
    transport = choose_transport(arm.backend, backend, arm.transport, device=plan.device)
    usable = backend.launchers_for(transport)
    reference = arm.launcher or (usable[0] if usable else "torchrun")
    if usable and ":" not in reference and reference not in usable:
        make_launcher(reference)  # an unknown name is the better message
        raise PlanError(refused(arm.backend, reference, usable, transport=transport))
    launcher = make_launcher(reference)
    backend.check(transport=transport, options=options, micro_steps=plan.micro_steps, world_size=plan.world_size)
    return ArmSetup(
        name=name,
        arm=arm,
        plan=plan,
        backend=backend,
        options=options,
        transport=transport,
        launcher=launcher,
        launcher_reference=reference,
    )


def plan_of_arm(plan: Plan, backend: type[Backend]) -> Plan:
    """The plan as an arm of this backend runs it.

    A backend of one process, in training beside many ranks, is what they should come to: it has their global batch as its own.
    """
    if plan.training is None or not issubclass(backend, Single):
        return plan
    alone = {"world_size": 1, "micro_steps": 1, "local_batch_size": plan.local_batch_size * plan.micro_steps * plan.world_size}
    return plan.model_copy(update=alone)


def refused(reference: str, launcher: str, usable: Sequence[str], *, transport: str | None) -> str:
    """The message for a launcher that cannot start a backend."""
    reason = "it starts no MPI: each rank would be a world of 1" if transport == "mpi" else None
    reason = WHY_NOT.get((reference, launcher), reason)
    over = f" over '{transport}'" if transport == "mpi" else ""
    names = " or ".join(f"'{name}'" for name in usable)
    return f"launcher '{launcher}' cannot start backend '{reference}'{over}{f' ({reason})' if reason else ''}; use {names}"


def choose_transport(reference: str, backend: type[Backend], transport: str | None, *, device: str) -> str | None:
    """The transport asked for, or the backend's customary one on this device.

    Raises:
        PlanError: the backend does not know it.
    """
    if not backend.transports:
        if transport is not None:
            raise PlanError(f"backend '{reference}' has no transport to choose, but '{transport}' was asked for; leave it out")
        return None
    if transport is None:
        return "nccl" if "nccl" in backend.transports and _on_gpu(device) else backend.transports[0]
    if transport not in backend.transports:
        raise PlanError(unknown_name(f"transport of backend '{reference}'", transport, backend.transports))
    return transport


def resolve_workload(reference: str, given: dict[str, object]) -> WorkloadSetup:
    """The workload with its options.

    Raises:
        PlanError: unknown workload or option.
    """
    workload, implied = workload_class(reference)
    options = checked(workload.Options, implied | given, source=f"workload_options of '{reference}'")
    return WorkloadSetup(reference=reference, workload=workload, options=options)


def resolve_cases(plan: Plan, workload: WorkloadSetup, arms: dict[str, ArmSetup]) -> list[Case]:
    """The cells of a micro-benchmark; none in training.

    Raises:
        PlanError: it cannot run among so few ranks, or an arm's backend has no operations to repeat; or the plan has training.
    """
    benchmark = workload.micro_benchmark(seed=plan.seed)
    if benchmark is None:
        return []
    if plan.training is not None:
        raise PlanError(f"workload '{plan.workload}' is a micro-benchmark, and training is for models; leave training out")
    for setup in arms.values():
        if setup.backend.communicator is Backend.communicator:
            raise PlanError(
                f"arm '{setup.name}': backend '{setup.arm.backend}' offers no collectives, which workload '{plan.workload}' "
                "repeats; use one that does, such as 'ddp' or 'horovod'"
            )
    return list(benchmark.cases(plan.world_size))


def require_epochs(plan: Plan, workload: WorkloadSetup) -> None:
    """What is to be trained to the end must have one; seen here where the data is, elsewhere by the ranks.

    Raises:
        PlanError: the plan has training, but the workload has no epochs, too few samples for one step, or no data.
    """
    if plan.training is None or plan.hosts is not None:
        return
    trained = workload.training(local_batch_size=plan.local_batch_size, seed=plan.seed)
    steps_per_epoch(trained, reference=plan.workload, world_size=plan.world_size, micro_steps=plan.micro_steps)


def require_executables(arms: dict[str, ArmSetup]) -> None:
    """Every launcher's command must be there before anything starts.

    Raises:
        PlanError: one is missing.
    """
    for setup in arms.values():
        if shutil.which(setup.launcher.executable, path=search_path()) is None:
            raise PlanError(
                f"arm '{setup.name}' needs '{setup.launcher.executable}', which is neither beside {sys.executable} nor on PATH; "
                f"run 'make setup', or see 'ringside doctor' for the remedy"
            )


def search_path() -> str:
    """PATH with the folder of the running Python first, so that an environment need not be activated."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def cores() -> int:
    """Cores this process may use."""
    return len(usable_cores()) or os.cpu_count() or 1


def _on_gpu(device: str) -> bool:
    import torch

    return device == "cuda" or (device == "auto" and torch.cuda.is_available())
