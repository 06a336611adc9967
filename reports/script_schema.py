"""What ``comparison.json`` holds of scripts: what they do differently, and whether they train alike."""

from __future__ import annotations

from typing import Any, Literal

from reports.estimate import Estimate, Stored

Severity = Literal["mistake", "work", "training", "speed", "note"]
"""How much a difference matters: a usual mistake of a porting; other work; another training; other speed; what comes with a
library."""
Nearness = Literal["equal", "equal up to rounding", "apart", "not compared"]
"""How near two arms are."""
LossVerdict = Literal["no worse", "worse", "undecided"]


class ConfigurationDifference(Stored):
    """One setting in which scripts differ, or one thing that their first steps did differently."""

    field: str
    """Such as ``optimizer.0.0.lr``, or of what was seen ``gradients.scale``."""
    values: dict[str, Any]
    """By arm; null where the arm has none. Where ranks of an arm differ: ``{"by_rank": [...]}``."""
    changes_work: bool = False
    """Whether a step, or an epoch, is then another amount of work."""
    allowed: bool = False
    """Whether the plan allows this difference in work (``scripts.allow``)."""
    severity: Severity = "training"
    sentence: str
    """What it means, without a full stop."""

    @property
    def withholds(self) -> bool:
        """Whether there is no verdict, because of it."""
        return self.changes_work and not self.allowed


class StartEquality(Stored):
    """Parameters and buffers before the first step, beside the baseline's."""

    verdict: Literal["equal", "equal up to rounding", "another start", "not compared"] = "not compared"
    distance: float | None = None
    """Relative to the baseline's parameters."""
    names: list[str] = []
    """The parameters that are farthest apart."""
    only_here: list[str] = []
    """Names that the baseline does not have."""
    missing_here: list[str] = []
    """Names that only the baseline has."""


class GradientEquality(Stored):
    """Gradients of the first step after the exchange, beside the baseline's."""

    verdict: Nearness = "not compared"
    distance: float | None = None
    """Relative to the baseline's gradients."""
    tolerance: float | None = None
    factor: float | None = None
    """How many times as large they are, where that alone sets them apart."""
    names: list[str] = []
    """The parameters whose gradients are farthest apart."""


class ParameterEquality(Stored):
    """Parameters after each of the compared steps, beside the baseline's."""

    verdict: Nearness = "not compared"
    distances: list[float] = []
    """After each step, relative to what the steps until then changed."""
    tolerance: float | None = None
    first_difference_step: int | None = None
    """The first step, counted from 1, after which they are apart."""
    names: list[str] = []
    """The parameters that are apart after that step, the farthest first; none where all are."""


class LossEquality(Stored):
    """The loss of one arm, over samples since its start, and how it compares with the baseline's."""

    samples: list[float] = []
    """Where ``curve`` is known: samples of all ranks since the start; steps where samples could not be counted."""
    curve: list[float | None] = []
    """Mean over ranks, launches and the steps near each of ``samples``."""
    later_half: float | None = None
    """Mean loss over the later half, of all launches."""
    difference: Estimate | None = None
    """How much higher than the baseline's over the later half, as a share of it; with a two-sided interval that leaves 5% on either
    side. Null for the baseline."""
    launches: int = 0
    verdict: LossVerdict | None = None
    """Null for the baseline, and where no loss was seen."""
    sentence: str | None = None


class Equality(Stored):
    """Whether the arms train alike. All by arm, the control among them, the baseline only in ``loss``."""

    start: dict[str, StartEquality] = {}
    gradients: dict[str, GradientEquality] = {}
    parameters: dict[str, ParameterEquality] = {}
    loss: dict[str, LossEquality] = {}
    loss_margin: float
    """A loss that is higher by less than this share counts as no worse."""
    loss_unit: Literal["samples", "steps"] = "samples"
    """Against which losses stand."""
    batches: dict[str, str] = {}
    """What the first batches say, in a sentence, of each arm whose batches are known."""
    ranks: dict[str, str] = {}
    """How an arm's own ranks are apart, in a sentence; the baseline's too."""
    arithmetic: str = "float32"
    """The coarsest that both sides compute in: tolerances are for its rounding."""
    repeatable: bool | None = None
    """Whether the control starts as the baseline does; null without one."""
    unequal: list[str] = []
    """Candidates that are not shown to train alike."""
    first_difference_step: int | None = None
    """The first of any candidate: 0 where it has another start, 1 after the first step; null where none is apart."""
    sentence: str
