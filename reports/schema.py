"""The models of ``comparison.json``: everything that any report shows, concluded once and stored with its version."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from measurement.record import Case, ParityResult
from reports.estimate import Estimate
from reports.training_schema import TrainingSummary
from reports.verdict import Verdict

SCHEMA_VERSION = 2
"""2: cases of micro-benchmarks."""

Role = Literal["baseline", "control", "candidate"]
Status = Literal["ok", "failed", "wrong", "timeout", "not measured", "not at this point"]
"""The last only in studies: an arm of one process, where there are more ranks."""


class Stored(BaseModel):
    """Base of what ``comparison.json`` holds."""

    model_config = ConfigDict(extra="forbid")


class ArmError(Stored):
    """Why an arm, or one launch of it, has no timing."""

    launch: int
    status: Status
    message: str
    ranks: list[int] = []
    hosts: list[str] = []
    log_tail: dict[str, str] = {}


class Cell(Stored):
    """One arm in one case of a micro-benchmark: medians over blocks, each timed by its slowest rank."""

    case: str
    not_offered: str | None = None
    """Why there is nothing to measure."""
    launches: int = 0
    blocks: int = 0
    latency_s: Estimate | None = None
    """Of one message: of a ping-pong half the round trip."""
    algbw_bytes_per_s: Estimate | None = None
    """Message size over latency."""
    busbw_bytes_per_s: Estimate | None = None
    """algbw × the case's ``busbw_factor``."""


class RankFigures(Stored):
    """One rank of an arm, over all launches."""

    rank: int
    host: str
    throughput_per_s: float
    step_s: float
    """Mean synchronised step: nearly the same for all ranks, since the fast wait for the slow."""
    own_s: float
    """What a step takes of this rank's own time: see ``ByRank.own_time``."""


class HostFigures(Stored):
    """The ranks of one host together."""

    host: str
    ranks: int
    throughput_per_s: float


class ByRank(Stored):
    """Who is slow, and who waits."""

    ranks: list[RankFigures]
    hosts: list[HostFigures]
    step_skew: float
    """Slowest over median rank, of ``step_s``."""
    own_skew: float
    """Slowest over median rank, of ``own_s``: the straggler."""
    own_time: Literal["local step", "data wait and forward"]
    """Mean step without gradient exchange; where none was measured, the phases that come before any exchange."""


class StepShares(Stored):
    """Where a synchronised step's time goes, as shares of it; the definitions are in ``reports.limits``."""

    data_wait: float
    """Waiting for data, on the rank that waits most."""
    exposed_comm: float | None = None
    """Null where it was not measured."""


class LinkFigures(Stored):
    """What an arm sends over one host's link in a step, beside what its algorithm needs; bytes."""

    host: str
    sent_bytes: float
    received_bytes: float
    needed_bytes: float
    """Each way, of a ring all_reduce; see ``reports.links``."""


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
    step_shares: StepShares | None = None
    """Null without synchronised steps, and in files written before there were any."""
    peak_memory_bytes: int | None = None
    speed_up: Estimate | None = None
    """Of a study: throughput over that of the ``scaling_baseline``."""
    scaling_efficiency: float | None = None
    """Of a study: ``speed_up`` over the ratio of the numbers of ranks."""
    scaling_baseline: str | None = None
    """The arm and point that they are relative to; null outside of studies."""
    by_rank: ByRank | None = None
    """None with a single rank."""
    links: list[LinkFigures] = []
    """Of each host of a lab."""
    cells: list[Cell] = []
    """Of a micro-benchmark, in the order of the cases; the figures of training are then left out."""

    def cell(self, case: str) -> Cell:
        """The figures in this case."""
        return next(cell for cell in self.cells if cell.case == case)


class RatioSummary(Stored):
    """A candidate (or the control) beside the baseline."""

    baseline: str
    candidate: str
    case: str = ""
    """Of a micro-benchmark; empty in training."""
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
    limit: str | None = None
    """What holds training back, in one sentence; null without timing, and of a micro-benchmark."""
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
    cases: list[Case] = []
    """Of a micro-benchmark, operation by operation; empty in training."""
    results: list[RatioSummary]
    training: TrainingSummary | None = None
    """Of a plan with training."""
    arms: list[ArmSummary]
    fairness: list[dict[str, Any]] = []
    environment: list[dict[str, Any]] = []
    """One fingerprint per host that ranks ran on."""
    driver: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    block_table: dict[str, list[Any]] = Field(default={}, repr=False)
    """The blocks, column by column: launch, turn, round, arm, kind, case, throughput_per_s."""

    def arm(self, name: str) -> ArmSummary:
        """The arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)

    def result(self, candidate: str, case: str = "") -> RatioSummary | None:
        """The ratio of this arm to the baseline, in a case of a micro-benchmark; None for the baseline itself."""
        return next((result for result in self.results if (result.candidate, result.case) == (candidate, case)), None)

    def operations(self) -> dict[str, list[Case]]:
        """The cases of each operation of a micro-benchmark."""
        found: dict[str, list[Case]] = {}
        for case in self.cases:
            found.setdefault(case.operation, []).append(case)
        return found

    @property
    def undecided(self) -> list[RatioSummary]:
        """The candidates' ratios that more measuring could still decide; the control asks no question."""
        open_ = [result for result in self.results if result.verdict == "undecided" and result.role == "candidate"]
        return [result for result in open_ if result.pairs > 0]
