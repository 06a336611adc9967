"""What scripts do differently, most important first: usual mistakes of a porting, other work, other settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, get_args

from measurement.records.record import LaunchRecord
from reports.parts_schema import ConfigurationDifference, Severity
from reports.scripts.culprits import Culprit, Pair, find_culprits
from reports.scripts.script_arms import ScriptArm, is_by_rank, shown

WORK = (
    "world_size",
    "rank_local_batch",
    "loader.batch_size",
    "loader.length",
    "loader.samples",
    "epoch.steps",
    "accumulation",
    "model.parameters",
    "model.trainable",
    "model.dtypes",
    "autocast.",
)
"""How settings begin that change the amount of work in a step or an epoch, the most telling first."""
OF_A_LIBRARY = (
    "ddp.",
    "horovod.",
    "version.horovod",
    "version.nccl",
    "version.openmpi",
    *(f"environment.{name}" for name in ("HOROVOD_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_", "TORCH_NCCL_ASYNC")),
)
"""Settings that come with a library or launcher; where one arm alone has them, they are a note."""
SPEED = (
    "threads.",
    "version.torch",
    "version.",
    "environment.",
    "loader.workers",
    "loader.prefetch",
    "loader.pin_memory",
    "loader.class",
    "cudnn.",
    "affinity.",
    "device",
    "gpu",
    "transport",
    *OF_A_LIBRARY,
)
"""Settings of speed alone, the most telling first."""
SPEED_ENDS = (".fused", ".foreach", ".capturable")
TRAINING = ("optimizer.", "schedule.", "sampler.", "seed.", "scaler.", "model.", "loader.")
LABELS = {
    "world_size": "ranks",
    "loader.batch_size": "batch of a rank",
    "rank_local_batch": "batch of a rank",
    "loader.length": "batches of an epoch on a rank",
    "loader.samples": "samples of the data set",
    "accumulation": "backward passes in a step",
    "model.parameters": "parameters of the model",
    "model.trainable": "parameters that are trained",
    "model.training": "model in training mode, with dropout and batch statistics",
    "sampler.epoch": "epoch of the sampler (set_epoch)",
    "threads.torch": "threads of a rank",
    "optimizer.0.class": "optimizer",
}
"""Names for people; of others the setting's own."""
ALL = "all"
"""In ``allow``: every difference in work."""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


def configuration_differences(records: Sequence[LaunchRecord], *, allow: Collection[str] = ()) -> list[ConfigurationDifference]:
    """In what the scripts of one launch differ, most important first.

    ``allow``: differences in work that do not withhold the verdict: names of fields, or ``all``.
    """
    known = [record for record in records if record.scripts and record.role in ("baseline", "candidate")]
    arms = [ScriptArm.of(record) for record in sorted(known, key=lambda record: record.role != "baseline")]
    if len(arms) < 2 or all(record.role != "baseline" for record in known):
        return []
    baseline, *candidates = arms
    culprits = [
        (candidate, culprit) for candidate in candidates for culprit in find_culprits(Pair(ours=candidate, theirs=baseline))
    ]
    told = _told(culprits)
    covered = {start: culprit.field for _, culprit in culprits for start in (culprit.field, *culprit.covers)}
    controls = [ScriptArm.of(record) for record in records if record.scripts and record.role == "control"]
    rest = _settings(arms, controls, covered=covered, told={one.field for one in told})
    causes = {
        one.field: next((field for start, field in covered.items() if one.field.startswith(start)), one.field) for one in rest
    }
    found = [
        one.model_copy(update={"allowed": one.changes_work and _is_allowed({one.field, causes.get(one.field, one.field)}, allow)})
        for one in [*told, *rest]
    ]
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def configuration_of(records: Iterable[LaunchRecord], *, allow: Collection[str] = ()) -> list[ConfigurationDifference]:
    """``configuration_differences`` of the launch in which most arms reported, the first of several."""
    launches: dict[int, list[LaunchRecord]] = {}
    for record in records:
        launches.setdefault(record.launch, []).append(record)
    most = max(sorted(launches), key=lambda launch: sum(bool(record.scripts) for record in launches[launch]), default=None)
    return [] if most is None else configuration_differences(launches[most], allow=allow)


