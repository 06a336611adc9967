"""The models of ``comparison.json``: everything that any report shows, concluded once and stored
with its version.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal

from pydantic import Field

from measurement.conditions.differences import Difference
from measurement.plans.settings import Batches
from measurement.records.record import Case, Failure, NcclChoices, ParityResult
from reports.parts_schema import Against, Equality, Estimate, RunOrder, Stored, TrainingSummary
from reports.reasons import REASONS, Caution, Withheld

SCHEMA_VERSION = 2
"""Version of comparison.json. It grows when a key changes its meaning or goes."""

MIN_STEP_SHARE = 0.9
"""A step with exchange cannot take less than this share of the floor's step."""
Verdict = Literal["faster", "slower", "equivalent", "undecided"]
Term = Literal[
    "compute",
    "data_wait",
    "library_overhead",
    "imbalance",
    "exposed_exchange",
    "overhead_and_exchange",
]
"""What a step is made of, see ``reports.conclusions.step_terms``. The last one is two of them, in
differences of arms where exchange takes back part of the overhead."""
Phase = Literal[
    "data_wait", "forward", "backward", "exchange", "optimizer", "backward_and_exchange"
]
"""What a script's step is made of, as hooks see it; ``forward`` is all else, too.

The last stands for two where scripts of unlike libraries are compared, since DDP waits for exchange
within backward."""
Role = Literal["baseline", "control", "candidate"]
Status = Literal["ok", "failed", "wrong", "timeout", "not measured", "not at this point"]
"""The last only at points: an arm of one process, where there are more ranks."""


class ArmError(Failure):
    """Why an arm, or one launch of it, has no timing."""

    launch: int
    status: Status


class CaseFigures(Stored):
    """One arm in one case of a micro-benchmark: medians over blocks, each timed by its slowest
    rank.
    """

    case: str
    not_offered: str | None = None
    """Why there is nothing to measure."""
    launches: int = 0
    blocks: int = 0
    latency_s: Estimate | None = None
    """Time of one message; of a ping-pong, half the round trip. Of a loader, a batch."""
    samples_per_s: Estimate | None = None
    """All ranks' samples over time, where data is loaded."""
    algbw_bytes_per_s: Estimate | None = None
    """Message size over latency."""
    busbw_bytes_per_s: Estimate | None = None
    """algbw × the case's ``busbw_factor``."""


class StepTerms(Stored):
    """The terms that an arm's mean step is made of, seconds (``reports.conclusions.step_terms``):
    the mean over launches.
    """

    compute: Estimate
    data_wait: Estimate
    library_overhead: Estimate | None = None
    """Null where no floor was measured to separate it from ``compute``."""
    imbalance: Estimate
    exposed_exchange: Estimate
    step: Estimate
    """Their sum: the mean synchronised step."""
    in_forward: Estimate
    """What forward takes longer with exchange than without: DDP broadcasts buffers there."""

    def of(self, term: Term) -> Estimate | None:
        """One of the terms; None where it is not known."""
        estimate: Estimate | None = getattr(self, term)
        return estimate


class ThreadFigures(Stored):
    """Who had the core, seconds per step: the mean over ranks and launches
    (``ringside_agent.machine``).
    """

    running_s: Estimate
    """The training thread, on a core."""
    runnable_s: Estimate
    """The training thread, ready to run while another thread had the core."""
    library_s: Estimate
    """CPU time of the library's threads."""
    others_s: Estimate | None = None
    """CPU time of all other threads of the process."""


class DominantCause(Stored):
    """What makes an arm faster or slower than another; seconds per step, above 0 where it takes
    longer.
    """

    term: Term | Phase
    """A phase, where the arms are scripts."""
    difference_s: float
    ci_low: float
    ci_high: float
    named: str | None = None
    """The specific cause that explains at least half of it (``NamedCause.name``); null where none
    does."""
    named_s: float | None = None
    """By how much that takes longer in the arm that has more of it, seconds per step."""
    remedy: str | None = None
    """The setting that changes it, and the arm."""


class Explanation(Stored):
    """How much of the difference between a candidate and the baseline settings of the candidate
    explain (``--explain``).
    """

    arm: str
    """The baseline with the settings imposed on it."""
    candidate: str
    settings: dict[str, Any]
    share: Estimate | None
    """What part of the difference in time for a sample they explain; null where that is unknown."""
    sentence: str


