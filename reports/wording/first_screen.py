"""The first screen as data: who wins, whether to trust it, why, what was compared, and what to do
next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from reports.conclusions.machine import is_quiet
from reports.conclusions.step_terms import bottleneck_of
from reports.conclusions.summaries import VERDICTS, count_verdicts
from reports.schema import ArmSummary, Comparison, Phase, Profile, RatioSummary
from reports.wording.causes import NAMES, brief_reason, next_step, short_cause, verdict_word
from reports.wording.comparison_sentences import (
    counts_words,
    first_line,
    in_order,
    what_failed,
)
from reports.wording.formatting import (
    bounds_text,
    count,
    gibibytes,
    listed,
    milliseconds,
    plain,
    share,
    signed_difference,
)
from reports.wording.marks import MAX_FINDINGS, Mark, difference_lines, load_of, marks

MAX_CAUSE = 12
"""The most words that a cause has."""
MAX_LINES = 8
"""Candidates that a format shows; it says how many more there are."""
MIN_MINUTES = 0.01
"""A time of measuring that is shorter is not shown."""
WRONG = "failed the check of its values before it was timed"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One line of the first screen."""

    arm: str
    point: str = ""
    """Empty where there are none."""
    verdict: str
    """faster, slower, equivalent, undecided, no verdict, or why there is no timing: failed, wrong,
    timeout, no timing. Of a micro-benchmark also mixed."""
    percent: str = ""
    """How far its throughput is from the baseline's, such as ``-7.2%``; empty without a ratio."""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    """The interval; null where the data cannot carry one."""
    cause: str = ""
    """At most ``MAX_CAUSE`` words; empty where none is known."""

    @property
    def interval(self) -> str:
        """Both bounds, such as ``0.921 to 0.937``; empty without them."""
        return bounds_text(self.low, self.high, none="")

    @property
    def percents(self) -> str:
        """Both bounds in the unit of ``percent``, such as ``-7.9% to -6.3%``; empty without
        them.
        """
        return bounds_text(self.low, self.high, signed_difference, none="")


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Where the step of one rank goes."""

    label: str
    parts: Sequence[tuple[Phase, float]]
    """Phases in their order, each with its share of the slowest rank's step."""
    text: str
    """Milliseconds of its step, and the shares of its phases."""


@dataclass(frozen=True, kw_only=True)
class FirstScreen:
    """The answer.

    No text ends with a full stop, and all of it is plain text that a format has to escape.
    """

    headline: str
    """At most 20 words."""
    candidates: Sequence[Candidate]
    marks: Sequence[Mark]
    """Control (but of a training), quiet machine, same work."""
    compared: str
    notes: Sequence[str] = ()
    """Whether scripts train the same, the first thing that they do differently, and how much
    settings explain that were tried; of workloads what the arms are that have options."""
    next_step: str | None = None
    bars: Sequence[Bar] = ()
    """One for each rank of a single script; none where arms are compared."""


def first_screen(shown: Comparison) -> FirstScreen:
    """The first screen of a comparison of any kind."""
    if shown.points:
        compared = _points_fields(shown)
    elif shown.profile:
        compared = _profile_fields(shown, shown.profile)
    elif shown.is_alone:
        errors = [first_line(error.message) for error in shown.arms[0].errors[:1]]
        compared = {"candidates": [], "compared": _compared(shown), "notes": errors}
    else:
        compared = _comparison_fields(shown)
    return FirstScreen(
        headline=shown.headline, marks=marks(shown), next_step=_next_step(shown), **compared
    )


def _comparison_fields(comparison: Comparison) -> dict[str, Any]:
    """Fields of ``FirstScreen``: a line for each candidate, and what was compared."""
    arms = {arm.name: arm for arm in comparison.arms if arm.role == "candidate"}
    ordered = [result.candidate for result in in_order(comparison.candidates, comparison.question)]
    names = dict.fromkeys([*ordered, *arms])
    if comparison.cases:
        candidates = [_by_case(arms[name], comparison) for name in names]
    else:
        candidates = [_candidate(arms[name], comparison.result(name)) for name in names]
    # in more than comes with a library
    differs = any(not difference.is_note for difference in comparison.differences)
    difference = difference_lines(comparison)[:1] if differs else []
    tried = [explanation.sentence for explanation in comparison.explanations]
    notes = (
        [comparison.equality.sentence, *difference, *tried]
        if comparison.equality
        else _with_options(comparison.arms)
    )
    return {"candidates": candidates, "compared": _compared(comparison), "notes": notes}


