"""What the reasons of ``reports.reasons`` say of a result, with its figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from measurement.conditions.differences import Difference
from reports.reasons import REASONS, Reason
from reports.schema import ArmSummary, RatioSummary
from reports.statistics.budget import MAX_MORE
from reports.wording.formatting import count, difference_text, minutes_words, ratio

MAX_FIELDS = 3
"""That a note on unlike work names."""


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
    briefs = [
        reason.brief
        for reason in reasons_of(result)
        if reason.brief and result.verdict == "undecided"
    ]
    return next(iter(briefs), "")


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
    stalls = [
        arm.stalls for arm in arms if arm.name in (result.candidate, result.baseline) and arm.stalls
    ]
    number = max(stalls, key=lambda stalls: stalls.share).count if stalls else 0
    return {
        "alone": result.verdict_alone,
        "arm": result.candidate,
        "baseline": result.baseline,
        "fast": next(
            (
                arm.name
                for arm in arms
                if arm.is_implausible and arm.name in (result.candidate, result.baseline)
            ),
            "",
        ),
        "reach": difference_text(result.load_reach or 1.0),
        "stalls": count(number, "rare stall"),
        "calm": ratio(result.ratio_without_stalls),
        "more": more_words(result) if result.more_range is not None else "",
        "most": most_words(result),
    }


def _why_no_ratio(result: RatioSummary, arms: Sequence[ArmSummary]) -> str:
    if result.case is None:
        return "no timing"
    by_name = {arm.name: arm for arm in arms}
    reasons = (
        by_name[name].case(result.case).not_offered for name in (result.candidate, result.baseline)
    )
    return next((reason for reason in reasons if reason), "no timing")


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
