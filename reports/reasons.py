"""The registry of reasons: why a verdict is withheld or weak, in the words of every place that says
so.

A new reason is a name and an entry here, and the line that finds it. All readers go through the
entries in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Withheld = Literal["cpu", "work", "implausible", "control", "stalls", "load"]
"""Why a ratio is undecided though its interval might decide."""
ChangeWithheld = Literal[Withheld, "launches"]
"""Likewise of a change since an earlier result; ``launches``: one of the two has a single
launch."""
Caution = Literal["one launch", "two launches", "one run", "two runs"]
"""Too few measurements for an interval that can be trusted."""


@dataclass(frozen=True, kw_only=True)
class Reason:
    """The texts for one reason. ``reports.wording.causes`` fills their placeholders."""

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
    has_no_verdict: bool = False
    """Whether not even 'undecided' is said: the speeds of the two cannot be compared."""
    holds: Callable[[Any], bool] = lambda _: False
    """Whether it holds for a ``reports.schema.RatioSummary`` that does not name it
    (``withheld_by``, ``caution``)."""


MANY_MINUTES = 60.0
"""Who has to measure longer, or run scripts more often, may rather keep what they have."""


def _more_to_decide(result: Any) -> float:
    """Minutes, or runs, that should decide a result, the least where not more is known; 0: none."""
    if result.more_range is None or result.case is not None or result.is_unconfirmed:
        return 0.0
    return max(float(result.more_minutes or result.more_range[0]), 1.0)


def _is_costly(result: Any) -> bool:
    return _more_to_decide(result) > MANY_MINUTES


MORE_LAUNCHES = "measure three or more (the plan's measurement.launches)"
NEXT_LAUNCHES = "Measure three or more launches (measurement.launches)"
NEXT_RUNS = "Measure five or more runs of each, alternating"
REASONS: dict[str, Reason] = {
    "cpu": Reason(
        brief="CPUs stand in for GPUs",
        explanation="CPUs stand in for GPUs (cpu, --cpu), and say nothing of their speed",
        next_step="For a verdict on speed, measure on GPUs, without --cpu",
        has_no_verdict=True,
    ),
    "work": Reason(
        brief="other work",
        next_step="Make both do the same work, or allow the difference: see 'What differed?'",
        has_no_verdict=True,
    ),
    "implausible": Reason(
        brief="faster than is possible",
        explanation=(
            "{fast} takes less time for a step than its model alone does on the same cores, or"
            " computes more than its device can, so it leaves work out"
        ),
        next_step="Find what {fast} leaves out of a step: it is faster than is possible",
        has_no_verdict=True,
    ),
    "control": Reason(
        brief="the control deviates by as much",
        explanation="the interval alone says '{alone}', but the control deviates by as much",
        next_step="Measure more launches: equal arms differ by as much here",
    ),
    "stalls": Reason(
        brief="it rests on a few stalls",
        explanation="the result depends on {stalls}; without stalls the ratio would be {calm}",
        next_step="Measure longer: fewer than ten stalls decide",
    ),
    "load": Reason(
        brief="the machine was not quiet",
        explanation=(
            "the interval alone says '{alone}', but the machine was not quiet, and no"
            " undisturbed rounds show it"
        ),
        next_step=(
            "End what else runs on the machine, then measure again: more minutes beside it may"
            " decide nothing"
        ),
    ),
    "disturbed rounds": Reason(
        explanation=(
            "the verdict rests on disturbed rounds, since too few are undisturbed: it is farther"
            " from equal than the {reach} by which load alone may make an arm faster"
        ),
        holds=lambda result: result.load_reach is not None,
    ),
    "one launch": Reason(
        brief="one launch cannot tell",
        explanation=(
            "one launch gives a ratio but no verdict, since the variance between launches is"
            " unknown"
        ),
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
        explanation=(
            "one run of an arm gives a ratio but no verdict: launches of one job differ by 4 to 8%,"
            " and by 40% on a busy machine"
        ),
        remedy=(
            "repeat each at least five times, alternating, or let 'ringside compare' interleave"
            " them"
        ),
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
        brief="the interval is too wide",
        next_step="{more} should decide {arm}",
        holds=lambda result: _more_to_decide(result) > 0 and not _is_costly(result),
    ),
    "too costly": Reason(
        brief="the interval is too wide",
        next_step="Keep {baseline}: to decide {arm} would take {more}",
        holds=_is_costly,
    ),
    "too near": Reason(
        brief="more measuring would not decide",
        next_step="Stop here: not even {most} would decide {arm}",
        holds=lambda result: (
            (result.verdict, result.withheld_by, result.caution) == ("undecided", None, None)
            and (result.more_range, result.case) == (None, None)
            and result.ci_low is not None
        ),
    ),
    "unconfirmed": Reason(
        brief="the control is too wide to confirm {arm}",
        explanation="the control's interval is too wide to confirm it",
        next_step="{more} should narrow the control, which is too wide to confirm {arm}",
        holds=lambda result: result.is_unconfirmed and result.case is None,
    ),
    "launches": Reason(brief="a single launch does not show how launches differ"),
    "nothing held out": Reason(
        explanation="nothing is held out, so there is no accuracy to compare"
    ),
    "no common seed": Reason(
        explanation="no seed was trained to the end by both {arm} and {reference}"
    ),
    "few seeds": Reason(explanation="fewer than {fewest} seeds have no interval"),
}
"""By the name of the reason: those of a ratio, the worst first, then that of a change, and those of
a training's accuracies."""