def _with_options(arms: Sequence[ArmSummary]) -> list[str]:
    """What an arm is whose options the plan sets."""
    return [
        f"{arm.name}: {arm.backend} with"
        f" {', '.join(f'{name}: {plain(value)}' for name, value in arm.options.items())}"
        for arm in arms
        if arm.options and arm.role != "control"
    ]


def _profile_fields(comparison: Comparison, profile: Profile) -> dict[str, Any]:
    """Fields of ``FirstScreen``: where the step of a single script goes, how it spreads, and what
    need not be.
    """
    longest = max(rank.step_s for rank in profile.ranks)
    bars = []
    for rank in profile.ranks:
        phases = {phase: seconds for phase, seconds in rank.phases_s.items() if seconds}
        shares = ", ".join(
            f"{NAMES[phase]} {share(seconds / rank.step_s)}" for phase, seconds in phases.items()
        )
        label = f"rank {rank.rank}" + (f" on {rank.host}" if len(comparison.hosts) > 1 else "")
        parts = [(phase, seconds / longest) for phase, seconds in phases.items()]
        bars.append(Bar(label=label, parts=parts, text=f"{milliseconds(rank.step_s)} ms: {shares}"))
    arm = comparison.arms[0]
    spread = bounds_text(arm.step_time_s["p5"], arm.step_time_s["p95"], milliseconds)
    compared = f"{_compared(comparison)}, steps from {spread} ms (5% to 95%)"
    if arm.resources and (memory := arm.resources.memory_bytes):
        compared += f", at most {gibibytes(round(memory.value))} GiB a rank"
    return {
        "candidates": [],
        "compared": compared,
        "notes": profile.findings[:MAX_FINDINGS],
        "bars": bars,
    }


def _points_fields(study: Comparison) -> dict[str, Any]:
    """Fields of ``FirstScreen``: a line for each candidate at each point, and what was compared."""
    candidates = [
        _candidate(arm, point.result(name), point=point.name)
        for name in study.arm_names
        for point in study.points
        if (arm := point.arm(name)).role == "candidate" and arm.status != "not at this point"
    ]
    sizes = sorted(point.world_size for point in study.points)
    span = " to ".join(dict.fromkeys(map(str, (sizes[0], sizes[-1]))))
    points = count(len(sizes), "point")
    compared = f"{study.workload}, {points}, {span} ranks, {study.scaling} scaling"
    return {"candidates": candidates, "compared": compared}


def _candidate(arm: ArmSummary, result: RatioSummary | None, *, point: str = "") -> Candidate:
    if result is None or result.throughput_ratio is None:
        verdict = arm.status if arm.status != "ok" else "no timing"
        message = first_line(arm.errors[0].message) if arm.errors else ""
        cause = cut(WRONG if verdict == "wrong" else message)
        return Candidate(arm=arm.name, point=point, verdict=verdict, cause=cause)
    unknown = "cause not known" * result.is_decided
    candidate = Candidate(
        arm=arm.name,
        point=point,
        verdict=verdict_word(result),
        cause=cut(brief_reason(result) or short_cause(result) or unknown),
    )
    if result.withheld_by == "cpu":
        return candidate
    return replace(
        candidate,
        percent=signed_difference(result.throughput_ratio),
        ratio=result.throughput_ratio,
        low=result.ci_low,
        high=result.ci_high,
    )


def cut(text: str) -> str:
    """The text, cut after ``MAX_CAUSE`` words."""
    words = text.split()
    return text if len(words) <= MAX_CAUSE else " ".join(words[:MAX_CAUSE]) + " …"