def unlike_work(differences: Sequence[ConfigurationDifference], *, baseline: str) -> dict[str, list[ConfigurationDifference]]:
    """By arm, the differences to the baseline in work that withhold its verdict."""
    found: dict[str, list[ConfigurationDifference]] = {}
    for one in differences:
        for arm, value in one.values.items():
            if one.withholds and arm != baseline and value != one.values.get(baseline):
                found.setdefault(arm, []).append(one)
    return found


def own_work_differences(records: Iterable[LaunchRecord], *, allow: Collection[str] = ()) -> list[ConfigurationDifference]:
    """In what arms of a workload do other work than the baseline, where they have a workload, a commit or a Python of their own."""
    known = list(records)
    baseline = next((one for one in known if one.role == "baseline" and one.ranks), None)
    told: dict[str, dict[str, LaunchRecord]] = {}
    for record in known:
        for field in record.unlike_work:
            told.setdefault(field, {}).setdefault(record.arm, record)
    found = []
    for field, by_arm in told.items():
        values = {arm: _reported(record, field) for arm, record in by_arm.items()}
        theirs = None if baseline is None else _reported(baseline, field)
        if any(value == theirs for value in values.values()):  # seen in the gate
            values, theirs = {arm: record.unlike_work[field] for arm, record in by_arm.items()}, None
        found.append(
            ConfigurationDifference(
                field=field,
                values={**({} if baseline is None else {baseline.arm: theirs}), **values},
                changes_work=True,
                allowed=_is_allowed({field}, allow),
                severity="work",
                sentence="; ".join(f"{arm}: {record.unlike_work[field]}" for arm, record in by_arm.items()),
            )
        )
    return found


def _reported(record: LaunchRecord, field: str) -> Any:
    """A field of the first rank's report, or of the record, such as ``model.parameters``; None where it is of neither."""
    whole, _, part = field.partition(".")
    value = getattr(record.ranks[0], whole, None) if record.ranks else None
    return value.get(part) if isinstance(value, dict) else value if value is not None else getattr(record, whole, None)


def work_note(differences: Sequence[ConfigurationDifference], *, allow: str = "allow, --allow") -> str:
    """Why there is no verdict, and what to do. ``allow``: where it is allowed."""
    fields = list(dict.fromkeys(one.field for one in differences))
    said = ", ".join(fields[:MOST_FIELDS]) + (f" and {len(fields) - MOST_FIELDS} more" if len(fields) > MOST_FIELDS else "")
    return f"the two do different work ({said}); make it alike, or allow it ({allow})"


MOST_FIELDS = 3
"""That a note names."""


def _is_allowed(fields: Collection[str], allow: Collection[str]) -> bool:
    """Whether one of these fields is named, or all that begin so."""
    return ALL in allow or any(field == name or field.startswith(f"{name}.") for field in fields for name in allow)


def _told(culprits: Sequence[tuple[ScriptArm, Culprit]]) -> list[ConfigurationDifference]:
    """The culprits; those of several candidates in the same field together."""
    found: dict[str, ConfigurationDifference] = {}
    for _, one in culprits:
        before = found.get(one.field)
        values = one.values if before is None else {**one.values, **before.values}
        sentence = one.sentence if before is None else f"{before.sentence}; {one.sentence}"
        work = one.changes_work or (before is not None and before.changes_work)
        found[one.field] = ConfigurationDifference(
            field=one.field, values=values, changes_work=work, severity=one.severity, sentence=sentence
        )
    return list(found.values())


