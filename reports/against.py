"""A result compared with an earlier one of the same plan: what must be as it was, and what changed.

A launch is the sample: Welch's interval of the difference of mean logarithms
(``reports.statistics.student``). All throughputs hold at once, and so do all ratios. Launches of
one result say nothing of how days differ: a machine that is slower today makes all throughputs
regress. Ratios are free of that, since both arms ran on the same day.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from measurement.conditions import MAY_CHANGE_IN_A_PLAN, conditions
from measurement.conditions.differences import is_allowed
from measurement.conditions.same_environment import SOURCE, Values, changes_since, format_changes
from measurement.errors import PlanError
from measurement.plans.plan import FLOOR, Plan
from measurement.plans.sections import FIXED_LENGTH
from measurement.records.record import LaunchRecord, Manifest
from measurement.records.results import ResultsFolder
from reports.conclusions.machine import is_quiet
from reports.conclusions.ratios import farthest, reach_of_load
from reports.conclusions.steps import copies_of_baseline, log_levels, measured_records, total_tables
from reports.parts_schema import Against, Change, ChangeVerdict, Estimate
from reports.reasons import ChangeWithheld
from reports.runs import Run, differing_fields, rank_differences
from reports.schema import Comparison
from reports.scripts.configuration import script_differences
from reports.statistics.intervals import launch_ratios
from reports.statistics.student import Array, RatioEstimate, Runs, separate_ratio
from reports.tables.figures import arm_rows
from reports.wording.headlines import against_headline, common_slowdown, remedy

OF_NO_ARM = {"name", "left_out", "arms"}
"""Fields of a plan that need not be equal, and its arms, which are compared by their names."""
OF_SCRIPTS = ("backend.", "optimizer.", "model.")
"""What ranks of a script report of its libraries: it may change from step to step. Other work is
known by its configuration."""


@dataclass(frozen=True, kw_only=True)
class StoredComparison:
    """A comparison at one date; before it is measured, what is known of it."""

    folder: ResultsFolder
    plan: Plan
    manifest: Manifest | None = None
    """None: the machine is not known yet."""
    records: Sequence[LaunchRecord] = ()
    allow_slower: float = 0.05
    """The share of its speed that a figure may have lost since."""
    allowed: Sequence[str] = ()
    """Conditions that may have changed since, with all fields below them."""
    points: Mapping[str, StoredComparison] = field(default_factory=dict)
    """Those that were measured, by name; empty where the plan has none."""

    @classmethod
    def read(cls, folder: ResultsFolder, **accepted: Any) -> StoredComparison:
        """Read a folder of ``ringside compare`` or ``ringside ab``; raises a ``RingsideError`` for
        anything else.

        ``accepted``: ``allow_slower`` and ``allowed``, of an earlier result.
        """
        plan, place = folder.read_plan(), folder.root
        if plan.measurement.mode == "separate":
            raise PlanError(
                f"'{place}' is of runs that you started yourself; compare them by 'ringside report"
                " old=RUN new=RUN'"
            )
        points = {
            name: cls.read(point, **accepted)
            for name, point in folder.measured_points(plan).items()
        }
        records = [] if points else measured_records(folder)
        return cls(
            folder=folder,
            plan=plan,
            manifest=folder.read_manifest(),
            records=records,
            points=points,
            **accepted,
        )

    def require_like(self, now: StoredComparison) -> list[str]:
        """Refuse a result that was measured otherwise; before it is measured, as far as plan and
        machine are known.

        Returns:
            What differs and was allowed, and which sources differ, a sentence each.

        Raises:
            PlanError: with each field, what it was and what it is.
        """
        place = now.folder.root
        if self.folder.root.resolve() == place.resolve():
            raise PlanError(
                f"'{place}' is the same folder as that after --against; name the results of another"
                " date"
            )
        if self.points or now.points:
            notes = [
                note
                for name, point in now.points.items()
                if name in self.points
                for note in self.points[name].require_like(point)
            ]
            return list(dict.fromkeys(notes))
        changes = unlike_plans(self, now)
        if now.manifest is not None:
            changes |= changes_since(self.manifest, self.records, now.manifest)
        plan_fields = {field.partition(" on ")[0] for field in changes}
        changes |= {
            field: change
            for field, change in _unlike_ranks(self, now)
            if field.rpartition(".")[2] not in plan_fields
        }
        # Of sources a file or a revision of the user's is what changes between dates; a version of
        # an environment is a condition.
        versions = {condition.field for condition in conditions() if condition.source == "host"}
        sources = {
            field: changes[field]
            for field in changes
            if field.startswith(SOURCE) and field.rpartition("/")[2] not in {"ringside", *versions}
        }
        rest = {field: change for field, change in changes.items() if field not in sources}
        refused = {
            field: change for field, change in rest.items() if not is_allowed({field}, self.allowed)
        }
        if refused:
            raise PlanError(
                f"'{self.folder.root}' was measured under other conditions than '{place}', so they"
                " might make the difference (then -> now):\n  "
                + "\n  ".join(format_changes(refused))
                + "\nmeasure both under equal conditions, or both states in turn by one plan (arms"
                " with a commit or python of their own), or say --allow FIELD to 'ringside"
                " report' to compare them anyway"
            )
        notes = [f"Compared although it differs (--allow): {line}" for line in format_changes(rest)]
        if sources:
            notes.append(f"Sources differ: {'; '.join(format_changes(sources))}")
        return notes


def unlike_plans(then: StoredComparison, now: StoredComparison) -> dict[str, Values]:
    """What the plans ask for differently, arms by their names; how long is measured may differ."""
    changes: dict[str, Values] = {}
    for name in (name for name in Plan.model_fields if name not in OF_NO_ARM):
        values = {"then": getattr(then.plan, name), "now": getattr(now.plan, name)}
        for key, change in differing_fields(name, values):
            setting = key.rpartition(".")[2] if name in ("measurement", "scripts") else key
            if setting not in {*MAY_CHANGE_IN_A_PLAN, *FIXED_LENGTH}:
                changes[key] = change
    for name in (name for name in then.plan.arms if name in now.plan.arms):
        arms = {"then": then.plan.arms[name], "now": now.plan.arms[name]}
        changes |= differing_fields(f"arms.{name}", arms)
    return changes


def _unlike_ranks(then: StoredComparison, now: StoredComparison) -> Iterator[tuple[str, Values]]:
    """In what the ranks of each arm report something else; sources are known by the
    environments.
    """
    for arm in (arm for arm in now.plan.roles() if arm != FLOOR):
        runs = [
            Run(name=name, folder=stored.folder, plan=stored.plan, record=reported[0])
            for name, stored in (("then", then), ("now", now))
            if (reported := [one for one in stored.records if one.arm == arm and one.ranks])
        ]
        if len(runs) < 2:
            continue
        skipped = ("source.", *OF_SCRIPTS) if runs[1].record.scripts else ("source.",)
        rows = [
            row
            for row in rank_differences(runs, is_one_arm=True)
            if not (row.allowed or row.field.startswith(skipped))
        ]
        records = [
            run.record.model_copy(update={"arm": run.name, "role": role})
            for run, role in zip(runs, ("baseline", "candidate"), strict=True)
        ]
        rows += [row for row in script_differences(records) if row.changes_work]
        yield from ((row.field, row.values) for row in rows)


WORST: Sequence[ChangeVerdict] = ("regressed", "undecided", "no regression", "improved")
Doubt = tuple[float, ChangeWithheld]
"""By how much a figure may be wrong for a reason that its launches do not show, as a logarithm; and
the reason."""
Figure = tuple[Array, Doubt]
"""Logarithms of a figure by launch, and the doubt about them."""


def compare_to_earlier(
    then: StoredComparison,
    now: StoredComparison,
    before: Comparison,
    after: Comparison,
) -> Against:
    """What changed since an earlier result; ``before`` and ``after`` are what was concluded from
    the two.

    Raises:
        PlanError: they were measured under unlike conditions, or have no figure in common.
    """
    notes = then.require_like(now)
    changes = list(find_changes(then, now, before, after))
    if not changes:
        raise PlanError(
            f"'{before.comparison_id}' and '{after.comparison_id}' have no timing of the same arm;"
            " see the errors in their reports, and compare results with arms of the same names"
        )
    against = Against(
        comparison_id=before.comparison_id,
        folder=str(then.folder.root),
        created_at=before.created_at,
        baseline=after.baseline,
        allow_slower=then.allow_slower,
        confidence=now.plan.measurement.confidence,
        verdict=min((change.verdict for change in changes), key=WORST.index),
        headline="",
        remedy=remedy(has_changed=bool(notes)),
        changes=changes,
    )
    lines = [*common_slowdown(against), *notes]
    return against.model_copy(
        update={"headline": against_headline(against, now=after.created_at), "notes": lines}
    )


def find_changes(
    then: StoredComparison, now: StoredComparison, before: Comparison, after: Comparison
) -> Iterator[Change]:
    """The changes of all figures that both results have a timing of: throughputs, then ratios."""
    measured = {*(then.points or [""])} & {*(now.points or [""])}
    rows = [
        row
        for row in arm_rows(after, by_case=True)
        if row.place in measured and row.arm.name in before.places[row.place].arm_names
    ]
    for read, roles in ((_throughput, ("baseline", "candidate")), (_ratio, ("candidate",))):
        of_roles = [row for row in rows if row.arm.role in roles]
        for row in of_roles:
            case = row.case.name if row.case else None
            old, old_doubt = read(before.places[row.place], then.plan, row.arm.name, case)
            new, new_doubt = read(row.point, now.plan, row.arm.name, case)
            ratio = separate_ratio(
                Runs(logs=new, started=()),
                Runs(logs=old, started=()),
                confidence=now.plan.measurement.confidence,
                family=len(of_roles),
            )
            if ratio is None:
                continue
            reach, why = max(old_doubt, new_doubt)
            verdict, is_beyond = judge(ratio, allow_slower=then.allow_slower, reach=reach)
            moved = verdict != judge(ratio, allow_slower=then.allow_slower)[0]
            yield Change(
                arm=row.arm.name,
                baseline=after.baseline if read is _ratio else None,
                case=case,
                point=row.place or None,
                before=float(np.exp(old.mean())),
                after=float(np.exp(new.mean())),
                change=Estimate(value=ratio.value, ci_low=ratio.ci_low, ci_high=ratio.ci_high),
                at_least=ratio.equivalence_low,
                launches_before=len(old),
                launches_after=len(new),
                verdict=verdict,
                is_beyond=is_beyond,
                withheld_by="launches" if ratio.bounds is None else why if moved else None,
            )


def judge(
    change: RatioEstimate, *, allow_slower: float, reach: float = 0.0
) -> tuple[ChangeVerdict, bool]:
    """The verdict, and whether it is a regression beyond what is allowed.

    Improved: the interval is above 1. No regression: the one-sided bound is at least 1 -
    ``allow_slower``. Regressed: neither, and the interval is below 1; beyond what is allowed where
    it is below 1 - ``allow_slower``. All bounds first give way by ``reach``.
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


