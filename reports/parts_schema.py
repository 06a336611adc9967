"""Parts of ``comparison.json``: a figure and how sure it is, how arms converge, whether scripts
train alike, and what changed since an earlier result.
"""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

from measurement.plans.settings import Quantity, TrainingSettings
from reports.reasons import ChangeWithheld

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

    def times(self, factor: float) -> Estimate:
        """The estimate in another unit; ``factor``: above 0."""
        low, high = (bound and bound * factor for bound in (self.ci_low, self.ci_high))
        return Estimate(value=self.value * factor, ci_low=low, ci_high=high)


Convergence = Literal["same", "differs", "undecided"]
NoDifference = Literal["nothing held out", "no common seed", "few seeds"]
"""Why accuracies cannot be compared, or only without an interval."""
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)


class SeedCurve(Stored):
    """An arm trained with one seed: a value for each epoch."""

    launch: int
    seed: int
    finished: bool
    """It trained to its end; curves that did not are drawn, but do not count."""
    train_s: list[float]
    """Training seconds of this arm until the epoch's end; evaluation and the other arms' turns are
    not counted."""
    figures: dict[Quantity, list[float | None]]
    """Null: the workload does not report it, or the value is not finite."""


class Band(Stored):
    """Over seeds, a value for each epoch; null where a seed has none."""

    mean: list[float | None]
    low: list[float | None]
    """The least of the seeds."""
    high: list[float | None]


class MeanCurve(Stored):
    """All seeds of an arm together."""

    seeds: list[int]
    """How many trained that long, epoch by epoch."""
    train_s: list[float]
    """Mean of the seeds."""
    bands: dict[Quantity, Band]
    """By quantity, those that are known."""


class ArmTraining(Stored):
    """How one arm converges, and how soon."""

    name: str
    seeds: int
    """That trained to their end."""
    final_top1: Estimate | None = None
    """Held-out accuracy after the last epoch: mean over seeds; null where nothing is held out."""
    difference: Estimate | None = None
    """Difference of ``final_top1`` to the reference's: mean of the differences seed by seed; null
    for the reference."""
    pairs: int = 0
    """Seeds that it is the mean of."""
    convergence: Convergence | None = None
    """Null for the reference."""
    caution: NoDifference | None = None
    note: str | None = None
    """``caution`` in words."""
    seeds_reached: int = 0
    time_to_accuracy_s: float | None = None
    """Median over seeds; one that did not reach the target counts as later than all that did."""
    time_to_train_s: Estimate | None = None
    """Training seconds until the target accuracy or, where the plan has none, until the end:
    geometric mean over the seeds that trained to their end; null where one of them did not reach
    the target."""
    time_ratio: Estimate | None = None
    """Time to accuracy over the baseline's: geometric mean of the ratios seed by seed; below 1 it
    is sooner.

    From the seeds with which both reached the target; without bounds where that is not all of them,
    since those left out are the slow ones.
    """
    time_pairs: int = 0
    """Seeds that it is the mean of."""
    time_unpaired: int = 0
    """Seeds that both trained to the end, and with which one of the two did not reach the
    target."""
    curve: MeanCurve | None = None
    by_seed: list[SeedCurve] = []


class TrainingSummary(Stored):
    """How all arms converge."""

    settings: TrainingSettings
    """The plan's."""
    reference: str
    """The arm that the others should converge like: that of a single process where there is one,
    else the baseline."""
    baseline: str
    """The arm that times are relative to."""
    confidence: float
    arms: list[ArmTraining]

    def arm(self, name: str) -> ArmTraining:
        """The arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)


Nearness = Literal["equal", "equal up to rounding", "apart", "not compared"]
"""How near two arms are."""
LossVerdict = Literal["no worse", "worse", "undecided"]


class StartEquality(Stored):
    """Parameters and buffers before the first step, beside the baseline's."""

    verdict: Literal["equal", "equal up to rounding", "another start", "not compared"] = (
        "not compared"
    )
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
    """How many times as large they are, where they differ by that factor alone."""
    names: list[str] = []
    """The parameters whose gradients are farthest apart."""