def _settings(
    arms: Sequence[ScriptArm], controls: Sequence[ScriptArm], *, covered: Collection[str], told: Collection[str]
) -> list[ConfigurationDifference]:
    """Every other setting in which arms differ; a note where a culprit says it already."""
    names = dict.fromkeys(name for arm in arms for name in arm.fields)
    rows = []
    for name in names:
        values = {arm.name: arm.fields.get(name) for arm in arms}
        alike = all(value == values[arms[0].name] for value in values.values())
        if name in told or alike or _is_idle(name, arms) or len({_value(name, value) for value in values.values()}) == 1:
            continue
        follows = name.startswith(tuple(covered)) or _is_without_effect(name, arms)
        severity: Severity = "note" if follows else _severity(name, values)
        again = [control.fields.get(name) != arms[0].fields.get(name) for control in controls]
        rows.append(
            ConfigurationDifference(
                field=name,
                values=values,
                changes_work=name.startswith(WORK) and not _is_half_known(values),
                severity=severity,
                sentence=_sentence(name, values, is_random=any(again), baseline=arms[0].name),
            )
        )
    return sorted(rows, key=lambda row: (SEVERITIES.index(row.severity), _place(row.field, row.severity)))


def _is_idle(name: str, arms: Sequence[ScriptArm]) -> bool:
    """Whether a setting belongs to something that some arm does not use, which has a line of its own."""
    whole = name.partition(".")[0]
    return name in ("autocast.dtype", "scaler.scale") and not all(arm.fields.get(f"{whole}.enabled") for arm in arms)


def _is_without_effect(name: str, arms: Sequence[ScriptArm]) -> bool:
    """Whether a variable steers what no arm uses, or what all arms have alike."""
    if name == "environment.OMP_NUM_THREADS":
        return len({arm.number("threads.torch") for arm in arms}) == 1 and arms[0].number("threads.torch") is not None
    return name.startswith("environment.NCCL_") and all(arm.fields.get("transport") not in ("nccl", None) for arm in arms)


def _is_half_known(values: Mapping[str, Any]) -> bool:
    """Whether an arm does not tell: a difference in work then withholds nothing."""
    return any(value is None for value in values.values())


def _severity(name: str, values: Mapping[str, Any]) -> Severity:
    if name.startswith(WORK):
        return "training" if _is_half_known(values) else "work"
    if name == "library":
        return "note"
    if name.startswith(OF_A_LIBRARY):
        return "note" if _is_half_known(values) else "speed"
    return "speed" if name.startswith(SPEED) or name.endswith(SPEED_ENDS) else "training"


def _place(name: str, severity: Severity) -> int:
    """Where a field stands among those of its severity."""
    order = {"work": WORK, "speed": SPEED}.get(severity, TRAINING)
    return next((number for number, start in enumerate(order) if name.startswith(start)), len(order))


def _sentence(name: str, values: Mapping[str, Any], *, is_random: bool, baseline: str) -> str:
    """Such as ``threads of a rank: 1 in new, 2 in old (torchrun sets OMP_NUM_THREADS=1)``."""
    if name.startswith("seed.") and is_random:
        return f"{name} is another each time {baseline} is started: it sets no seed"
    label = LABELS.get(name, name.removeprefix("environment."))
    by_value: dict[str, list[str]] = {}
    for arm, value in values.items():
        by_value.setdefault(_value(name, value), []).append(arm)
    said = ", ".join(f"{value} in {' and '.join(arms)}" for value, arms in by_value.items())
    return f"{label}: {said}{_remark(name, values)}"


def _value(name: str, value: Any) -> str:
    if value is None:
        return "not set" if name.startswith("environment.") else "none"
    return shown(value)


def _remark(name: str, values: Mapping[str, Any]) -> str:
    if name in ("threads.torch", "environment.OMP_NUM_THREADS") and any(str(value) == "1" for value in values.values()):
        return " (torchrun sets OMP_NUM_THREADS=1)"
    if name.startswith("seed.") and not any(is_by_rank(value) for value in values.values()):
        return ": they draw other weights, orders and dropout"
    return ""