class NamedCause(Stored):
    """Something specific that takes time within a term, see ``reports.traces``."""

    name: str
    term: Term | Phase
    """A phase, where the arms are scripts."""
    per_step_s: Estimate
    num_bytes: int | None = None
    """Bytes of a step."""
    count: float | None = None
    """How many in a step."""
    setting: str | None
    """What was shown to win its time back; null where nothing was, and of a script's line."""


class TracedArm(Stored):
    """What a trace shows of an arm."""

    arm: str
    file: str | None = None
    """In ``traces/``, for Perfetto."""
    error: str | None = None
    nccl: NcclChoices | None = None
    """Null where it does not exchange over NCCL."""


class Straggler(Stored):
    """A rank that persistently holds the others up."""

    rank: int
    host: str
    phase: str
    """In which it is late by most."""
    late_s: float
    """How much longer its mean step without exchange is than that of the other ranks, less what it
    is in other arms unless it is late in all."""
    ci_low: float
    ci_high: float


class RankFigures(Stored):
    """One rank of an arm, over all launches."""

    rank: int
    host: str
    throughput_per_s: float | None
    """Null where iterations are counted, by rank 0 for all."""
    step_s: float
    """Mean synchronised step: nearly the same for all ranks, since the fast wait for the slow."""
    own_s: float
    """What a step takes of this rank's own time: see ``ByRank.own_time``."""


class ByRank(Stored):
    """Who is slow, and who waits."""

    ranks: list[RankFigures]
    own_time: Literal["local step", "data wait and forward"]
    """Mean step without gradient exchange; where none was measured, the phases that come before any
    exchange."""
    straggler: Straggler | None = None
    """None where no rank is shown to be late."""


class StepShares(Stored):
    """Where a synchronised step's time goes, as shares of it; the definitions are in
    ``reports.conclusions.step_terms``.
    """

    data_wait: float
    """Waiting for data, on the rank that waits most."""
    exposed_exchange: float | None = None
    """Null where it was not measured."""
    library_overhead: float | None = None
    """Null where there is no floor."""
    imbalance: float | None = None


class StallFigures(Stored):
    """An arm's stalls (``reports.conclusions.machine``): steps far longer than its others."""

    count: int
    share: float
    """What they took beyond median steps, over the time of all synchronised blocks."""
    longest_s: float | None
    """Null where there is none."""


class GapFigures(Stored):
    """Steps of a script in which something else than a step took long, such as an evaluation."""

    count: int
    seconds: float
    """All together."""
    typical_s: float
    """Median."""
    longest_s: float


class LoadFigures(Stored):
    """What others took of an arm's cores while its blocks ran
    (``reports.conclusions.machine``): shares of the cores' time.
    """

    foreign_share: float
    steal_share: float
    """A hypervisor's other guests."""
    least_share: float
    """From which a block is disturbed."""
    disturbed_share: float
    """The share of its blocks that others disturbed."""
    other_threads_share: float | None = None
    """Cores' worth of time that a rank's threads besides its training thread took, of any of its
    cores; None: not known."""
    blocks: int


class LinkFigures(Stored):
    """What an arm sends over one host's link in a step, beside what its algorithm needs; bytes."""

    host: str
    sent_bytes: float
    received_bytes: float
    needed_bytes: float
    """Each way, of a ring all_reduce; see ``reports.conclusions.machine``."""


class MachineFigures(Stored):
    """What one host did while an arm's synchronised blocks ran, untimed steps included
    (``reports.conclusions.machine``).
    """

    host: str
    busy_cores: float
    """Mean number of cores that computed, for whichever process."""
    cores: int
    memory_used_bytes: int
    """The most, by all processes."""
    memory_bytes: int
    sent_bytes_per_s: dict[str, float]
    """By network interface."""
    power_w: float | None = None
    """Power of processor packages and GPUs; null where neither RAPL nor NVML reports it."""
    gpu_utilisation: float | None = None
    gpu_mhz: float | None = None
    gpu_slowed_by: list[str] = []


PLANS_PEAK = "peak_tflops of the plan"


