"""The part of ``comparison.json`` that holds a comparison with an earlier result of the same plan."""

from __future__ import annotations

from typing import Literal

from reports.estimate import Estimate, Stored

ChangeVerdict = Literal["regressed", "improved", "no regression", "undecided"]
ChangeWithheld = Literal["launches", "load", "work", "control", "stalls"]
"""``launches``: one of the two has a single launch. ``load``: the machine was not quiet. Else as ``reports.schema.Withheld``."""


class Change(Stored):
    """How one figure changed: an arm's throughput, or its ratio to the baseline."""

    arm: str
    baseline: str | None = None
    """The arm that the ratio is to; null: the figure is the arm's own throughput."""
    case: str | None = None
    """The micro-benchmark's case; null where the workload is trained."""
    before: float
    """Samples per second, or the ratio; the geometric mean over launches."""
    after: float
    change: Estimate
    """``after`` over ``before``, below 1 where it is slower now; unpaired, from the launches of both results."""
    at_least: float | None = None
    """One-sided bound of ``change``: no more is lost, with the interval's confidence. Null where there is no interval."""
    launches_before: int
    launches_after: int
    verdict: ChangeVerdict
    """``no regression``: ``at_least`` is within what may be lost. Else by the interval: below 1 regressed, above 1 improved."""
    is_beyond: bool = False
    """Whether the verdict is regressed and the whole interval is below 1 - ``allow_slower``: what ends with code 3."""
    withheld_by: ChangeWithheld | None = None
    """Why the verdict is undecided though the interval might decide."""


class Against(Stored):
    """A comparison held against an earlier result: two dates, not two arms that took turns."""

    comparison_id: str
    """The earlier result's."""
    folder: str
    """Where it lies, as it was given."""
    created_at: str
    """When it was measured."""
    baseline: str
    allow_slower: float
    """The share of its speed that a figure may lose: 0.05 for 5%."""
    confidence: float
    """With which the intervals of all throughputs hold at once, and those of all ratios."""
    verdict: ChangeVerdict
    """The worst of all changes: regressed, undecided, no regression, improved."""
    headline: str
    """What changed, in one sentence without a full stop: first that these are two dates, and what the baseline did."""
    remedy: str
    """How to measure both states in turn instead, in one sentence."""
    notes: list[str] = []
    """What differs between the two and was allowed, or is what was asked about, such as sources; which arms have no counterpart."""
    changes: list[Change]
    """Throughputs in the plan's order of arms, the baseline's first; then ratios."""

    @property
    def beyond(self) -> list[Change]:
        """The regressions beyond what is allowed."""
        return [change for change in self.changes if change.is_beyond]

    @property
    def of_baseline(self) -> Change | None:
        """What the baseline's throughput did meanwhile; None of a micro-benchmark, or where it has no timing."""
        return next((one for one in self.changes if (one.arm, one.baseline, one.case) == (self.baseline, None, None)), None)
