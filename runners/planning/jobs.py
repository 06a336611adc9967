"""Makes the job of an arm's ranks from a plan."""

from __future__ import annotations

from measurement.plan import Arm, Plan
from runners.protocol.messages import Job


def job_of(plan: Plan, name: str, arm: Arm, *, transport: str | None, launch: int = 0, global_plan: Plan | None = None) -> Job:
    """Make the job of an arm, the same for all its ranks.

    Args:
        plan: as the arm runs it (``planning.arms.plan_of_arm``).
        name: of the arm.
        arm: what it is.
        transport: None: the backend's own default.
        launch: number of the launch. Launches that train to the end differ by their seed; others must not differ at all.
        global_plan: the plan of the arms with many ranks, if ``plan`` is that of a single process beside them.
    """
    scaled_by = global_plan or plan
    return Job(
        arm=name,
        backend=arm.backend,
        transport=transport,
        options=arm.options,
        workload=plan.workload,
        workload_options=plan.workload_options,
        local_batch_size=plan.local_batch_size,
        micro_steps=plan.micro_steps,
        world_size=plan.world_size,
        seed=seed_of(plan, launch),
        device=plan.device,
        precision=plan.precision,
        loss_scale=plan.loss_scale,
        max_gradient_norm=plan.max_gradient_norm,
        speed=plan.speed,
        training=plan.training,
        learning_rate_scale=scaled_by.world_size * scaled_by.micro_steps if plan.training else None,
    )


def seed_of(plan: Plan, launch: int) -> int:
    """Return the seed of a launch."""
    return plan.seed + (launch if plan.training else 0)