def _by_case(arm: ArmSummary, comparison: Comparison) -> Candidate:
    """The verdict that all cases of a micro-benchmark share, and how many have which."""
    counts = count_verdicts(arm, comparison.results)
    verdicts = [verdict for verdict in VERDICTS if counts[verdict]]
    if not verdicts:
        return _candidate(arm, None)
    return Candidate(
        arm=arm.name,
        verdict=verdicts[0] if len(verdicts) == 1 else "mixed",
        cause=counts_words(counts).partition(";")[0],
    )


def _compared(comparison: Comparison) -> str:
    """Workload, ranks, hosts, batch and what was measured."""
    hosts, training = len(comparison.hosts), comparison.training
    launches = max((result.launches for result in comparison.results or comparison.arms), default=0)
    drawn = f"{comparison.drawn_hosts} of " if comparison.drawn_hosts else ""
    kind = "CPU" if comparison.device == "cpu" else "GPU"  # of which the device is the name
    where = f" on {drawn}{count(hosts, 'host')} ({kind})" if hosts else ""
    parts = [
        (comparison.model or "scripts") if comparison.are_scripts else comparison.workload,
        count(comparison.world_size, "rank") + where,
    ]
    sizes = {arm.local_batch_size or comparison.local_batch_size for arm in comparison.arms} - {0}
    if comparison.cases:
        parts.append(count(len(comparison.cases), "case"))
    elif sizes:
        batches = listed([f"{size:,}" for size in sorted(sizes)])
        parts.append(f"batch{'es of' if len(sizes) > 1 else ''} {batches} per rank")
    if training:
        parts += [
            count(training.settings.epochs, "epoch"),
            count(max(arm.seeds for arm in training.arms), "seed"),
        ]
    elif launches:
        names = ("run of each", "runs of each") if comparison.runs else ("launch", "launches")
        parts.append(count(launches, *names))
    if comparison.measured_minutes >= MIN_MINUTES:
        parts.append(f"{comparison.measured_minutes:.2g} min measured")
    return ", ".join(parts)


def _next_step(shown: Comparison) -> str | None:
    """What to do about what is worst; None where there is nothing."""
    for name, place in shown.places.items():
        for arm in place.arms:
            if arm.has_failed and arm.competes:
                failure = what_failed(arm) + (f" at {name}" if name else "")
                return f"Fix {arm.name} and run again: it {failure}, see 'What failed?'"
    if shown.profile:
        tried = [f"{name} {value}" for name, value in shown.profile.to_try.items()]
        return f"See what {listed(tried)} would win: ringside run --explain" if tried else None
    if shown.equality and shown.equality.first_difference_step:
        return "Have both train alike first: see 'What differed?'"
    results = [result for place in shown.places.values() for result in place.candidates]
    is_disturbed = not all(is_quiet(load_of(place.arms)) for place in shown.places.values())
    for cause in (result.because for result in results):
        if cause and cause.remedy and not is_disturbed:
            return (
                f"Measure with {cause.remedy}, too: {cause.named} takes"
                f" {milliseconds(cause.named_s)} ms of each step"
            )
    if advice := next_step(results, shown.arms_anywhere, is_disturbed=is_disturbed):
        return advice
    shares = [arm.step_shares for arm in shown.arms if arm.step_shares and arm.competes]
    if shares and all(bottleneck_of(step_shares) == "data_wait" for step_shares in shares):
        return "Give the loaders more workers: the input limits every arm"
    is_open = shown.training or (shown.equality and shown.equality.unequal)
    return None if is_open or not shown.fastest else _step_to_the_fastest(shown, results)


def _step_to_the_fastest(shown: Comparison, results: Sequence[RatioSummary]) -> str | None:
    """What to do where nothing weakens the answer."""
    is_single = len(shown.fastest) == 1
    fields = {row.field for row in shown.differences if None not in row.values.values()}
    if (
        is_single
        and shown.equality
        and not shown.explanations
        and {"library", "transport"} <= fields
    ):
        return "Run both with the same transport to separate library from transport"
    if {result.verdict for result in results} <= {"slower", "equivalent"}:
        return f"Stop here and keep {shown.baseline}: more measuring should change no verdict"
    hosts = "this machine" if len(shown.hosts) < 2 else "these hosts"
    return f"Use {shown.fastest[0]} for this model on {hosts}" if is_single else None
