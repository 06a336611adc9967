"""A figure and how sure it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict

RunOrder = Literal["alternating", "mixed", "one after the other"]
"""The order of the runs of two arms in time (``reports.statistics.student.run_order``)."""


class Stored(BaseModel):
    """Base of what ``comparison.json`` holds."""

    model_config = ConfigDict(extra="forbid")


class Estimate(Stored):
    """A value with its interval; the bounds are null where the data cannot carry one.

    Unit: that of the field it is in.
    """

    value: float
    ci_low: float | None = None
    ci_high: float | None = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Both bounds; None where the data cannot carry an interval."""
        return None if self.ci_low is None or self.ci_high is None else (self.ci_low, self.ci_high)

    @property
    def one_sided(self) -> tuple[float, float] | None:
        """Bounds each of which holds by itself with the interval's confidence; ``bounds`` where
        there are no others.
        """
        return self.bounds

    @property
    def half_width(self) -> float | None:
        """Half the length of the interval; None without one."""
        return None if self.bounds is None else (self.bounds[1] - self.bounds[0]) / 2

    def excludes(self, value: float) -> bool:
        """Whether there is an interval and it does not contain ``value``."""
        return self.bounds is not None and not self.bounds[0] <= value <= self.bounds[1]

    def mapped(self, change: Callable[[float], float]) -> Estimate:
        """The estimate of another quantity, which grows with this one."""
        low, high = (
            None if bound is None else change(bound) for bound in (self.ci_low, self.ci_high)
        )
        return Estimate(value=change(self.value), ci_low=low, ci_high=high)

    def times(self, factor: float) -> Estimate:
        """The estimate in another unit."""
        return self.mapped(lambda value: value * factor)
