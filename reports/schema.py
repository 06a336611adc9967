"""The models of ``comparison.json``: everything that any report shows, concluded once and stored with its version."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from measurement.record import ParityResult
from reports.verdict import Verdict

SCHEMA_VERSION = 1

Role = Literal["baseline", "control", "candidate"]
Status = Literal["ok", "failed", "wrong", "timeout", "not measured"]


class Stored(BaseModel):
    """Base of what ``comparison.json`` holds."""

    model_config = ConfigDict(extra="forbid")


class Estimate(Stored):
    """A value with its interval; the bounds are null where the data cannot carry one. Unit: that of the field it is in."""

    value: float
    ci_low: float | None = None
    ci_high: float | None = None


class ArmError(Stored):
    """Why an arm, or one launch of it, has no timing."""

    launch: int
    status: Status
    message: str
    ranks: list[int] = []
    hosts: list[str] = []
    log_tail: dict[str, str] = {}


class ArmSummary(Stored):
    """One arm: what it is, whether it is right, how fast and why."""

    name: str
    role: Role
    status: Status
    """The worst of its launches."""
    backend: str
    transport: str | None
    launcher: str | None
    options: dict[str, Any] = {}
    described: dict[str, Any] = {}
    """What the library says is in force: versions, transport, bucket or fusion sizes; rank 0's."""
    world_size: int
    launches: int = 0
    """Launches whose timing counts."""
    complete: bool = True
    """False: a launch was interrupted; what it measured until then counts."""
    errors: list[ArmError] = []
    parity: ParityResult | None = None
    blocks: int = 0
    throughput_per_s: Estimate | None = None
    """Median over synchronised blocks; global samples over the slowest rank's time."""
    step_time_s: dict[str, float] = {}
    """Percentiles p5, p25, p50, p75, p95 over synchronised steps, the slowest rank of each."""
    step_time_quantiles_s: list[float] = []
    """The 0th, 1st, ... 100th percentile, for drawing."""
    phases_s: dict[str, float] = {}
    """Median seconds per step on the slowest rank; not to be compared between backends one by one."""
    exposed_comm_s: Estimate | None = None
    """Median over launches of: mean synchronised step time less mean local step time, in the same rounds."""
    peak_memory_bytes: int | None = None
    scaling_efficiency: float | None = None
    scaling_baseline: str | None = None
    """The arm and world size that ``scaling_efficiency`` is relative to; null with a single world size."""


class RatioSummary(Stored):
    """A candidate (or the control) beside the baseline."""

    baseline: str
    candidate: str
    role: Literal["control", "candidate"]
    world_size: int
    hosts: list[str]
    throughput_ratio: float | None
    ci_low: float | None
    ci_high: float | None
    confidence: float
    verdict: Verdict
    launches: int
    pairs: int
    mean_ratio: float | None = None
    """Geometric mean of all pairs, none trimmed; where it is far from ``throughput_ratio``, a few blocks are far out."""
    more_minutes: float | None = None
    """Minutes of measuring that should decide an undecided verdict; null where decided or nothing can be said."""
    note: str | None = None
    pair_table: dict[str, list[Any]] = {}
    """The pairs, column by column: launch, turn, round, log_ratio."""


class Comparison(Stored):
    """All that the reports show."""

    schema_version: int = SCHEMA_VERSION
    comparison_id: str
    name: str
    created_at: str
    ringside_version: str | None = None
    headline: str
    """The answer in one sentence; the control's failure comes first."""
    findings: list[str]
    """One sentence per candidate, the fastest first."""
    control: str
    """What the control says, in one sentence."""
    warnings: list[str]
    baseline: str
    workload: str
    sample_unit: str
    device: str
    world_size: int
    hosts: list[str]
    local_batch_size: int
    global_batch_size: int
    """Samples per optimizer step, over all ranks and micro-steps."""
    seed: int
    measurement: dict[str, Any]
    """The plan's measurement section."""
    measured_minutes: float
    """Wall time of all blocks, all arms together."""
    results: list[RatioSummary]
    arms: list[ArmSummary]
    fairness: list[dict[str, Any]] = []
    environment: list[dict[str, Any]] = []
    """One fingerprint per host that ranks ran on."""
    driver: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    block_table: dict[str, list[Any]] = Field(default={}, repr=False)
    """The blocks, column by column: launch, turn, round, arm, kind, throughput_per_s."""

    def arm(self, name: str) -> ArmSummary:
        """The arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)

    def result(self, candidate: str) -> RatioSummary | None:
        """The ratio of this arm to the baseline; None for the baseline itself."""
        return next((result for result in self.results if result.candidate == candidate), None)

    @property
    def undecided(self) -> list[RatioSummary]:
        """The candidates' ratios that more measuring could still decide; the control asks no question."""
        open_ = [result for result in self.results if result.verdict == "undecided" and result.role == "candidate"]
        return [result for result in open_ if result.pairs > 0]
