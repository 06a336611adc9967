"""The part of ``comparison.json`` that a plan with ``training`` has: learning curves, final accuracies and times to accuracy."""

from __future__ import annotations

from typing import Literal, get_args

from measurement.plans.settings import Quantity, TrainingSettings
from reports.estimate import Estimate, Stored

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
    """Training seconds of this arm until the epoch's end; evaluation and the other arms' turns are not counted."""
    figures: dict[Quantity, list[float | None]]
    """Null: the workload does not tell, or the value is not finite."""


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
    """Difference of ``final_top1`` to the reference's: mean of the differences seed by seed; null for the reference."""
    pairs: int = 0
    """Seeds that it is the mean of."""
    convergence: Convergence | None = None
    """Null for the reference."""
    caution: NoDifference | None = None
    note: str | None = None
    """``caution`` in words."""
    times_to_accuracy_s: list[float | None] = []
    """Time of each seed that trained to its end; null: it did not reach the target."""
    seeds_reached: int = 0
    time_to_accuracy_s: float | None = None
    """Median over seeds; one that did not reach the target counts as later than all that did."""
    time_to_train_s: Estimate | None = None
    """Training seconds until the target accuracy or, where the plan has none, until the end: geometric mean over the seeds that
    trained to their end; null where one of them did not reach the target."""
    time_ratio: Estimate | None = None
    """Time to accuracy over the baseline's: geometric mean of the ratios seed by seed; below 1 it is sooner.

    From the seeds with which both reached the target; without bounds where that is not all of them, since those left out are the
    slow ones.
    """
    time_pairs: int = 0
    """Seeds that it is the mean of."""
    time_unpaired: int = 0
    """Seeds that both trained to the end, and with which one of the two did not reach the target."""
    epoch_share: float | None = None
    """One epoch's part of ``time_to_accuracy_s``. The target is looked for at the end of epochs: nothing finer can be told."""
    curve: MeanCurve | None = None
    by_seed: list[SeedCurve] = []


class TrainingSummary(Stored):
    """How all arms converge."""

    settings: TrainingSettings
    """The plan's."""
    reference: str
    """The arm that the others should converge like: that of a single process where there is one, else the baseline."""
    baseline: str
    """The arm that times are relative to."""
    confidence: float
    arms: list[ArmTraining]

    def arm(self, name: str) -> ArmTraining:
        """The arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)
