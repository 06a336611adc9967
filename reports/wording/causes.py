"""Why, in words: the term of its steps that makes an arm faster or slower, and what withholds a
verdict or weakens it (the reasons of ``reports.reasons``), with what to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import get_args

from measurement.conditions.differences import Difference
from reports.conclusions.step_terms import Bottleneck, bottleneck_of
from reports.reasons import REASONS, Reason
from reports.schema import ArmSummary, Phase, RatioSummary, StepShares, Term
from reports.statistics.budget import MAX_MORE
from reports.wording.formatting import (
    bounds_text,
    count,
    difference_text,
    listed,
    milliseconds,
    minutes_words,
    ratio,
)

TERM_NAMES: dict[str, str] = {
    "compute": "computing",
    "data_wait": "data wait",
    "library_overhead": "library overhead",
    "imbalance": "waiting for the slowest rank",
    "exposed_exchange": "exposed exchange",
    "overhead_and_exchange": "overhead and exchange",
}
PHASE_NAMES: dict[str, str] = {
    "data_wait": "data wait",
    "forward": "forward",
    "backward": "backward",
    "exchange": "waiting for exchange",
    "optimizer": "optimizer",
}
NAMES = {**TERM_NAMES, **PHASE_NAMES, "backward_and_exchange": "backward and exchange"}
MIN_NAMED = 0.05
"""A share of the step from which a term is named beside computing, where that takes most."""
MAX_FIELDS = 3
"""That a note on unlike work names."""


def cause_clause(result: RatioSummary) -> str:
    """What follows the verdict in a sentence, with a comma or semicolon before it; empty where
    nothing is known.

    Such as ``, because of 3.50 ms less exposed exchange per step (3.10 to 3.90)``.
    """
    differences = result.term_differences_s | result.phase_differences_s
    if not result.is_decided or all(part.ci_low is None for part in differences.values()):
        return ""
    cause = result.because
    if cause is None:
        sign = 1 if result.verdict == "slower" else -1
        parts = [
            size_of(term, difference.value)
            for term, difference in sorted(
                differences.items(), key=lambda part: -sign * part[1].value
            )
            if difference.excludes(0.0) and sign * difference.value > 0
        ]
        beyond = f" (beyond noise: {', '.join(parts)} per step)" if parts else ""
        return f"; no single cause stands out{beyond}"
    low, high = sorted((abs(cause.ci_low), abs(cause.ci_high)))
    remedy = f" ({cause.remedy} changes it)" if cause.remedy else ""
    named = f"; {milliseconds(cause.named_s)} ms of that is {cause.named}{remedy}" * bool(
        cause.named
    )
    against = [
        (term, difference.value)
        for term, difference in differences.items()
        if difference.excludes(0.0) and difference.value * cause.difference_s < 0
    ]
    but = ""
    if against:
        but = f"; against that, {size_of(*max(against, key=lambda part: abs(part[1])))}"
    return (
        f", because of {size_of(cause.term, cause.difference_s)} per step"
        f" ({bounds_text(low, high, milliseconds)}){named}{but}"
    )


def short_cause(result: RatioSummary) -> str:
    """The cause in a few words, such as ``3.5 ms less exposed exchange per step``; empty where
    nothing is known.
    """
    cause = result.because
    if cause is None:
        return cause_clause(result).removeprefix("; ").partition(" (")[0]
    named = f", most by {cause.named}" * bool(cause.named)
    return f"{size_of(cause.term, cause.difference_s)} per step{named}"


def core_wait_clause(result: RatioSummary, arm: ArmSummary, baseline: ArmSummary) -> str:
    """How much longer or less an arm's training threads wait for a core, after a semicolon; empty
    unless that is shown, and as much as half of the difference of the steps.
    """
    differences = result.term_differences_s | result.phase_differences_s
    step_s = sum(difference.value for difference in differences.values())
    waits = [
        of_arm.threads_s["sync"].runnable_s
        for of_arm in (arm, baseline)
        if "sync" in of_arm.threads_s
    ]
    if not step_s or len(waits) < 2:
        return ""
    less, more = sorted(waits, key=lambda wait: wait.value)
    longer_s = waits[0].value - waits[1].value
    is_shown = (more.ci_low or 0.0) > (less.ci_high or math.inf)
    if not is_shown or longer_s * step_s < step_s**2 / 2:
        return ""
    size = f"{milliseconds(abs(longer_s))} ms {'longer' if longer_s > 0 else 'less'}"
    return f"; its training threads wait {size} for a core in each step"


def size_of(term: Term | Phase, difference_s: float) -> str:
    """Such as ``3.50 ms less exposed exchange``."""
    more = "more" if difference_s > 0 else "less"
    return f"{milliseconds(abs(difference_s))} ms {more} {NAMES[term]}"


def limit_sentence(shares: Mapping[str, StepShares]) -> str | None:
    """What limits each arm; arms with the same limit are named together.

    No full stop at the end; None without arms.
    """
    sentences = []
    for limit in get_args(Bottleneck):
        limited = {name: part for name, part in shares.items() if bottleneck_of(part) == limit}
        if limited:
            sentences.append(_limit_words(limit, listed([*limited]), [*limited.values()]))
    return ". ".join(sentences) or None


def _limit_words(limit: Bottleneck, names: str, shares: Sequence[StepShares]) -> str:
    overhead = "library_overhead"
    if not any(step_shares.exposed_exchange for step_shares in shares):
        overhead = "overhead_and_exchange"  # which takes back some of the overhead, or is nothing
    if limit in NAMES:
        of_step = percents([getattr(step_shares, limit) for step_shares in shares])
        name = NAMES[overhead if limit == "library_overhead" else limit]
        return f"The bottleneck in {names} is {name}: {of_step} of the step"
    waiting = percents([step_shares.data_wait for step_shares in shares])
    if limit == "not the input":
        return f"Data loading is not the bottleneck in {names}: {waiting} of the step is data wait"
    lost = {
        NAMES[overhead if term == "library_overhead" else term]: [
            getattr(step_shares, term) or 0.0 for step_shares in shares
        ]
        for term in ("exposed_exchange", "library_overhead", "imbalance")
    }
    parts = [
        f"{percents(by_arm)} {name}" for name, by_arm in lost.items() if max(by_arm) >= MIN_NAMED
    ]
    parts.insert(0, f"{waiting} is waiting for data")
    return f"Computing takes most of the step in {names}: {', '.join(parts)}"


def percents(shares: Sequence[float]) -> str:
    """Shares as whole percents, from the least to the greatest, such as ``62 to 65%``; noise puts
    none below 0 or above 100.
    """
    low, high = (round(100 * min(max(share, 0.0), 1.0)) for share in (min(shares), max(shares)))
    return f"{low}%" if low == high else f"{low} to {high}%"


def reasons_of(result: RatioSummary) -> list[Reason]:
    """The reasons that hold, the worst first."""
    named = (result.withheld_by, result.caution)
    return [reason for name, reason in REASONS.items() if name in named or reason.holds(result)]


def verdict_word(result: RatioSummary) -> str:
    """The verdict as people read it: arms that do unlike work get none, nor do CPUs in the place of
    GPUs, not even 'undecided'.
    """
    return result.verdict if result.is_comparable else "no verdict"


def brief_reason(result: RatioSummary) -> str:
    """Why a result is undecided, in a few words; empty where it is decided, and where nothing is
    known.
    """
    reasons = reasons_of(result) if result.verdict == "undecided" else []
    return next((reason.brief for reason in reasons if reason.brief), "")


def withheld_words(result: RatioSummary) -> str:
    """What withholds a verdict, in a few words; empty where nothing does."""
    return REASONS[result.withheld_by].brief if result.withheld_by else ""


def work_note(differences: Sequence[Difference], *, allow: str = "allow, --allow") -> str:
    """Why unlike work gets no verdict, and what to do. ``allow``: where it is allowed."""
    fields = list(dict.fromkeys(difference.field for difference in differences))
    more = f" and {len(fields) - MAX_FIELDS} more" if len(fields) > MAX_FIELDS else ""
    return (
        f"the two do different work ({', '.join(fields[:MAX_FIELDS])}{more}); make it alike, or"
        f" allow it ({allow})"
    )


def ratio_note(result: RatioSummary, arms: Sequence[ArmSummary]) -> str | None:
    """What weakens a verdict, or why there is no ratio."""
    if result.throughput_ratio is None:
        return _why_no_ratio(result, arms)
    for reason in reasons_of(result):
        text = (reason.if_undecided if result.verdict == "undecided" else "") or reason.explanation
        if text:
            return text.format(**_figures(result, arms)) + (
                f"; {reason.remedy}" if reason.remedy else ""
            )
    return None


def caution_lines(results: Sequence[RatioSummary]) -> list[str]:
    """One line for each reason that makes results weak, with what to do."""
    weak = [reason for result in results for reason in reasons_of(result) if reason.remedy]
    return list(dict.fromkeys(f"{reason.explanation}; {reason.remedy}" for reason in weak))


def next_step(
    results: Sequence[RatioSummary], arms: Sequence[ArmSummary], *, is_disturbed: bool
) -> str | None:
    """What to do about the worst reason of any of these results, the one that needs least measuring
    first; None: there is nothing.

    ``is_disturbed``: whether the machine was not quiet, which comes before all that more measuring
    could do.
    """
    for reason in REASONS.values():
        weak = [result for result in results if reason.next_step and reason in reasons_of(result)]
        if weak:
            cheapest = min(weak, key=lambda result: result.more_minutes or math.inf)
            first = is_disturbed and not reason.has_no_verdict
            text = (REASONS["load"] if first else reason).next_step
            text = text.format(**_figures(cheapest, arms))
            return text[0].upper() + text[1:]
    return None


def _figures(result: RatioSummary, arms: Sequence[ArmSummary]) -> dict[str, str]:
    """The values of the placeholders in ``REASONS``."""
    both = [arm for arm in arms if arm.name in (result.candidate, result.baseline)]
    stalls = [(arm.stalls.share, arm.stalls.count) for arm in both if arm.stalls]
    return {
        "alone": result.verdict_alone,
        "arm": result.candidate,
        "baseline": result.baseline,
        "fast": next((arm.name for arm in both if arm.is_implausible), ""),
        "reach": difference_text(result.load_reach or 1.0),
        "stalls": count(max(stalls)[1] if stalls else 0, "rare stall"),
        "calm": ratio(result.ratio_without_stalls),
        "more": "more measuring" if result.more_range is None else more_words(result),
        "most": most_words(result),
    }


def _why_no_ratio(result: RatioSummary, arms: Sequence[ArmSummary]) -> str:
    if result.case is None:
        return "no timing"
    by_name = {arm.name: arm for arm in arms}
    ours, theirs = (by_name[name].case(result.case) for name in (result.candidate, result.baseline))
    return ours.not_offered or theirs.not_offered or "no timing"


def most_words(result: RatioSummary) -> str:
    """The most that is proposed to be measured."""
    return "a day of measuring" if result.run_order is None else f"{MAX_MORE:g} more runs of each"


def more_words(result: RatioSummary) -> str:
    """How much more to measure, and how uncertain that is, such as ``about 6 minutes more of
    measuring (2 minutes to 3 hours)``.
    """
    assert result.more_range is not None
    low, high = result.more_range
    if result.run_order is not None:
        about = "" if result.more_runs is None else f"about {result.more_runs} "
        most = f"{math.ceil(high)}" if high is not None else "very many"
        return f"{about}({math.ceil(low)} to {most}) more runs of each"
    most = minutes_words(high) if high is not None else "more than a day"
    if result.more_minutes is None:
        return f"{minutes_words(low)} to {most} more of measuring"
    return (
        f"about {minutes_words(result.more_minutes)} more of measuring ({minutes_words(low)} to"
        f" {most})"
    )
