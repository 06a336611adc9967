"""The registry of reasons: why a verdict is withheld or weak, in the words of every place that says so.

A new reason is one entry of ``REASONS``, and a value of the field that it stands in. All readers go through the entries in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from measurement.conditions.differences import Difference
from reports.schema import ArmSummary, RatioSummary
from reports.wording.formatting import count, minutes_words, ratio, significant


@dataclass(frozen=True, kw_only=True)
class Reason:
    """What is said of one reason. Figures in braces are those of ``_figures``."""

    brief: str = ""
    """After a colon: in the headline, on the first screen, in the table of changes."""
    explanation: str = ""
    """The note of a ratio."""
    if_undecided: str = ""
    """In the place of ``explanation``, where the verdict is undecided."""
    remedy: str = ""
    """Follows the explanation in the note. Both together are a warning of the report."""
    next_step: str = ""
    """On the first screen."""
    holds: Callable[[RatioSummary], bool] = lambda _: False
    """Besides where the result names the reason (``withheld_by``, ``caution``)."""


MAX_FIELDS = 3
"""That a note on unlike work names."""
MORE_LAUNCHES = "measure three or more (the plan's measurement.launches)"
NEXT_LAUNCHES = "Measure three or more launches (measurement.launches)"
NEXT_RUNS = "Measure five or more runs of each, alternating"
REASONS: dict[str, Reason] = {
    "cpu": Reason(
        brief="CPUs stand in for GPUs",
        explanation="CPUs stand in for GPUs (cpu, --cpu), and say nothing of their speed",
        next_step="For a verdict on speed, measure on GPUs, without --cpu",
    ),
    "work": Reason(brief="other work", next_step="Make both do the same work, or allow the difference: see 'What differed?'"),
    "control": Reason(
        brief="the control deviates by as much",
        explanation="the interval alone says '{alone}', but the control deviates by as much",
        next_step="Measure more launches: equal arms differ by as much here",
    ),
    "stalls": Reason(
        brief="it rests on a few stalls",
        explanation="the result depends on {stalls}; without {them} the ratio would be {calm}",
        next_step="Measure longer: fewer than ten stalls decide",
    ),
    "load": Reason(
        brief="the machine was not quiet",
        explanation="the interval alone says '{alone}', but the machine was not quiet, and {quiet_rounds}",
        next_step="Measure again on a quiet machine",
    ),
    "disturbed rounds": Reason(
        explanation="the verdict rests on disturbed rounds, since too few are undisturbed",
        holds=lambda result: result.load_reach is not None,
    ),
    "one launch": Reason(
        brief="one launch cannot tell",
        explanation="one launch gives a ratio but no verdict, since the variance between launches is unknown",
        remedy=MORE_LAUNCHES,
        next_step=NEXT_LAUNCHES,
    ),
    "two launches": Reason(
        brief="two launches cannot tell",
        explanation="with two launches, their variance is poorly estimated",
        if_undecided="two launches disagree, or agree by chance",
        remedy=MORE_LAUNCHES,
        next_step=NEXT_LAUNCHES,
    ),
    "one run": Reason(
        brief="one run cannot tell",
        explanation="one run of an arm gives a ratio but no verdict: launches of one job differ by 4 to 8%, and by 40% on a busy "
        "machine",
        remedy="repeat each at least five times, alternating, or let 'ringside compare' interleave them",
        next_step=NEXT_RUNS,
    ),
    "two runs": Reason(
        brief="two runs cannot tell",
        explanation="with two runs of an arm, their variance is poorly estimated",
        if_undecided="two runs disagree, or agree by chance",
        remedy="make five or more of each, alternating",
        next_step=NEXT_RUNS,
    ),
    "speed": Reason(
        next_step="Measure again at another time: the ratio moves with the machine's speed",
        holds=lambda result: result.by_speed is not None,
    ),
    "too wide": Reason(
        brief="the interval is too wide yet",
        next_step="{more} should decide {arm}",
        holds=lambda result: result.more_range is not None and result.case is None,
    ),
    "launches": Reason(brief="a single launch tells nothing of how launches differ"),
    "nothing held out": Reason(explanation="nothing is held out, so there is no accuracy to compare"),
    "no common seed": Reason(explanation="no seed was trained to the end by both {arm} and {reference}"),
    "few seeds": Reason(explanation="fewer than {fewest} seeds have no interval"),
}
"""By the name of the reason: those of a ratio, the worst first, then that of a change, and those of a training's accuracies."""


def reasons_of(result: RatioSummary) -> list[Reason]:
    """The reasons that hold, the worst first."""
    named = (result.withheld_by, result.caution)
    return [reason for name, reason in REASONS.items() if name in named or reason.holds(result)]


