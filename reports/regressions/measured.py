"""A stored result, and what must be as it was then before a difference to it means anything (``measurement.conditions``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from measurement.conditions.conditions import CONDITIONS, MAY_CHANGE_IN_A_PLAN
from measurement.conditions.same_environment import SOURCE, Change, changes_since, told
from measurement.errors import PlanError, RecordError
from measurement.plans.plan import FIXED_LENGTH, FLOOR, Plan
from measurement.records.record import LaunchRecord, Manifest
from measurement.records.results import ResultsFolder
from reports.run_conditions import by_field, is_allowed, of_ranks
from reports.run_folders import Run
from reports.schema import Comparison
from reports.scripts.configuration import configuration_differences

OF_NO_ARM = ("name", "left_out", "arms")
"""Fields of a plan that need not be equal, and its arms, which are compared by their names."""
OF_SCRIPTS = ("backend.", "optimizer.", "model.")
"""What ranks of a script report of its libraries: it may change from step to step. Other work is known by its configuration."""
VERSIONS = frozenset(condition.field for condition in CONDITIONS if condition.source == "host") | {"ringside"}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A comparison at one date, or as far as it is known before it is measured."""

    folder: ResultsFolder
    plan: Plan
    manifest: Manifest | None = None
    """None: the machine is not known yet."""
    records: Sequence[LaunchRecord] = ()

    @classmethod
    def read(cls, folder: ResultsFolder) -> Measured:
        """Read a folder of ``ringside compare`` or ``ringside ab``; raises a ``RingsideError`` for anything else."""
        plan, place = folder.read_plan(), folder.root
        if plan.points:
            point = folder.point(next(iter(plan.points))).root
            raise PlanError(f"'{place}' is a study; compare its points one by one, such as '{point}'")
        if plan.measurement.mode == "separate":
            raise PlanError(f"'{place}' is of runs that you started yourself; compare them by 'ringside report old=RUN new=RUN'")
        records = folder.records()
        if not records:
            raise RecordError(f"'{place}' holds no launch record yet; run 'ringside compare' with this folder first")
        return cls(folder=folder, plan=plan, manifest=folder.read_manifest(), records=records)


@dataclass(frozen=True, kw_only=True)
class Dated:
    """A result, and what came out of it."""

    measured: Measured
    found: Comparison


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The result that a new one is held against, and what the user accepts."""

    result: Measured
    allow_slower: float = 0.05
    """The share of its speed that a figure may lose."""
    allowed: Sequence[str] = ()
    """Conditions that may differ, with all that stands below them."""

    def require_like(self, now: Measured) -> list[str]:
        """Refuse a result that was measured otherwise; before it is measured, as far as plan and machine are known.

        Returns:
            What differs and was allowed, and which sources differ, a sentence each.

        Raises:
            PlanError: with each field, what it was and what it is.
        """
        then, place = self.result, now.folder.root
        if then.folder.root.resolve() == place.resolve():
            raise PlanError(f"'{place}' is the same folder as that after --against; name the results of another date")
        found = unlike_plans(then, now) | unlike_environments(then, now)
        known = {field.partition(" on ")[0] for field in found}
        found |= {field: change for field, change in _unlike_ranks(then, now) if field.rpartition(".")[2] not in known}
        # Of sources a file or a revision of the user's is what changes between dates; a version of an environment is a condition.
        sources = {field: found[field] for field in found if field.startswith(SOURCE) and field.rpartition("/")[2] not in VERSIONS}
        rest = {field: change for field, change in found.items() if field not in sources}
        refused = told({field: change for field, change in rest.items() if not is_allowed(field, self.allowed)})
        if refused:
            raise PlanError(
                f"'{then.folder.root}' was measured under other conditions than '{place}', so they might make the difference "
                "(then -> now):\n  " + "\n  ".join(refused) + "\nmeasure both alike, or both states in turn by one plan (arms with "
                "a commit or python of their own), or say --allow FIELD to 'ringside report' to compare them all the same"
            )
        allowed = [f"Compared although it differs (--allow): {line}" for line in told(rest)]
        return [*allowed, *([f"Sources differ: {'; '.join(told(sources))}"] if sources else [])]


def unlike_plans(then: Measured, now: Measured) -> dict[str, Change]:
    """What the plans ask for differently, arms by their names; how long is measured may differ."""
    found: dict[str, Change] = {}
    for field in (name for name in Plan.model_fields if name not in OF_NO_ARM):
        found |= _pairs(field, getattr(then.plan, field), getattr(now.plan, field))
    found = {field: change for field, change in found.items() if not _may_change(field)}
    for name in (name for name in then.plan.arms if name in now.plan.arms):
        found |= _pairs(f"arms.{name}", then.plan.arms[name], now.plan.arms[name])
    return found


def _pairs(field: str, then: object, now: object) -> Mapping[str, Change]:
    return {name: (values["then"], values["now"]) for name, values in by_field(field, {"then": then, "now": now})}


def _may_change(field: str) -> bool:
    section, *below = field.split(".")
    return (below[-1] if section in ("measurement", "scripts") and below else field) in {*MAY_CHANGE_IN_A_PLAN, *FIXED_LENGTH}


def unlike_environments(then: Measured, now: Measured) -> dict[str, Change]:
    """In which machines, versions and sources they differ; nothing where one is not known."""
    if then.manifest is None or now.manifest is None:
        return {}
    moved = tuple([launch for other in one.elsewhere for launch in other.launches] for one in (then.manifest, now.manifest))
    elsewhere: dict[str, Change] = {"launches measured elsewhere": (moved[0], moved[1])} if any(moved) else {}
    return changes_since(then.manifest, then.records, now.manifest) | elsewhere


def _unlike_ranks(then: Measured, now: Measured) -> Iterator[tuple[str, Change]]:
    """In what the ranks of each arm report something else; sources are known by the environments."""
    for arm in (arm for arm in now.plan.roles() if arm != FLOOR):
        runs = [
            Run(folder=one.folder, plan=one.plan, record=record)
            for one in (then, now)
            if (record := next((record for record in one.records if record.arm == arm and record.ranks), None))
        ]
        if len(runs) < 2:
            continue
        skipped = ("source.", *OF_SCRIPTS) if runs[1].record.scripts else ("source.",)
        for field, values in of_ranks(runs, is_one_arm=True).items():
            if not field.startswith(skipped):
                yield field, (values[runs[0].name], values[runs[1].name])
        roles = zip(runs, ({"arm": "then", "role": "baseline"}, {"arm": "now", "role": "candidate"}), strict=True)
        for one in configuration_differences([run.record.model_copy(update=role) for run, role in roles]):
            if one.changes_work:
                yield one.field, (one.values.get("then"), one.values.get("now"))