class ResourceFigures(Stored):
    """What an arm makes of its devices, and what memory it takes; intervals are over launches."""

    device: Literal["GPU", "core"]
    per_device_per_s: Estimate | None = None
    """Throughput over ``compute_units``."""
    flops_per_sample: float | None = None
    """What forward and backward pass take, by torch's formulas; null where it could not be
    counted."""
    flops_note: str | None = None
    """Why they could not be counted, or which operations were not."""
    flops_per_s: Estimate | None = None
    """Model FLOP/s of one device."""
    mfu: Estimate | None = None
    """``flops_per_s`` over the peak; null where that is not known."""
    peak_flops_per_s: float | None = None
    peak_source: str | None = None
    memory_bytes: Estimate | None = None
    """Peak memory of the rank that takes most: mean over launches."""


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
    command: str = ""
    """The shell line that it stands for, of its first launch; for several hosts, one for each.
    Empty where it is not known."""
    causes: list[NamedCause] = []
    """Specific causes within its terms, those that are shown to take a hundredth of its step."""
    described: dict[str, Any] = {}
    """What the library says is in force: versions, transport, bucket or fusion sizes; rank 0's."""
    world_size: int
    local_batch_size: int | None = None
    """Samples per rank and micro-step; null for scripts and micro-benchmarks."""
    samples_per_step: int | None = None
    """All ranks' and micro-steps' together; null where all arms have the plan's batch."""
    launches: int = 0
    """Launches whose timing counts."""
    complete: bool = True
    """False: a launch was interrupted; what it measured until then counts."""
    errors: list[ArmError] = []
    parity: ParityResult | None = None
    blocks: int = 0
    throughput_per_s: Estimate | None = None
    """All samples over the sum of the slowest rank's times of all synchronised blocks
    (``reports.conclusions.steps``)."""
    step_time_s: dict[str, float] = {}
    """Percentiles p5, p25, p50, p75, p95 over synchronised steps, the slowest rank of each."""
    step_phases_s: dict[Phase, Estimate] = {}
    """Mean seconds per step of a script on its slowest rank; they add up to the step."""
    gaps: GapFigures | None = None
    """Null without any."""
    samples_from: str | None = None
    """Where a script's samples come from: ``loader`` or ``samples_per_step``; null where they could
    not be counted."""
    script_starts: int = 1
    """The most times that a script was started in one launch, since it came to its end."""
    step_terms_s: StepTerms | None = None
    """Null without blocks of both kinds."""
    threads_s: dict[str, ThreadFigures] = {}
    """By kind of block, ``sync`` and ``local``; empty where the kernel does not report it."""
    stalls: StallFigures | None = None
    """Null without synchronised steps, and of a micro-benchmark."""
    load: LoadFigures | None = None
    """Null where the kernel does not report it."""
    page_faults: float | None = None
    """Minor page faults of a rank in a synchronised step, mean over ranks, of the launch that has
    most; null of a micro-benchmark or a training to the end."""
    skipped_steps: int = 0
    """Timed steps that the optimizer did not take, since gradients overflowed in fp16."""
    step_shares: StepShares | None = None
    """Null without synchronised steps."""
    speed_up: Estimate | None = None
    """At a point, throughput over that of the ``scaling_baseline``."""
    compute_units: int | None = None
    """Cores, or GPUs, that its ranks compute on: ranks that share cores share them here; null where
    it is not known."""
    cores_per_rank: int | None = None
    threads_per_rank: int | None = None
    scaling_efficiency: Estimate | None = None
    """At a point, ``speed_up`` over how many times the compute units."""
    scaling_baseline: str | None = None
    """The arm and point that they are relative to; null without points."""
    by_rank: ByRank | None = None
    """None with a single rank."""
    links: list[LinkFigures] = []
    """One entry for each host; empty on one host."""
    machine: list[MachineFigures] = []
    """One entry for each host; empty where nothing was read, as in standalone runs."""
    energy_per_sample_j: float | None = None
    """Joules, all hosts and processes together; null where a host does not report it."""
    resources: ResourceFigures | None = None
    """Null where no launch started."""
    cases: list[CaseFigures] = []
    """The figures of a micro-benchmark, in the order of its cases; an arm then has no figures of
    training steps."""

    def case(self, name: str) -> CaseFigures:
        """The figures in this case."""
        return next(figures for figures in self.cases if figures.case == name)

    @property
    def has_failed(self) -> bool:
        """Whether it failed, is wrong or ran out of time."""
        return self.status in ("failed", "wrong", "timeout")

    @property
    def is_implausible(self) -> bool:
        """Whether it is faster than is possible: than its model alone on these cores
        (``MIN_STEP_SHARE``), or than its device.
        """
        terms, mfu = self.step_terms_s, self.resources.mfu if self.resources else None
        if mfu is not None and (mfu.ci_low or 0.0) > 1:
            return True
        if terms is None or terms.library_overhead is None:
            return False
        most, least = terms.step.ci_high, terms.compute.ci_low
        return most is not None and least is not None and most < MIN_STEP_SHARE * least

    @property
    def competes(self) -> bool:
        """Whether it is compared for itself: not the control."""
        return self.role != "control"


