"""How much of a difference in speed one setting explains: the baseline was timed with it, too
(``ringside ab --explain``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from measurement.conditions.differences import shown
from reports.conclusions.steps import copies_of_baseline, total_tables
from reports.conclusions.summaries import Evidence
from reports.schema import Explanation, RatioSummary
from reports.scripts.script_arms import ScriptArm
from reports.statistics.intervals import log_ratios
from reports.statistics.student import ratio_of_means
from reports.wording.formatting import bounds_text, share


def explanations(evidence: Evidence, results: Sequence[RatioSummary]) -> list[Explanation]:
    """One of each arm that is the baseline with a setting imposed on it, and each candidate that is
    not such an arm.

    The share is (a - c) / (a - b), where a, b and c are the seconds that a sample takes in the
    baseline, in the candidate, and in the baseline with the setting; over launches a ratio of means
    in units of a.
    """
    plan = evidence.plan
    tried = {
        name: arm.impose for name, arm in plan.arms.items() if arm.impose and name != plan.baseline
    }
    asked = [
        result for result in results if result.role == "candidate" and result.candidate not in tried
    ]
    confidence = evidence.confidence ** (1 / max(1, len(tried) * len(asked)))
    return [_explanation(evidence, name, result, confidence) for name in tried for result in asked]


def _explanation(
    evidence: Evidence, tried: str, result: RatioSummary, confidence: float
) -> Explanation:
    plan, candidate = evidence.plan, result.candidate
    groups = [[name, *copies_of_baseline(plan, name)] for name in (tried, candidate)]
    saved = [
        1 - np.exp(-log_ratios(tables)) for tables in total_tables(plan, evidence.blocks, groups)
    ]
    is_known = np.isfinite(saved).all(axis=0)
    explained = ratio_of_means(saved[0][is_known], saved[1][is_known], confidence=confidence)
    settings = plan.arms[tried].impose
    settings_text = ", ".join(f"{name} {shown(value)}" for name, value in settings.items())
    if unlike := [
        name for name, value in settings.items() if not _is_in_force(evidence, tried, name, value)
    ]:
        explained, how = None, f"{unlike[0]} did not come into force, so it was not tried"
    elif result.withheld_by == "work":
        explained, how = None, "no share is told, since the two do different work"
    elif explained is None:
        how = (
            f"no share is told, since no difference between {plan.baseline} and {candidate} is"
            " shown"
        )
    else:
        bounds = bounds_text(explained.ci_low, explained.ci_high, share)
        how = f"closes {share(explained.value)} ({bounds}) of the difference in time"
    return Explanation(
        arm=tried,
        candidate=candidate,
        settings=settings,
        share=explained,
        sentence=f"{plan.baseline} with {settings_text}, as in {candidate}: {how}",
    )


def _is_in_force(evidence: Evidence, arm: str, name: str, value: Any) -> bool:
    """Whether all launches of an arm report the setting as it was imposed, numbers up to
    rounding.
    """
    reported = [
        ScriptArm.of(record).fields.get(name)
        for record in evidence.records
        if record.arm == arm and record.scripts
    ]
    return bool(reported) and all(
        math.isclose(mine, value, rel_tol=0.01)
        if isinstance(mine, int | float) and isinstance(value, int | float)
        else mine == value
        for mine in reported
    )
