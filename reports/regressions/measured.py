"""A stored result, and what must be as it was then before a difference to it means anything (``measurement.conditions``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from measurement.conditions.conditions import CONDITIONS, MAY_CHANGE_IN_A_PLAN
from measurement.conditions.same_environment import SOURCE, Change, changes_since, told
from measurement.errors import PlanError, RecordError
from measurement.plans.plan import FLOOR, Plan
from measurement.records.record import LaunchRecord, Manifest
from measurement.records.results import ResultsFolder
from reports.run_conditions import by_field, is_allowed, of_ranks
from reports.run_folders import Run
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
        """Read a folder of ``ringside compare`` or ``ringside ab``.

        Raises:
            RecordError: it holds none, or nothing was measured.
            PlanError: it is a study, or a run that people started themselves.
        """
        plan = folder.read_plan()
        if plan.points:
            raise PlanError(
                f"'{folder.root}' is a study; compare its points one by one, such as '{folder.point(next(iter(plan.points))).root}'"
            )
        if plan.measurement.mode == "separate":
            raise PlanError(
                f"'{folder.root}' is of runs that you started yourself; compare runs of two dates by 'ringside report old=RUN new=RUN'"
            )
        records = folder.records()
        if not records:
            raise RecordError(f"'{folder.root}' holds no launch record yet; run 'ringside compare' with this folder first")
        return cls(folder=folder, plan=plan, manifest=folder.read_manifest(), records=records)

    def run(self, arm: str) -> Run | None:
        """The first launch of an arm whose ranks reported; None without any."""
        found = [record for record in self.records if record.arm == arm and record.ranks]
        return Run(folder=self.folder, plan=self.plan, record=found[0]) if found else None


def require_like_conditions(then: Measured, now: Measured, *, allowed: Sequence[str] = ()) -> list[str]:
    """Refuse a result that was measured otherwise.

    Args:
        then: the earlier result.
        now: the new one; before it is measured, its plan and what is known of its machine.
        allowed: fields that may differ, with all that stands below them.

    Returns:
        What differs and was allowed, and which sources differ, a sentence each.

    Raises:
        PlanError: with each field, what it was and what it is.
    """
    found = unlike_plans(then, now) | unlike_environments(then, now)
    known = {field.partition(" on ")[0] for field in found}
    found |= {field: change for field, change in _unlike_ranks(then, now) if field.rpartition(".")[2] not in known}
    sources = {field: change for field, change in found.items() if _is_source(field)}
    rest = {field: change for field, change in found.items() if field not in sources}
    refused = told({field: change for field, change in rest.items() if not is_allowed(field, allowed)})
    if refused:
        raise PlanError(
            f"'{then.folder.root}' was measured under other conditions than '{now.folder.root}', so they might make the "
            "difference (then -> now):\n  " + "\n  ".join(refused) + "\nmeasure both alike, or both states in turn by one plan "
            "(arms with a commit or python of their own), or say --allow FIELD to 'ringside report' to compare them all the same"
        )
    return [
        *(f"Compared although it differs (--allow): {line}" for line in told(rest)),
        *([f"Sources differ: {'; '.join(told(sources))}"] if sources else []),
    ]


def unlike_plans(then: Measured, now: Measured) -> dict[str, Change]:
    """What the plans ask for differently, arms by their names; how long is measured may differ."""
    found: dict[str, Change] = {}
    for field in (name for name in Plan.model_fields if name not in OF_NO_ARM):
        found |= _pairs(field, getattr(then.plan, field), getattr(now.plan, field))
    found = {field: change for field, change in found.items() if not _may_change(field)}
    for name in (name for name in then.plan.arms if name in now.plan.arms):
        found |= _pairs(f"arms.{name}", then.plan.arms[name], now.plan.arms[name])
    return found


def _may_change(field: str) -> bool:
    section, *below = field.split(".")
    return (below[-1] if section in ("measurement", "scripts") and below else field) in MAY_CHANGE_IN_A_PLAN


def unlike_environments(then: Measured, now: Measured) -> dict[str, Change]:
    """In which machines, versions and sources they differ; nothing where one is not known."""
    if then.manifest is None or now.manifest is None:
        return {}
    found = changes_since(then.manifest, then.records, now.manifest)
    moved = tuple([launch for other in one.elsewhere for launch in other.launches] for one in (then.manifest, now.manifest))
    return found | ({"launches measured elsewhere": (moved[0], moved[1])} if any(moved) else {})


def _unlike_ranks(then: Measured, now: Measured) -> Iterator[tuple[str, Change]]:
    """In what the ranks of each arm report something else; sources are known by the environments."""
    for arm in (arm for arm in now.plan.roles() if arm != FLOOR):
        first, second = then.run(arm), now.run(arm)
        if first is None or second is None:
            continue
        skipped = ("source.", *OF_SCRIPTS) if second.record.scripts else ("source.",)
        for field, values in of_ranks([first, second], is_one_arm=True).items():
            if not field.startswith(skipped):
                yield field, (values[first.name], values[second.name])
        roles = {"then": (first.record, "baseline"), "now": (second.record, "candidate")}
        records = [record.model_copy(update={"arm": name, "role": role}) for name, (record, role) in roles.items()]
        for one in configuration_differences(records):
            if one.changes_work:
                yield one.field, (one.values.get("then"), one.values.get("now"))


def _pairs(field: str, then: object, now: object) -> Mapping[str, Change]:
    return {name: (values["then"], values["now"]) for name, values in by_field(field, {"then": then, "now": now})}


def _is_source(field: str) -> bool:
    """Whether it is a file or a revision of the user's, which is what changes between dates; no version of an environment."""
    return field.startswith(SOURCE) and field.rpartition("/")[2] not in VERSIONS
