"""Resolves every name in the arms of a plan, and refuses combinations that cannot work, before
anything starts.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from backends import Backend, backend_class, make_backend
from backends.single import Single
from measurement.agent.ringside_agent.place import HOROVOD, MPI, RENDEZVOUS
from measurement.environment import looks_secret
from measurement.errors import PlanError, UnavailableError, quoted, unknown_name
from measurement.plans.plan import FLOOR, Plan
from measurement.plans.sections import Arm
from runners.hosts.placement import planned_hosts
from runners.launchers import HERE, make_launcher
from runners.planning.arm_specs import ArmSpec, computes_on_gpu, seed_of
from runners.planning.command_place import CommandPlace, resolve_place
from runners.protocol import Job

GATE_SAMPLES = 4
"""Samples of a rank in a micro-step that should take little memory. Batch norm over two samples has
only a gradient of rounding."""
ON_GPUS_ONLY = ("nccl",)
"""Transports that move tensors between GPUs only, whatever the backend."""

WHY_NEEDED = {
    RENDEZVOUS: "it gives its ranks no address to meet at (MASTER_ADDR and MASTER_PORT)",
    MPI: "it starts no MPI, as srun does with --mpi=pmix: each rank would be a world of 1",
    HOROVOD: "no HOROVOD_* variables: each rank would be a world of 1",
}
"""Why a launcher that lacks one of these cannot start a backend."""


def resolve_arms(plan: Plan) -> dict[str, ArmSpec]:
    """Resolve every arm that will run, the control included; returns them by name.

    Raises:
        PlanError: an unknown backend, launcher, transport or option, or a combination that cannot
            work.
        HostfileError: its hosts cannot be read, or are too small.
    """
    require_driven(plan)
    arms = {name: resolve_arm(name, arm, plan) for name, arm in plan.compared_arms().items()}
    for setup in arms.values():
        hosts = planned_hosts(setup.plan)
        reason = setup.launcher.refuses(hosts)
        if reason:
            listed = ",".join(map(str, hosts))
            raise PlanError(
                f"arm '{setup.name}': launcher '{setup.launcher_reference}' does not fit hosts"
                f" {listed}: {reason}"
            )
    return arms


def require_driven(plan: Plan) -> None:
    """Refuse a plan whose runs people started themselves, with a ``PlanError``."""
    if plan.measurement.mode == "separate":
        raise PlanError(
            "measurement.mode 'separate' is that of runs which people started themselves: 'ringside"
            " report RUN RUN ...' compares them; for 'ringside compare' use 'interleaved' or"
            " 'sequential', and another results folder"
        )


def floor_beside(baseline: ArmSpec) -> ArmSpec:
    """Return the arm without a library, with the ranks, launcher and environment of the
    baseline.
    """
    arm = Arm(
        backend="backends.single:Floor",
        launcher=baseline.launcher_reference,
        environment=baseline.arm.environment,
    )
    return resolve_arm(FLOOR, arm, baseline.plan)


def resolve_arm(name: str, arm: Arm, plan: Plan) -> ArmSpec:
    """Resolve one arm, see ``resolve_arms``."""
    place, work = _own_work(name, arm, plan)
    backend_type = backend_class(arm.backend)
    own_batch = None if arm.local_batch_size == plan.local_batch_size else arm.local_batch_size
    gate_plan = plan.model_copy(
        update={"local_batch_size": min(plan.local_batch_size, GATE_SAMPLES)}
    )
    gate_batch = plan_of_arm(gate_plan, backend_type).local_batch_size if plan.batches else None
    plan = plan.model_copy(update={"local_batch_size": own_batch or plan.local_batch_size})
    plan = plan_of_arm(plan, backend_type).model_copy(update=work)
    transport = choose_transport(arm.backend, arm.transport, device=plan.device)
    backend = make_backend(
        arm.backend,
        transport=transport,
        options=arm.options,
        micro_steps=plan.micro_steps,
        arm=name,
    )
    kind = "cuda" if computes_on_gpu(plan.device) else "cpu"
    backend.check_device(kind)
    plan.speed.check_device(kind)
    reference = arm.launcher or next(
        iter(usable_launchers(backend)), backend.customary_launchers[0]
    )
    launcher = make_launcher(reference)
    require_given(launcher.gives(transport), backend, launcher=reference, reference=arm.backend)
    is_here = all(entry.host == HERE for entry in planned_hosts(plan))
    require_gpu(plan.device, transport, is_here=is_here)
    backend.check(world_size=plan.world_size)
    require_no_secrets(plan, arm)
    refused = backend.refused_environment(plan.environment | arm.environment)
    if refused:
        raise PlanError(f"environment of arm '{name}': {refused}")
    return ArmSpec(
        name=name,
        arm=arm,
        plan=plan,
        launcher_reference=reference,
        transport=transport,
        gate_batch_size=gate_batch,
        recorded={**place.recorded, **({"local_batch_size": own_batch} if own_batch else {})},
        place=place,
        backend=backend,
        launcher=launcher,
        variables=place.environment | backend.environment(),
    )


def _own_work(name: str, arm: Arm, plan: Plan) -> tuple[CommandPlace, dict[str, Any]]:
    """Where an arm starts, and the plan keys of the workload that it finds there."""
    workload = arm.workload or plan.workload
    module, _, cls = workload.rpartition(":")
    if arm.commit is not None and not module:
        raise PlanError(
            f"arm '{name}': commit {quoted(arm.commit)}: workload '{workload}' is not in a git"
            " repository; name yours as path/to/file.py:Class or package.module:Class, or leave"
            " commit out"
        )
    place = resolve_place(name, arm, plan, file=module if module.endswith(".py") else None)
    workload = f"{place.file}:{cls}" if place.file else workload
    return place, {
        "workload": workload,
        "workload_options": {**plan.workload_options, **arm.workload_options},
    }


def require_no_secrets(plan: Plan, arm: Arm) -> None:
    """Refuse variables whose names say that they are secrets, with a ``PlanError``."""
    for where, names in (
        ("environment", [*plan.environment, *arm.environment]),
        ("forward_environment", plan.forward_environment),
    ):
        secret = next((name for name in names if looks_secret(name)), None)
        if secret:
            raise PlanError(
                f"{where}: '{secret}' looks like a secret, and launchers show their ranks'"
                " environment in command lines, which every user of a host can read; have the"
                " workload read it from a file that only you can read"
            )


def plan_of_arm(plan: Plan, backend: type[Backend]) -> Plan:
    """Return the plan as an arm of this backend runs it.

    A single process that trains beside arms of many ranks is their reference, so its local batch is
    their global batch; so is that of a process that takes the place of all ranks.

    Raises:
        PlanError: that process cannot take the place of ranks on several hosts.
    """
    if not backend.takes_all_ranks_batches and (
        plan.training is None or not issubclass(backend, Single)
    ):
        return plan
    if backend.takes_all_ranks_batches and len(planned_hosts(plan)) > 1:
        raise PlanError(
            f"{backend.__name__} is one process and the plan has several hosts; leave it out, or"
            " compare on one host"
        )
    global_batch_size = plan.local_batch_size * plan.micro_steps * plan.world_size
    return plan.model_copy(
        update={"world_size": 1, "micro_steps": 1, "local_batch_size": global_batch_size}
    )


def choose_transport(reference: str, transport: str | None, *, device: str) -> str | None:
    """Return the transport asked for, or the backend's default on this device.

    Raises:
        PlanError: the backend does not have it.
    """
    transports = backend_class(reference).transports
    if transport is None:
        on_gpus = (name for name in transports if name in ON_GPUS_ONLY and computes_on_gpu(device))
        return next(on_gpus, next(iter(transports), None))
    if transport not in transports:
        raise PlanError(unknown_name(f"transport of backend '{reference}'", transport, transports))
    return transport


def usable_launchers(backend: Backend) -> list[str]:
    """Return those of a backend's customary launchers that can start it, the default first."""
    return [
        name
        for name in backend.customary_launchers
        if backend.needs() <= make_launcher(name).gives(backend.transport)
    ]


