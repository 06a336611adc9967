"""What changed between two results: each arm's throughput and each ratio, unpaired, with what may be claimed of it.

A launch is the sample: Welch's interval of the difference of mean logarithms (``reports.statistics.separate``). All throughputs
hold at once, and so do all ratios. Launches of one result say nothing of how days differ: a machine that is slower today makes
all throughputs regress. Ratios are free of that, since both arms ran on the same day.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from measurement.errors import PlanError
from reports.against_schema import Against, Change, ChangeVerdict, ChangeWithheld
from reports.conclusions.blocks import copies_of_baseline, log_levels, total_tables
from reports.conclusions.disturbances import is_quiet
from reports.conclusions.verdict import farthest, reach_of_load
from reports.estimate import Estimate
from reports.regressions.measured import Dated, Earlier
from reports.statistics.intervals import RatioEstimate, launch_ratios
from reports.statistics.separate import Runs, separate_ratio
from reports.statistics.student import Array
from reports.wording.against_sentences import headline, remedy, together_line

WORST: Sequence[ChangeVerdict] = ("regressed", "undecided", "no regression", "improved")
Doubt = tuple[float, ChangeWithheld]
"""How far off a figure may be for a reason that its launches do not show, as a logarithm; and the reason."""
Figure = tuple[Array, Doubt]
"""Logarithms of a figure by launch, and the doubt about them."""


def hold_against(earlier: Earlier, then: Dated, now: Dated, *, notes: Sequence[str]) -> Against:
    """What changed since an earlier result; ``notes``: of ``Earlier.require_like``.

    Raises:
        PlanError: they have no figure in common.
    """
    changes = find_changes(then, now, allow_slower=earlier.allow_slower)
    if not changes:
        raise PlanError(
            f"'{then.found.comparison_id}' and '{now.found.comparison_id}' have no timing of the same arm; see the errors in their "
            "reports, and compare results with arms of the same names"
        )
    found = Against(
        comparison_id=then.found.comparison_id,
        folder=str(then.measured.folder.root),
        created_at=then.found.created_at,
        baseline=now.found.baseline,
        allow_slower=earlier.allow_slower,
        confidence=now.measured.plan.measurement.confidence,
        verdict=min((change.verdict for change in changes), key=WORST.index),
        headline="",
        remedy=remedy(then.measured.plan, then.measured.manifest, has_changed=bool(notes)),
        changes=changes,
    )
    every = dict.fromkeys(arm.name for one in (now, then) for arm in one.found.arms if arm.role != "control")
    missing = [name for name in every if name not in {change.arm for change in changes}]
    unmatched = [f"Not compared, since one of the two results has no timing: {', '.join(missing)}"] if missing else []
    said = [*together_line(found), *unmatched, *notes]
    return found.model_copy(update={"headline": headline(found, now=now.found.created_at), "notes": said})


def find_changes(then: Dated, now: Dated, *, allow_slower: float) -> list[Change]:
    """The changes of all figures that both results have: throughputs, then ratios."""
    cases: list[str | None] = [case.name for case in now.found.cases]
    arms = [arm for arm in now.found.arms if arm.role != "control" and arm.name in {one.name for one in then.found.arms}]
    candidates = [arm for arm in arms if arm.role == "candidate"]
    found = []
    for timed, read in ((arms, _throughput), (candidates, _ratio)):
        family = len(timed) * max(len(cases), 1)
        for case in cases or [None]:
            for arm in timed:
                before, after = (read(one, arm.name, case) for one in (then, now))
                baseline = now.found.baseline if read is _ratio else None
                place = {"arm": arm.name, "baseline": baseline, "case": case}
                confidence = now.measured.plan.measurement.confidence
                found += change_of(before, after, confidence=confidence, family=family, allow_slower=allow_slower, place=place)
    return found


def change_of(
    before: Figure, after: Figure, *, confidence: float, family: int, allow_slower: float, place: dict[str, str | None]
) -> list[Change]:
    """One change; none where one of the two has no timing. ``place``: which figure it is of."""
    ours, theirs = (Runs(logs=logs, usual=logs, started=()) for logs, _ in (after, before))
    found = separate_ratio(ours, theirs, confidence=confidence, family=family)
    if found is None:
        return []
    reach, why = max(before[1], after[1])
    verdict, is_beyond = judge(found, allow_slower=allow_slower, reach=reach)
    moved = verdict != judge(found, allow_slower=allow_slower)[0]
    return [
        Change(
            **place,
            before=float(np.exp(before[0].mean())),
            after=float(np.exp(after[0].mean())),
            change=Estimate(value=found.value, ci_low=found.ci_low, ci_high=found.ci_high),
            at_least=found.equivalence_low,
            launches_before=len(before[0]),
            launches_after=len(after[0]),
            verdict=verdict,
            is_beyond=is_beyond,
            withheld_by="launches" if found.bounds is None else why if moved else None,
        )
    ]


def judge(change: RatioEstimate, *, allow_slower: float, reach: float = 0.0) -> tuple[ChangeVerdict, bool]:
    """The verdict, and whether it is a regression beyond what is allowed.

    Improved: the interval is above 1. No regression: the one-sided bound is at least 1 - ``allow_slower``. Regressed: neither, and
    the interval is below 1; beyond what is allowed where it is below 1 - ``allow_slower``. All bounds first give way by ``reach``.
    """
    if change.bounds is None or change.one_sided is None:
        return "undecided", False
    low, least = (bound * math.exp(-reach) for bound in (change.bounds[0], change.one_sided[0]))
    high = change.bounds[1] * math.exp(reach)
    if low > 1:
        return "improved", False
    if least >= 1 - allow_slower:
        return "no regression", False
    return ("regressed", high < 1 - allow_slower) if high < 1 else ("undecided", False)


def _throughput(one: Dated, arm: str, case: str | None) -> Figure:
    """An arm's own; others' load may have made it slower."""
    levels = log_levels(_blocks(one, case), [arm])[:, 0]
    load = one.found.arm(arm).load
    reach = 0.0 if load is None or is_quiet(load) else reach_of_load(load.foreign_share + load.steal_share, None)
    return levels[np.isfinite(levels)], (reach, "load")


def _ratio(one: Dated, arm: str, case: str | None) -> Figure:
    """A candidate's; what withholds its own verdict withholds that on its change, and the control's deviation is its doubt."""
    plan = one.measured.plan
    found = launch_ratios(total_tables(plan, _blocks(one, case), [[arm, *copies_of_baseline(plan, arm)]])[0])
    result = one.found.result(arm, case)
    doubt: Doubt = (0.0, "control")
    failed = [control for control in one.found.results if control.case == case and control.control_failed]
    if result is not None and result.withheld_by not in (None, "control"):
        doubt = (math.inf, result.withheld_by)
    elif failed:
        doubt = (farthest(Estimate(value=1.0, ci_low=failed[0].ci_low, ci_high=failed[0].ci_high)), "control")
    return np.array([]) if found is None else found.logs, doubt


def _blocks(one: Dated, case: str | None) -> pd.DataFrame:
    found = pd.DataFrame(one.found.block_table)
    return found if case is None else found[found["case"] == case]