class ParameterEquality(Stored):
    """Parameters after each of the compared steps, beside the baseline's."""

    verdict: Nearness = "not compared"
    distances: list[float] = []
    """After each step, relative to what the steps until then changed."""
    tolerance: float | None = None
    perturbed: bool = False
    """Whether they were changed in their last place after step 1, as the control's are."""
    judged_steps: int = 0
    """How many of them were judged: none of the perturbed control's after the first, and none from
    where the control shows that rounding grows too far on."""
    first_difference_step: int | None = None
    """The first step, counted from 1, after which they are apart."""
    names: list[str] = []
    """The parameters that are apart after that step, the farthest first; none where all are."""


class LossEquality(Stored):
    """The loss of one arm, over samples since its start, and how it compares with the
    baseline's.
    """

    samples: list[float] = []
    """Where ``curve`` is known: samples of all ranks since the start; steps where samples could not
    be counted."""
    curve: list[float | None] = []
    """Mean over ranks, launches and the steps near each of ``samples``."""
    difference: Estimate | None = None
    """How much higher than the baseline's over the later half, as a share of it; with a two-sided
    interval that leaves 5% on either side. Null for the baseline."""
    launches: int = 0
    verdict: LossVerdict | None = None
    """Null for the baseline, and where no loss was seen."""
    sentence: str | None = None


class Equality(Stored):
    """Whether the arms train alike.

    All by arm, the control among them, the baseline only in ``loss``.
    """

    start: dict[str, StartEquality] = {}
    gradients: dict[str, GradientEquality] = {}
    parameters: dict[str, ParameterEquality] = {}
    loss: dict[str, LossEquality] = {}
    loss_margin: float
    """A loss that is higher by less than this share counts as no worse."""
    loss_unit: Literal["samples", "steps"] = "samples"
    """The unit of ``LossEquality.samples``."""
    batches: dict[str, str] = {}
    """What the first batches say, in a sentence, of each arm whose batches are known."""
    ranks: dict[str, str] = {}
    """How the ranks of one arm differ from each other, in a sentence; also of the baseline."""
    unequal: list[str] = []
    """Candidates that are not shown to train alike."""
    first_difference_step: int | None = None
    """The first of any candidate: 0 where it has another start, 1 after the first step; null where
    none is apart."""
    sentence: str


ChangeVerdict = Literal["regressed", "improved", "no regression", "undecided"]


class Change(Stored):
    """How one figure changed: an arm's throughput, or its ratio to the baseline."""

    arm: str
    baseline: str | None = None
    """The arm that the ratio is to; null: the figure is the arm's own throughput."""
    case: str | None = None
    """The micro-benchmark's case; null where the workload is trained."""
    point: str | None = None
    """Null where the comparison has no points."""
    before: float
    """Samples per second, or the ratio; the geometric mean over launches."""
    after: float
    change: Estimate
    """``after`` over ``before``, below 1 where it is slower now; unpaired, from the launches of
    both results."""
    at_least: float | None = None
    """One-sided bound of ``change``: no more is lost, with the interval's confidence. Null where
    there is no interval."""
    launches_before: int
    launches_after: int
    verdict: ChangeVerdict
    """``no regression``: ``at_least`` is within what may be lost. Else by the interval: below 1
    regressed, above 1 improved."""
    is_beyond: bool = False
    """Whether the verdict is regressed and the whole interval is below 1 - ``allow_slower``: what
    ends with code 3."""
    withheld_by: ChangeWithheld | None = None
    """Why the verdict is undecided though the interval might decide."""


class Against(Stored):
    """A comparison compared with an earlier result: two dates, not two arms that took turns."""

    comparison_id: str
    """The earlier result's."""
    folder: str
    """Its path, as it was given."""
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
    """What changed, in one sentence without a full stop: first that these are two dates, and what
    the baseline did."""
    remedy: str
    """How to measure both states in turn instead, in one sentence."""
    notes: list[str] = []
    """What differs between the two and was allowed, or is what was asked about, such as sources;
    which arms have no counterpart."""
    changes: list[Change]
    """Throughputs in the plan's order of arms, the baseline's first; then ratios."""

    @property
    def beyond(self) -> list[Change]:
        """The regressions beyond what is allowed."""
        return [change for change in self.changes if change.is_beyond]

    @property
    def of_baseline(self) -> Change | None:
        """What the baseline's throughput did meanwhile; None of several points or cases, or where
        it has no timing.
        """
        whole = (self.baseline, None, None, None)
        return next(
            (
                change
                for change in self.changes
                if (change.arm, change.baseline, change.case, change.point) == whole
            ),
            None,
        )