def require_given(
    gives: AbstractSet[str], backend: Backend, *, launcher: str, reference: str
) -> None:
    """Refuse a launcher that does not give what a backend needs, over the transport that it will
    use.

    ``gives``: what the launcher gives or, in a running rank, what its variables show.

    Raises:
        PlanError: with what is missing, and which launchers give it.
    """
    missing = backend.needs() - gives
    if not missing:
        return
    over = f" over '{backend.transport}'" if MPI in missing else ""
    names = " or ".join(f"'{name}'" for name in usable_launchers(backend))
    remedy = f"use {names or 'a launcher that does'}"
    why = "; ".join(WHY_NEEDED.get(need, f"it does not give '{need}'") for need in sorted(missing))
    raise PlanError(
        f"launcher '{launcher}' cannot start backend '{reference}'{over} ({why}); {remedy}"
    )


def require_gpu(device: str, transport: str | None, *, is_here: bool) -> None:
    """Refuse GPUs, or a transport that needs them, without any, with a ``PlanError``.

    ``is_here``: whether all ranks run on this machine.
    """
    import torch

    needs_gpu = transport in ON_GPUS_ONLY
    if needs_gpu and device == "cpu":
        raise PlanError(
            f"transport '{transport}' needs a GPU, and the device is 'cpu'; use 'gloo', or leave"
            " device out"
        )
    if is_here and (needs_gpu or device == "cuda") and not torch.cuda.is_available():
        what = "device 'cuda'" if device == "cuda" else f"transport '{transport}'"
        raise UnavailableError(
            f"{what} needs a GPU, and PyTorch sees none on this machine (see 'ringside doctor');"
            " use 'gloo', and 'cpu' or 'auto'",
            lack="no GPU",
        )


def job_of(
    plan: Plan,
    name: str,
    arm: Arm,
    *,
    transport: str | None,
    launch: int = 0,
    global_plan: Plan | None = None,
) -> Job:
    """Make the job of an arm from the plan as the arm runs it (``plan_of_arm``).

    All its ranks get the same one.

    Launches that train to the end differ by their seed; others must not differ. ``global_plan``:
    the plan of the arms with many ranks, if ``plan`` is for a single process beside them.
    """
    scaled_by = global_plan or plan
    is_scaled = plan.training is not None and plan.training.learning_rate_scaling == "linear"
    plan_fields = {
        field: getattr(plan, field) for field in Job.model_fields.keys() & Plan.model_fields.keys()
    }
    arm_fields: dict[str, Any] = {
        "arm": name,
        "backend": arm.backend,
        "transport": transport,
        "options": arm.options,
        "seed": seed_of(plan, launch),
        "learning_rate_scale": scaled_by.world_size * scaled_by.micro_steps if is_scaled else None,
    }
    return Job(**plan_fields | arm_fields)