class RatioBySpeed(Stored):
    """A ratio that moves with the machine's speed
    (``reports.statistics.intervals.ratio_by_speed``).
    """

    slower: float
    """The ratio in the half of the launches in which the control was slowest."""
    faster: float
    speeds: float
    """How many times as fast the control was in its fastest launch as in its slowest."""


class RatioSummary(Stored):
    """A candidate (or the control) beside the baseline."""

    baseline: str
    candidate: str
    case: str | None = None
    """The micro-benchmark's case; null where the workload is trained."""
    role: Literal["control", "candidate"]
    throughput_ratio: float | None = None
    """Ratio of totals, stalls included: the geometric mean over launches of all samples over all
    seconds."""
    ci_low: float | None = None
    ci_high: float | None = None
    equivalence_low: float | None = None
    """One-sided bounds, which decide on equivalence: each holds by itself with the interval's
    confidence (90% interval for 95%)."""
    equivalence_high: float | None = None
    run_low: float | None = None
    run_high: float | None = None
    """Where one long training, or run, is expected: a prediction interval, at least as wide as that
    of the mean."""
    confidence: float
    verdict: Verdict
    verdict_alone: Verdict
    """What the interval says by itself. ``verdict`` is 'undecided' instead where something
    withholds it."""
    withheld_by: Withheld | None = None
    """The two do different work; or one is faster than is possible; or the control deviates from 1
    by as much; or the verdict would be another without a few stalls, too rare to be estimated; or
    the machine was not quiet, and the undisturbed rounds say otherwise, or are too few and load may
    have made it."""
    by_speed: RatioBySpeed | None = None
    """Null where it is not known to depend on the machine's speed, or without a control or five
    launches."""
    load_reach: float | None = None
    """How many times as fast as another load alone may make an arm; where the undisturbed rounds
    are too few to tell, the verdict rests on all rounds and must be farther from 1."""
    is_unconfirmed: bool = False
    """Whether faster or slower is claimed, the control's interval is too wide to check much, and
    the claim's is not beyond it."""
    caution: Caution | None = None
    run_order: RunOrder | None = None
    """Order of standalone runs: alternating ones are paired. Null where arms took turns."""
    launches: int = 0
    pairs: int = 0
    ratio_without_stalls: float | None = None
    """As if each stall had been a median step; null of a micro-benchmark."""
    more_runs: int | None = None
    """For standalone runs, in the place of ``more_minutes``: how many more of each arm."""
    more_minutes: float | None = None
    """Minutes of measuring, starts and checks included, that should decide an undecided verdict,
    or narrow a control that leaves a verdict unconfirmed; null where nothing can be said."""
    more_range: tuple[float, float | None] | None = None
    """How far ``more_minutes`` or ``more_runs`` is known: from so few launches, their spread is
    known by a factor only. The second is null where it is more than a day, or 1440 runs."""
    because: DominantCause | None = None
    """Null where there is no verdict of faster or slower, or no single cause."""
    term_differences_s: dict[Term, Estimate] = {}
    """How much longer each term is than the baseline's, seconds per step; they add up to the
    difference of the steps. Without ``library_overhead`` where one of the two has none: then it is
    part of ``compute``. With ``overhead_and_exchange`` in the place of two where one of the arms
    has exposed exchange below 0."""
    phase_differences_s: dict[Phase, Estimate] = {}
    """How much longer each phase of a script is than the baseline's, on the slowest rank; seconds
    per step."""
    note: str | None = None
    """What weakens the verdict, or why there is none, in words."""

    @property
    def ratio(self) -> Estimate | None:
        """``throughput_ratio`` with its interval; None where nothing was timed."""
        if self.throughput_ratio is None:
            return None
        return Estimate(value=self.throughput_ratio, ci_low=self.ci_low, ci_high=self.ci_high)

    @property
    def is_decided(self) -> bool:
        """Whether one of the two is faster."""
        return self.verdict in ("faster", "slower")

    @property
    def is_comparable(self) -> bool:
        """Whether the speeds of the two can be compared at all."""
        return self.withheld_by is None or not REASONS[self.withheld_by].has_no_verdict

    @property
    def control_failed(self) -> bool:
        """Whether this is the control and its interval excludes 1."""
        return self.role == "control" and self.ratio is not None and self.ratio.excludes(1.0)


