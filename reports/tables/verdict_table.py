"""The table of all arms, which studies show by point; the arms' conditions; what changed since an earlier result."""

from __future__ import annotations

from collections.abc import Mapping

from reports.parts_schema import Against, ArmTraining, Change, ChangeVerdict, TrainingSummary
from reports.schema import ArmSummary, Comparison, RatioSummary
from reports.tables.table import Entries, Entry, Kind, Table, table
from reports.wording.against_sentences import figure_name
from reports.wording.comparison_sentences import first_line
from reports.wording.formatting import (
    NONE,
    accuracy_interval,
    arm_kind,
    interval,
    milliseconds,
    minutes_words,
    percent,
    points,
    rate,
    rate_interval,
    ratio,
    seconds,
    with_interval,
)
from reports.wording.reasons import REASONS

MPI_PARAMETERS = {"environment.OMPI_MCA_pml": "pml", "environment.OMPI_MCA_btl": "btl"}
"""Which of Open MPI's ways to carry bytes a launcher chose: ``horovodrun --mpi`` does, ``mpirun`` does not."""


def verdict_table(comparison: Comparison) -> Table:
    """One row per arm, in the plan's order."""
    titles = {
        "arm": "arm",
        "runs_as": "runs as",
        **arm_titles(comparison.sample_unit, comparison.measurement["confidence"]),
        "pairs": "launches, pairs",
        "note": "note",
    }
    rows: list[Entries] = []
    for arm in comparison.arms:
        result = comparison.result(arm.name)
        pairs = f"{result.launches}, {result.pairs}" if result and result.pairs else ""
        own = {"arm": arm.name, "runs_as": arm_kind(arm), "pairs": pairs, "note": note(arm, result)}
        rows.append({**own, **arm_entries(arm, result)})
    return table(titles, rows, numeric=(*ARM_NUMBERS, "pairs"), wraps=["note"])


ARM_NUMBERS = ("throughput", "ratio", "interval", "exposed")


def arm_titles(unit: str, confidence: float) -> dict[str, str]:
    """The columns of ``arm_entries``; ``ARM_NUMBERS`` are figures."""
    return {
        "status": "status",
        "throughput": f"{unit}/s",
        "ratio": "ratio",
        "interval": f"{percent(confidence)} interval",
        "verdict": "verdict",
        "exposed": "exposed ms",
    }


def arm_entries(arm: ArmSummary, result: RatioSummary | None) -> dict[str, Entry]:
    """Status, figures and verdict of an arm.

    ``result``: its ratio to the baseline; None for the baseline itself, and where there is none.
    """
    speed, is_baseline = arm.throughput_per_s, arm.role == "baseline"
    rate_text = f"{rate(speed)} ({rate_interval(speed)})" if speed and speed.ci_low is not None else rate(speed)
    kind = verdict_kind(result) if result or is_baseline else "plain"
    said = kind if kind != "plain" else arm.role if arm.role == "other input" else ""
    return {
        "status": Entry(text=arm.status, kind=arm.status),
        "throughput": Entry(text=rate_text, short=rate(speed)),
        "ratio": Entry(text=ratio(result.throughput_ratio) if result else "1" if is_baseline and speed else ""),
        "interval": Entry(text=interval(result) if result else ""),
        "verdict": Entry(text=said, kind=kind),
        "exposed": Entry(text=with_interval(arm.exposed_exchange_s, milliseconds) if arm.world_size > 1 else "not tested"),
    }


def verdict_kind(result: RatioSummary | None) -> Kind:
    """The verdict; for the control whether it comes out equal; for the baseline its role."""
    if result is None:
        return "baseline"
    if result.throughput_ratio is None:
        return "no timing"
    if result.role == "control":
        return "control failed" if result.control_failed else "control"
    return result.verdict


def note(arm: ArmSummary, result: RatioSummary | None) -> str:
    """What went wrong, else how much longer to measure, else what weakens the figure."""
    if arm.errors:
        return first_line(arm.errors[0].message)
    if result and result.more_runs is not None:
        return f"{result.more_runs} more of each"
    if result and result.role == "candidate" and result.more_minutes is not None:
        return f"{minutes_words(result.more_minutes)} more"
    if result and result.note:
        return result.note
    return "" if arm.complete else "interrupted"


