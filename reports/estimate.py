"""A figure and how sure it is."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Caution = Literal["one launch", "two launches", "one run", "two runs"]
"""Why an interval is missing, or too wide to be of use."""
RunOrder = Literal["alternating", "mixed", "one after the other"]
"""How the runs of two arms lay in time (``reports.statistics.separate.run_order``)."""


class Estimate(BaseModel):
    """A value with its interval; the bounds are null where the data cannot carry one. Unit: that of the field it is in."""

    model_config = ConfigDict(extra="forbid")

    value: float
    ci_low: float | None = None
    ci_high: float | None = None

    def excludes(self, value: float) -> bool:
        """Whether there is an interval and it lies on one side of ``value``."""
        return self.ci_low is not None and self.ci_high is not None and not self.ci_low <= value <= self.ci_high

    def times(self, factor: float) -> Estimate:
        """The estimate in another unit."""
        low, high = (None if bound is None else bound * factor for bound in (self.ci_low, self.ci_high))
        return Estimate(value=self.value * factor, ci_low=low, ci_high=high)
