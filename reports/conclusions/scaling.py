"""What follows from points together: who wins where, speed-up and scaling efficiency.

Speed-up: an arm's throughput over that of its scaling baseline. Scaling efficiency: speed-up over
how many times the cores (or GPUs) that the ranks compute on, never over ranks that share them; with
throughput in samples per second that is the same in weak and in strong scaling. The scaling
baseline is the process without wrapper, where the plan has one and it was measured, else the arm
itself on one rank, else the arm itself at the first point.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from reports.schema import ArmSummary, Comparison, Estimate

BaseKind = Literal["single process without wrapper", "one rank with wrapper", "the first point"]
WITHOUT_WRAPPER = ("single",)
"""Backends of a single process that does not scale itself."""


@dataclass(frozen=True, kw_only=True)
class ScalingBase:
    """What an arm's scaling is relative to."""

    kind: BaseKind
    point: Comparison
    arm: ArmSummary

    @property
    def name(self) -> str:
        """Such as ``single at one (single process without wrapper)``."""
        return f"{self.arm.name} at {self.point.name} ({self.kind})"


def scaling_base(points: Sequence[Comparison], name: str) -> ScalingBase | None:
    """What an arm's scaling is relative to; None where that was not measured, or where all points
    have as many ranks.
    """
    if len({point.world_size for point in points}) == 1:
        return None
    alone = [(point, arm) for point in points for arm in point.arms if point.world_size == 1]
    bases: dict[BaseKind, list[tuple[Comparison, ArmSummary]]] = {
        "single process without wrapper": [
            (point, arm) for point, arm in alone if arm.backend in WITHOUT_WRAPPER
        ],
        "one rank with wrapper": [(point, arm) for point, arm in alone if arm.name == name],
        "the first point": [(points[0], points[0].arm(name))],
    }
    return next(
        (
            ScalingBase(kind=kind, point=point, arm=arm)
            for kind, places in bases.items()
            for point, arm in places
            if arm.throughput_per_s
        ),
        None,
    )


def with_scaling(arm: ArmSummary, point: Comparison, base: ScalingBase | None) -> ArmSummary:
    """The arm with its speed-up, its efficiency and what they are relative to; unchanged where it
    was not measured.
    """
    if base is None or arm.throughput_per_s is None or base.arm.throughput_per_s is None:
        return arm
    is_base = base.point is point and base.arm.name == arm.name
    speed_up = (
        Estimate(value=1.0)
        if is_base
        else quotient(arm.throughput_per_s, base.arm.throughput_per_s)
    )
    return arm.model_copy(
        update={
            "speed_up": speed_up,
            "scaling_efficiency": speed_up.times(units(base.arm, base.point) / units(arm, point)),
            "scaling_baseline": base.name,
        }
    )


def units(arm: ArmSummary, point: Comparison) -> int:
    """What an arm computes on at a point: its cores or GPUs, or where that is not known as many as
    it has ranks.
    """
    return arm.compute_units or (1 if arm.backend in WITHOUT_WRAPPER else point.world_size)


def has_own_units(points: Sequence[Comparison]) -> bool:
    """Whether more ranks mean as many times more cores or GPUs at every point, so that there is an
    ideal speed-up.
    """
    ratios = {
        units(arm, point) / point.world_size
        for point in points
        for arm in point.arms
        if arm.throughput_per_s
    }
    return len(ratios) == 1


def quotient(estimate: Estimate, other: Estimate) -> Estimate:
    """One estimate over another, independent one; errors add as squares of logarithms."""
    value = estimate.value / other.value
    if estimate.bounds is None or other.bounds is None:
        return Estimate(value=value)
    (low, high), (least, most) = estimate.bounds, other.bounds
    down = math.hypot(math.log(estimate.value / low), math.log(most / other.value))
    up = math.hypot(math.log(high / estimate.value), math.log(other.value / least))
    return Estimate(value=value, ci_low=value * math.exp(-down), ci_high=value * math.exp(up))


def leaders(point: Comparison, *, without: Collection[str] = ()) -> tuple[str, ...]:
    """The arms than which none is shown to be faster at a point: one, or several that are tied;
    none where nothing was compared.

    ``without``: arms that do not run at every point; they only show what the others scale from.
    """
    timed = [result for result in point.candidates if result.throughput_ratio is not None]
    if all(result.candidate in without for result in timed):
        return ()
    return tuple(name for name in point.fastest if name not in without)
