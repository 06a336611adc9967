"""The models of a study's ``comparison.json``: every arm at every point, concluded once; the reports only show them."""

from __future__ import annotations

from typing import Literal

from reports.estimate import Stored
from reports.schema import SCHEMA_VERSION, ArmSummary, RatioSummary


class StudyPoint(Stored):
    """The comparison at one point; the whole of it lies in ``points/<name>/``."""

    name: str
    world_size: int
    hosts: str | None
    """As asked for: ``host1:2,host2:2``; null: one machine, not named."""
    local_batch_size: int
    global_batch_size: int
    """Samples per optimizer step, over all ranks and micro-steps."""
    cause: str | None = None
    """Why nothing, or no more, could be measured here."""
    device: str = "cpu"
    headline: str | None = None
    """The point's own answer."""
    elsewhere: list[str] = []
    """See ``Comparison``."""
    arms: list[ArmSummary]
    """All arms of the plan, in the same order at every point: also those that failed, or do not run here."""
    results: list[RatioSummary]
    fastest: list[str] = []
    """The arms than which none is shown to be faster; several are tied."""

    def arm(self, name: str) -> ArmSummary:
        """The arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)

    def result(self, candidate: str) -> RatioSummary | None:
        """The ratio of this arm to the baseline; None for the baseline itself, and where there is none."""
        return next((result for result in self.results if result.candidate == candidate), None)


class Study(Stored):
    """One comparison at several points."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["study"] = "study"
    comparison_id: str
    name: str
    created_at: str
    ringside_version: str | None
    headline: str
    findings: list[str]
    warnings: list[str]
    baseline: str
    workload: str
    sample_unit: str
    target_accuracy: float | None = None
    """That points train to; null: they train to the end of their epochs, or do not train."""
    scaling: Literal["weak", "strong"]
    confidence: float
    link: str | None = None
    """See ``Comparison``."""
    points: list[StudyPoint]

    @property
    def is_ok(self) -> bool:
        """Whether every arm is ok wherever it runs, and every point could be measured."""
        return all(arm.status in ("ok", "not at this point") and not point.cause for point in self.points for arm in point.arms)

    @property
    def arms_anywhere(self) -> list[ArmSummary]:
        """All arms at each point."""
        return [arm for point in self.points for arm in point.arms]

    @property
    def arm_names(self) -> list[str]:
        """In the plan's order."""
        return [arm.name for arm in self.points[0].arms]
