"""Holds a result against an earlier one of the same plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from measurement.errors import PlanError
from reports.against_schema import Against, Change, ChangeVerdict
from reports.regressions.changes import find_changes
from reports.regressions.measured import Measured, require_like_conditions
from reports.schema import Comparison
from reports.wording.against_sentences import headline, remedy, together_line, unmatched_line

WORST: Sequence[ChangeVerdict] = ("regressed", "undecided", "no regression", "improved")


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The result that a new one is held against, and what the user accepts."""

    result: Measured
    allow_slower: float
    allowed: Sequence[str] = ()
    """Conditions that may differ."""

    def require_like(self, now: Measured) -> list[str]:
        """Refuse a result of other conditions, see ``require_like_conditions``; or one that is the same folder."""
        if self.result.folder.root.resolve() == now.folder.root.resolve():
            raise PlanError(f"'{now.folder.root}' is the same folder as that after --against; name the results of another date")
        return require_like_conditions(self.result, now, allowed=self.allowed)


def hold_against(earlier: Earlier, then: Comparison, now: Measured, found: Comparison, *, notes: Sequence[str]) -> Against:
    """What changed.

    Args:
        earlier: the result that it is held against.
        then: what came out of that.
        now: the new result.
        found: what came out of it.
        notes: of ``Earlier.require_like``.

    Raises:
        PlanError: they have no figure in common.
    """
    plans = (earlier.result.plan, now.plan)
    changes = find_changes(then, found, plans, allow_slower=earlier.allow_slower)
    if not changes:
        raise PlanError(
            f"'{then.comparison_id}' and '{found.comparison_id}' have no timing of the same arm in common; see the errors in their "
            "reports, and compare results with arms of the same names"
        )
    verdict = min((change.verdict for change in changes), key=WORST.index)
    known = {
        "comparison_id": then.comparison_id,
        "folder": str(earlier.result.folder.root),
        "created_at": then.created_at,
        "baseline": found.baseline,
        "allow_slower": earlier.allow_slower,
        "confidence": now.plan.measurement.confidence,
        "verdict": verdict,
        "changes": changes,
    }
    made = Against(**known, headline="", remedy=remedy(earlier.result.plan, earlier.result.manifest, has_changed=bool(notes)))
    said = [*together_line(made), *unmatched_line(_unmatched(then, found, changes)), *notes]
    return made.model_copy(update={"headline": headline(made, now=found.created_at), "notes": said})


def _unmatched(then: Comparison, now: Comparison, changes: Sequence[Change]) -> list[str]:
    """Arms without a change, since one of the two has no timing of them."""
    timed = {change.arm for change in changes}
    return list(dict.fromkeys(arm.name for one in (now, then) for arm in one.arms if arm.role != "control" and arm.name not in timed))