class WhatIfArm(Stored):
    """One arm in a scenario."""

    arm: str
    throughput_per_s: Estimate | None = None
    """Bounds hold the spread of launches and, where the terms leave a step between two bounds, both
    of these."""
    gain: Estimate | None = None
    """How many times the throughput measured in the same launches."""
    unknown: str | None = None
    """Why there is no answer."""


class WhatIf(Stored):
    """How fast the arms would be in one scenario (``reports.what_if``)."""

    scenario: str
    assumes: str
    arms: list[WhatIfArm]
    fastest: list[str] = []
    """The arms than which none is shown to be faster there; several are not separated. None where
    fewer than two are known."""

    @property
    def is_unknown(self) -> bool:
        """Whether there is no answer for any arm."""
        return not any(arm.throughput_per_s for arm in self.arms)


class RankProfile(Stored):
    """Where the step of one rank goes: means over launches."""

    rank: int
    host: str
    step_s: float
    phases_s: dict[Phase, float]
    """Seconds of a step; they add up to it."""


class Profile(Stored):
    """Where the step of a single script goes (``reports.scripts.profile``)."""

    ranks: list[RankProfile]
    drift: Estimate | None = None
    """How much longer steps take in the last third of a launch than in its first, as a share; null
    of short launches."""
    findings: list[str] = []
    """What takes a tenth of its step or more and need not, the longest first, a sentence each."""
    to_try: dict[str, Any] = {}
    """Settings that may shorten it, and are safe to try (``ringside run --explain``)."""


