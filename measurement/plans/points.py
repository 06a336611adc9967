"""The points of a study: each is a plain plan of its own, measured by the whole method."""

from __future__ import annotations

from collections.abc import Collection

from measurement.errors import PlanError
from measurement.plans.plan import FOR_HOSTS, Plan
from measurement.plans.plan_file import check_plan


def plan_at(study: Plan, name: str, *, without: Collection[str] = ()) -> Plan:
    """The comparison at one point of a study, without the arms that cannot run there.

    Raises:
        PlanError: what the point says makes no plan.
    """
    point = study.points[name]
    if study.baseline in without:
        raise PlanError(f"point '{name}': the baseline '{study.baseline}' cannot run there; choose one that runs at every point")
    changes = point.model_dump(exclude_none=True)
    if study.scaling == "strong":
        changes["local_batch_size"] = shared_batch(study, name)
    content = study.model_dump(exclude={"points", "scaling"}) | changes
    content["name"] = f"{study.name}.{name}"
    content["arms"] = {arm: value for arm, value in content["arms"].items() if arm not in without}
    if content["hosts"] is None:
        content |= {field: changes.get(field) for field in FOR_HOSTS}
    return check_plan(content, source=f"point '{name}'")


def world_size_at(study: Plan, name: str) -> int:
    """Ranks at a point."""
    return study.points[name].world_size or study.world_size


def shared_batch(study: Plan, name: str) -> int:
    """Samples of each rank and micro-step at a point, where all points share the first one's global batch.

    Raises:
        PlanError: it leaves a remainder.
    """
    first = next(iter(study.points))
    samples = (study.points[first].local_batch_size or study.local_batch_size) * world_size_at(study, first)
    ranks = world_size_at(study, name)
    if samples % ranks:
        raise PlanError(
            f"point '{name}': scaling: strong shares the first point's {samples} samples among {ranks} ranks, which leaves a "
            f"remainder; choose a local_batch_size with which '{first}' has a multiple of {ranks} samples"
        )
    return samples // ranks