def verdict_word(result: RatioSummary) -> str:
    """The verdict as people read it: arms that do unlike work get none, nor do CPUs in the place of GPUs, not even 'undecided'."""
    return "no verdict" if result.withheld_by in ("cpu", "work") else result.verdict


def brief_reason(result: RatioSummary) -> str:
    """Why a result is undecided, in a few words; empty where it is decided, and where nothing is known."""
    briefs = [reason.brief for reason in reasons_of(result) if reason.brief and result.verdict == "undecided"]
    return next(iter(briefs), "")


def withheld_words(result: RatioSummary) -> str:
    """What withholds a verdict, in a few words; empty where nothing does."""
    return REASONS[result.withheld_by].brief if result.withheld_by else ""


def work_note(differences: Sequence[Difference], *, allow: str = "allow, --allow") -> str:
    """Why unlike work gets no verdict, and what to do. ``allow``: where it is allowed."""
    fields = list(dict.fromkeys(one.field for one in differences))
    more = f" and {len(fields) - MAX_FIELDS} more" if len(fields) > MAX_FIELDS else ""
    return f"the two do different work ({', '.join(fields[:MAX_FIELDS])}{more}); make it alike, or allow it ({allow})"


def ratio_note(result: RatioSummary, arms: Sequence[ArmSummary]) -> str | None:
    """What weakens a verdict, or why there is no ratio."""
    if result.throughput_ratio is None:
        return _why_no_ratio(result, arms)
    for reason in reasons_of(result):
        text = (reason.if_undecided if result.verdict == "undecided" else "") or reason.explanation
        if text:
            return text.format(**_figures(result, arms)) + (f"; {reason.remedy}" if reason.remedy else "")
    return None


def caution_lines(results: Sequence[RatioSummary]) -> list[str]:
    """What is said once of all results that are weak for one reason, with what to do."""
    weak = [reason for result in results for reason in reasons_of(result) if reason.remedy]
    return list(dict.fromkeys(f"{reason.explanation}; {reason.remedy}" for reason in weak))


def next_step(results: Sequence[RatioSummary]) -> str | None:
    """What to do about the worst reason of any of these results; None where there is nothing."""
    for reason in REASONS.values():
        weak = next((result for result in results if reason.next_step and reason in reasons_of(result)), None)
        if weak is not None:
            text = reason.next_step.format(**_figures(weak, ()))
            return text[0].upper() + text[1:]
    return None


def beyond_load(result: RatioSummary) -> str:
    """Why there is a verdict though no round was quiet."""
    if result.load_reach is None:
        return ""
    return f"; load alone may cause a factor of {significant(result.load_reach)}, and this is beyond it"


def _figures(result: RatioSummary, arms: Sequence[ArmSummary]) -> dict[str, str]:
    """What stands in braces in the texts of ``REASONS``."""
    known = [arm.stalls for arm in arms if arm.name in (result.candidate, result.baseline) and arm.stalls]
    few = max(known, key=lambda stalls: stalls.share).count if known else 0
    return {
        "alone": result.verdict_alone,
        "arm": result.candidate,
        "stalls": count(few, "rare stall"),
        "them": "it" if few == 1 else "them",
        "calm": ratio(result.ratio_without_stalls),
        "quiet_rounds": _quiet_rounds(result),
        "more": more_words(result) if result.more_range is not None else "",
    }


def _quiet_rounds(result: RatioSummary) -> str:
    """Why load withholds a verdict, and what to do."""
    quiet = "" if result.quiet_ratio is None else f" (ratio {ratio(result.quiet_ratio)})"
    if result.load_reach is None:
        return f"the undisturbed rounds{quiet} do not say so"
    rounds = f"the undisturbed rounds{quiet} are too few to decide" if quiet else "no round was undisturbed"
    return f"{rounds}; load alone may cause a factor of {significant(result.load_reach)}; measure on a quiet machine"


def _why_no_ratio(result: RatioSummary, arms: Sequence[ArmSummary]) -> str:
    if result.case is None:
        return "no timing"
    by_name = {arm.name: arm for arm in arms}
    reasons = (by_name[name].case(result.case).not_offered for name in (result.candidate, result.baseline))
    return next((reason for reason in reasons if reason), "no timing")


def more_words(result: RatioSummary) -> str:
    """How much more to measure, and how uncertain that is, such as ``about 6 minutes more of measuring (2 minutes to 3 hours)``."""
    assert result.more_range is not None
    low, high = result.more_range
    if result.run_order is not None:
        about = "" if result.more_runs is None else f"about {result.more_runs} "
        most = f"{math.ceil(high)}" if high is not None else "very many"
        return f"{about}({math.ceil(low)} to {most}) more runs of each"
    most = minutes_words(high) if high is not None else "more than a day"
    if result.more_minutes is None:
        return f"{minutes_words(low)} to {most} more of measuring"
    return f"about {minutes_words(result.more_minutes)} more of measuring ({minutes_words(low)} to {most})"