def _throughput(comparison: Comparison, _: Plan, arm: str, case: str | None) -> Figure:
    """An arm's own; others' load may have made it slower."""
    levels = log_levels(_blocks(comparison, case), [arm])[:, 0]
    load = comparison.arm(arm).load
    reach = (
        0.0
        if load is None or is_quiet(load)
        else reach_of_load(load.foreign_share + load.steal_share, None)
    )
    return levels[np.isfinite(levels)], (reach, "load")


def _ratio(comparison: Comparison, plan: Plan, arm: str, case: str | None) -> Figure:
    """A candidate's; what withholds its own verdict withholds that on its change, and the control's
    deviation is its doubt.
    """
    ratios = launch_ratios(
        total_tables(plan, _blocks(comparison, case), [[arm, *copies_of_baseline(plan, arm)]])[0]
    )
    result = comparison.result(arm, case)
    doubt: Doubt = (0.0, "control")
    failed = [
        control for control in comparison.results if control.case == case and control.control_failed
    ]
    if result is not None and result.withheld_by not in (None, "control"):
        doubt = (math.inf, result.withheld_by)
    elif failed:
        doubt = (farthest(failed[0].ratio), "control")
    return np.array([]) if ratios is None else ratios.logs, doubt


def _blocks(comparison: Comparison, case: str | None) -> pd.DataFrame:
    blocks = pd.DataFrame(comparison.block_table)
    return blocks if case is None else blocks[blocks["case"] == case]