def conditions_table(comparison: Comparison) -> Table:
    """What each rank of an arm ran on, and what the arm does that nobody asked for and that moves the answer, where they differ.

    One row per arm but the control. The columns of what may differ are left out where no arm differs.
    """
    arms = [arm for arm in comparison.arms if arm.role != "control"]
    mpi = {entry["field"]: entry["values"] for entry in comparison.fairness if str(entry.get("field")) in MPI_PARAMETERS}
    defaults = {
        "buffers": {arm.name: "yes" if arm.described.get("broadcast_buffers", False) else "no" for arm in arms},
        "unit": {arm.name: _exchange_unit(arm) for arm in arms},
        "mpi": {arm.name: _mpi_parameters(arm.name, mpi) for arm in arms},
        "nccl": {arm.name: arm.described.get("nccl", NONE) for arm in arms},
    }
    titles = {
        "arm": "arm",
        "cores": "cores",
        "threads": "threads",
        "other_threads": "cores for other threads",
        "buffers": "buffers broadcast in forward",
        "unit": "gradients meet in",
        "mpi": "MPI parameters",
        "nccl": "NCCL",
    }
    alike = [name for name, values in defaults.items() if len(set(values.values())) == 1]
    rows = []
    for arm in arms:
        others = arm.load.other_threads_share if arm.load else None  # the library's, and torch's own where it has several
        entries = {
            "arm": arm.name,
            "cores": str(arm.cores_per_rank or NONE),
            "threads": str(arm.threads_per_rank or NONE),
            "other_threads": NONE if others is None else f"{others:.2f}",
        }
        rows.append(entries | {name: values[arm.name] for name, values in defaults.items()})
    numeric = ("cores", "threads", "other_threads")
    return table(titles, rows, numeric=numeric).without(*alike)


def _exchange_unit(arm: ArmSummary) -> str:
    """The size up to which gradients are put together before they are exchanged."""
    if "fusion_threshold_bytes" in arm.described:
        return f"fusion buffers up to {arm.described['fusion_threshold_bytes'] / 2**20:g} MiB"
    if "bucket_cap_bytes" in arm.described:
        return f"buckets up to {arm.described['bucket_cap_bytes'] / 2**20:g} MiB"
    return NONE


def _mpi_parameters(arm: str, values: Mapping[str, Mapping[str, object]]) -> str:
    """What the launcher told Open MPI of how to carry bytes."""
    told = [f"{MPI_PARAMETERS[field]} {by_arm[arm]}" for field, by_arm in values.items() if by_arm.get(arm) is not None]
    return ", ".join(told) or NONE


def training_table(training: TrainingSummary) -> Table:
    """One row per arm, in the plan's order; with times to accuracy where the plan has a target.

    Besides the columns' entries there is a ``note``, which a format may show with the arm's name.
    """
    target = training.settings.target_accuracy
    titles = {"accuracy": "accuracy", "difference": f"points from {training.reference}", "convergence": "convergence"}
    if target is not None:
        titles |= {"time": f"{percent(target)} after", "reached": "reached", "time_ratio": f"time / {training.baseline}'s"}
    rows: list[Entries] = [
        {
            "arm": arm.name,
            "accuracy": accuracy_interval(arm.final_top1),
            "difference": points(arm.difference),
            "convergence": _convergence(arm, training),
            "time": seconds(arm.time_to_accuracy_s),
            "reached": f"{arm.seeds_reached} of {arm.seeds}",
            "time_ratio": "1" if arm.name == training.baseline else with_interval(arm.time_ratio, ratio),
            "note": arm.note or "",
        }
        for arm in training.arms
    ]
    return table({"arm": "arm"} | titles, rows, wraps=titles)


def _convergence(arm: ArmTraining, training: TrainingSummary) -> Entry:
    if arm.name == training.reference:
        return Entry(text="reference", kind="reference")
    return Entry(text=arm.convergence, kind=arm.convergence) if arm.convergence else Entry(text=NONE)


CHANGE_KINDS: Mapping[ChangeVerdict, Kind] = {"regressed": "slower", "improved": "faster", "no regression": "equivalent"}
AGAINST_TITLES = {
    "figure": "figure",
    "before": "then",
    "after": "now",
    "change": "change",
    "interval": "interval",
    "verdict": "verdict",
}


def against_table(comparison: Comparison) -> Table:
    """A row for each throughput, then for each ratio; none without an earlier result."""
    found = comparison.against
    rows = [_change_row(change, found, comparison.sample_unit) for change in found.changes] if found else []
    titles = AGAINST_TITLES | ({"interval": f"{percent(found.confidence)} interval"} if found else {})
    return table(titles, rows, numeric=("before", "after", "change", "interval"), wraps=("verdict",))


def _change_row(change: Change, found: Against, unit: str) -> Entries:
    is_ratio = change.baseline is not None
    before, after = (ratio(value) if is_ratio else rate(value) for value in (change.before, change.after))
    bounds = change.change.bounds
    verdict = Entry(text=_change_verdict(change, found), kind=CHANGE_KINDS.get(change.verdict, "undecided"))
    return {
        "figure": figure_name(change) + ("" if is_ratio else f", {unit}/s"),
        "before": before,
        "after": after,
        "change": _signed(change.change.value),
        "interval": " to ".join(map(_signed, bounds)) if bounds else NONE,
        "verdict": verdict,
    }


def _signed(value: float) -> str:
    return f"{value - 1:+.1%}"


def _change_verdict(change: Change, found: Against) -> str:
    if change.withheld_by is not None:
        return f"undecided: {REASONS[change.withheld_by].brief}"
    beyond = f" beyond {percent(found.allow_slower)}" if change.is_beyond or change.verdict == "no regression" else ""
    return f"{change.verdict}{beyond}"