class Comparison(Stored):
    """All that the reports show: of arms in one place or, where it has ``points``, at each of
    them.
    """

    schema_version: int = SCHEMA_VERSION
    comparison_id: str
    name: str
    """The plan's; of a point, the point's."""
    created_at: str
    ringside_version: str | None = None
    headline: str = ""
    """The answer in at most 20 words."""
    findings: list[str] = []
    """One sentence per candidate: those that the plan's question is about first, of both kinds the
    fastest first."""
    warnings: list[str] = []
    baseline: str
    workload: str
    model: str = ""
    """What scripts train, such as ``Net of 21,840 trained parameters``; empty of workloads, where
    scripts differ, and where each rank has a share."""
    sample_unit: str = "samples"
    link: str | None = None
    """Where the whole report will be found, as the plan says."""
    against: Against | None = None
    """What changed since an earlier result (``--against``); null where none was named."""
    points: list[Comparison] = []
    """The comparison at each point of the plan, with all arms in the same order: also those that
    failed, or do not run there. Where there are points, figures are theirs. The whole report of one
    is in ``points/NAME/``."""
    scaling: Literal["weak", "strong"] | None = None
    """What stays the same from point to point; null without points."""
    cause: str | None = None
    """Why nothing, or no more, could be measured at this point."""
    world_size: int
    """Where there are points, the most."""
    asked_hosts: str | None = None
    """As the plan has them, such as ``host1:2,host2:2``; null: one machine, not named."""
    hosts: list[str] = []
    """That ranks ran on."""
    batches: Batches | None = None
    """How arms came to batches of their own; null: all have the same."""
    local_batch_size: int
    """The plan's; of arms with batches of their own, the baseline's."""
    global_batch_size: int
    """Samples per optimizer step, over all ranks and micro-steps."""
    device: str = "cpu"
    elsewhere: list[str] = []
    """A sentence on the launches of each other environment (``--resume-elsewhere``); among the
    warnings, too."""
    cases: list[Case] = []
    """The cases of a micro-benchmark, operation by operation; empty where the workload is
    trained."""
    arms: list[ArmSummary] = []
    """In the plan's order."""
    results: list[RatioSummary] = []
    fastest: list[str] = []
    """The arms than which none is shown to be faster; several are tied. None without a ratio, and
    of a micro-benchmark."""
    training: TrainingSummary | None = None
    """How arms converge, where the plan trains."""
    equality: Equality | None = None
    """Whether scripts train alike; null of workloads."""
    question: list[str] = []
    """The candidates that the plan's question is about."""
    control: str = ""
    """What the control says, in one sentence."""
    limit: str | None = None
    """Which term limits the speed, in one sentence; null without timing, and of a
    micro-benchmark."""
    drawn_hosts: int | None = None
    """How many of the hosts each launch drew; null: all launches ran on all of them."""
    seed: int
    measurement: dict[str, Any]
    """The plan's measurement section."""
    measured_minutes: float = 0.0
    """Wall time of all blocks, all arms together."""
    traces: list[TracedArm] = []
    """What traces show; empty without ``--trace``. They were taken under a profiler: no other
    figure rests on their times."""
    differences: list[Difference] = []
    """In what the arms differ, most important first: work, settings, versions, machines, what comes
    with a library."""
    environment: list[dict[str, Any]] = []
    """One fingerprint per host that ranks ran on."""
    inherited_variables: list[str] = []
    """Variables of the ranks that disturb and that the plan did not set; the headline names
    them."""
    driver: dict[str, Any] = {}
    runs: dict[str, list[str]] = {}
    """The folders of standalone runs by arm, in the order of their start."""
    seconds: dict[str, float] = {}
    explanations: list[Explanation] = []
    """One of each arm with ``impose`` (``ringside ab --explain``)."""
    profile: Profile | None = None
    """Where its step goes, of one script alone (``ringside run``); null of all else."""
    what_if: list[WhatIf] = []
    """Without one cause of lost time, from the arms' terms; empty where no arm has terms."""
    block_table: dict[str, list[Any]] = Field(default={}, repr=False)
    """The blocks, column by column: launch, turn, round, arm, kind, case (null where the workload
    is trained), throughput_per_s, samples (of all ranks), block_s (of the slowest)."""

    @property
    def places(self) -> dict[str, Comparison]:
        """The points by name; without any, itself without a name."""
        return {point.name: point for point in self.points} or {"": self}

    @property
    def arms_anywhere(self) -> list[ArmSummary]:
        """All arms, at each point."""
        return [arm for place in self.places.values() for arm in place.arms]

    @property
    def arm_names(self) -> list[str]:
        """In the plan's order."""
        return list(dict.fromkeys(arm.name for arm in self.arms_anywhere))

    def arm(self, name: str) -> ArmSummary:
        """The arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)

    def result(self, candidate: str, case: str | None = None) -> RatioSummary | None:
        """The ratio of this arm to the baseline; of a micro-benchmark, in this case.

        None for the baseline itself.
        """
        of_arm = (result for result in self.results if result.candidate == candidate)
        return next((result for result in of_arm if result.case == case), None)

    @property
    def target_accuracy(self) -> float | None:
        """That arms train to; None: they train to the end of their epochs, or do not train."""
        trainings = [place.training for place in self.places.values() if place.training]
        return trainings[0].settings.target_accuracy if trainings else None

    @property
    def confidence(self) -> float:
        """With which intervals hold."""
        return float(self.measurement["confidence"])

    @property
    def are_scripts(self) -> bool:
        """Whether the arms are commands of the user's."""
        return self.equality is not None

    @property
    def is_alone(self) -> bool:
        """Whether there is one script, and nothing to compare it with."""
        return self.are_scripts and len(self.arms) == 1

    @property
    def is_ok(self) -> bool:
        """Whether every arm is ok wherever it runs, and every point could be measured."""
        failed = any(place.cause for place in self.places.values())
        return not failed and all(
            arm.status in ("ok", "not at this point") for arm in self.arms_anywhere
        )

    @property
    def are_loaders(self) -> bool:
        """Whether a loader was measured alone."""
        return any(case.samples for case in self.cases)

    def operations(self) -> dict[str, list[Case]]:
        """The cases of each operation of a micro-benchmark."""
        operations = itertools.groupby(self.cases, key=lambda case: case.operation)
        return {operation: list(cases) for operation, cases in operations}

    @property
    def candidates(self) -> list[RatioSummary]:
        """The candidates' ratios; of a micro-benchmark, in every case."""
        return [result for result in self.results if result.role == "candidate"]

    @property
    def undecided(self) -> list[RatioSummary]:
        """The candidates' ratios that more measuring could still decide; the control asks no
        question.
        """
        return [
            result
            for result in self.candidates
            if result.verdict == "undecided"
            and result.pairs > 0
            and result.is_comparable
            and result.withheld_by != "stalls"
        ]
