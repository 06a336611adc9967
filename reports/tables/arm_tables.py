"""The tables of all arms: verdicts, also at each point, of a micro-benchmark in each case; what
they ran on and differ in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from measurement.conditions import Severity
from measurement.conditions.differences import Difference, by_severity, shown
from measurement.records.record import Case
from reports.parts_schema import Against, ArmTraining, Change, ChangeVerdict, TrainingSummary
from reports.reasons import REASONS
from reports.schema import ArmSummary, CaseFigures, Comparison, RatioSummary
from reports.tables import Column, Entry, Kind, Table, figure_column, number, table, wrapped
from reports.tables.figures import EFFICIENCY, SPEED_UP, THROUGHPUT, TIME_TO_TRAIN, ArmRow, arm_rows
from reports.wording.comparison_sentences import first_line, trained_to
from reports.wording.formatting import (
    NONE,
    accuracy_interval,
    arm_kind,
    bandwidth,
    bounds_text,
    interval,
    percent,
    points,
    rate,
    ratio,
    seconds,
    size_text,
    with_interval,
)
from reports.wording.headlines import figure_name, times_to_target

POINT = Column("point", "place", optional=True)
ARM = Column("arm", "arm.name")
RUNS_AS = Column("runs as", "arm", arm_kind)
STATUS = Column("status", "arm.status", lambda status: Entry(status, kind=status))


def verdict_table(comparison: Comparison) -> Table:
    """Every arm at every point, in the plan's order."""
    names = {"unit": comparison.sample_unit, "end": trained_to(comparison.target_accuracy)}
    columns = [
        POINT,
        Column("arm", lambda row: Entry(row.arm.name, note=_note(row.arm, row.result))),
        *([] if comparison.points else [RUNS_AS]),  # for which there is no room
        STATUS,
        *(
            figure_column(figure, names, is_short=True, optional=True)
            for figure in (THROUGHPUT, SPEED_UP, EFFICIENCY, TIME_TO_TRAIN)
        ),
        number("ratio", _ratio),
        number(f"{percent(comparison.confidence)} interval", "result", interval),
        Column("verdict", _verdict),
        number(
            f"prediction, one {'run' if comparison.runs else 'long training'}",
            "result",
            lambda result: bounds_text(result.run_low, result.run_high),
            optional=True,
        ),
        number(
            "launches, pairs",
            "result",
            lambda result: f"{result.launches}, {result.pairs}" if result.pairs else "",
        ),
    ]
    return table(columns, arm_rows(comparison))


def _ratio(row: ArmRow) -> str:
    if row.result is None:
        return "1" if row.arm.role == "baseline" and row.arm.throughput_per_s else ""
    return ratio(row.result.throughput_ratio)


def _verdict(row: ArmRow) -> Entry:
    kind = verdict_kind(row.result) if row.result or row.arm.role == "baseline" else "plain"
    return Entry("" if kind == "plain" else kind, kind=kind)


def _note(arm: ArmSummary, result: RatioSummary | None) -> str:
    """What went wrong, else what weakens the figure."""
    if arm.errors:
        return first_line(arm.errors[0].message)
    return (result and result.note) or ("" if arm.complete else "interrupted")


def verdict_kind(result: RatioSummary | None) -> Kind:
    """The verdict; for the control whether it comes out equal; for the baseline its role."""
    if result is None:
        return "baseline"
    if result.throughput_ratio is None:
        return "no timing"
    if result.role == "control":
        return "control failed" if result.control_failed else "control"
    return result.verdict


POINTS = (
    Column("point", "name"),
    Column("ranks", "world_size"),
    Column("hosts", lambda point: point.asked_hosts or "this machine"),
    Column("batch per rank", "local_batch_size"),
    Column("global batch", "global_batch_size"),
    Column("its answer", lambda point: point.cause or point.headline or "not measured"),
)


def points_table(study: Comparison) -> Table:
    """What the points are."""
    return table(POINTS, study.points)


def case_table(comparison: Comparison, *, control: bool = True) -> Table:
    """One row per case, in groups by operation; after the size a column for each arm, with or
    without the ``control``.
    """
    arms = [arm for arm in comparison.arms if control or arm.role != "control"]
    columns = [Column(arm.name, partial(_case_entry, comparison, arm)) for arm in arms]
    return table([Column("size", size_text), *columns], comparison.cases, group="operation")


def case_figures(figures: CaseFigures) -> tuple[str, str]:
    """An arm's figures: latency, and both bandwidths; of a loader, samples per second, and the time
    of a batch.
    """
    latency = seconds(figures.latency_s)
    if figures.samples_per_s is not None:
        return f"{rate(figures.samples_per_s)} samples/s", f"a batch in {latency}"
    return (
        latency,
        f"alg {bandwidth(figures.algbw_bytes_per_s)}, bus {bandwidth(figures.busbw_bytes_per_s)}",
    )


def _case_entry(comparison: Comparison, arm: ArmSummary, case: Case) -> Entry:
    """Latency and bandwidths; then, after a semicolon, ratio, interval and verdict.

    Else why there is no figure.
    """
    figures, result = arm.case(case.name), comparison.result(arm.name, case.name)
    if figures.latency_s is None:
        return Entry(figures.not_offered or NONE, short=NONE)
    first, second = case_figures(figures)
    text = f"{first}, {second}"
    if result is None or result.throughput_ratio is None:
        return Entry(text, short=first)
    kind, figure = verdict_kind(result), ratio(result.throughput_ratio)
    bounds = f" ({interval(result)})" if result.ci_low is not None else ""
    return Entry(
        text=f"{text}; {figure}{bounds} {kind}", short=f"{first} {figure} {kind}", kind=kind
    )


def training_table(training: TrainingSummary) -> Table:
    """One row per arm, in the plan's order; with times to accuracy where the plan has a target."""
    target, (statistic, by_arm) = training.settings.target_accuracy, times_to_target(training)
    columns = [
        Column("arm", lambda arm: Entry(arm.name, note=arm.note or "")),
        wrapped("accuracy", "final_top1", accuracy_interval),
        wrapped(f"points from {training.reference}", "difference", points),
        wrapped("convergence", lambda arm: _convergence(arm, training)),
    ]
    times = [
        wrapped(
            f"{percent(target or 0)} after ({statistic})",
            lambda arm: seconds(by_arm.get(arm.name)),
        ),
        wrapped("reached", lambda arm: f"{arm.seeds_reached} of {arm.seeds}"),
        wrapped(
            f"time / {training.baseline}'s",
            lambda arm: (
                "1" if arm.name == training.baseline else with_interval(arm.time_ratio, ratio)
            ),
        ),
    ]
    return table([*columns, *(times if target is not None else [])], training.arms)


def _convergence(arm: ArmTraining, training: TrainingSummary) -> Entry | None:
    verdict: Kind | None = "reference" if arm.name == training.reference else arm.convergence
    return Entry(verdict, kind=verdict) if verdict else None


CHANGE_KINDS: Mapping[ChangeVerdict, Kind] = {
    "regressed": "slower",
    "improved": "faster",
    "no regression": "equivalent",
}


def against_table(comparison: Comparison) -> Table:
    """A row for each throughput, then for each ratio; none without an earlier result."""
    against = comparison.against
    if against is None:
        return table([], [])
    unit = f", {comparison.sample_unit}/s"
    columns = [
        Column("figure", lambda change: figure_name(change) + ("" if change.baseline else unit)),
        number("then", lambda change: _figure(change, change.before)),
        number("now", lambda change: _figure(change, change.after)),
        number("change", "change.value", _signed),
        number(
            f"{percent(against.confidence)} interval",
            "change.bounds",
            lambda bounds: " to ".join(map(_signed, bounds)),
        ),
        wrapped("verdict", lambda change: _change_verdict(change, against)),
    ]
    return table(columns, against.changes)


def _figure(change: Change, value: float) -> str:
    return ratio(value) if change.baseline else rate(value)


def _signed(value: float) -> str:
    return f"{value - 1:+.1%}"


def _change_verdict(change: Change, against: Against) -> Entry:
    beyond = (
        f" beyond {percent(against.allow_slower)}"
        if change.is_beyond or change.verdict == "no regression"
        else ""
    )
    text = (
        f"undecided: {REASONS[change.withheld_by].brief}"
        if change.withheld_by
        else f"{change.verdict}{beyond}"
    )
    return Entry(text, kind=CHANGE_KINDS.get(change.verdict, "undecided"))


SEVERITY_WORDS: dict[Severity, str] = {
    "mistake": "check this",
    "work": "other work",
    "training": "other training",
    "speed": "affects speed only",
}
KINDS: dict[str, Kind] = {
    "equal": "same",
    "equal up to rounding": "same",
    "apart": "differs",
    "another start": "differs",
    "no worse": "same",
    "worse": "differs",
    "undecided": "undecided",
    "mistake": "differs",
    "work": "undecided",
}
"""How verdicts and severities look."""


def differences_table(
    by_place: Mapping[str, Sequence[Difference]], *, in_words: bool = True
) -> Table:
    """One row for each field: its value in every arm, and what the difference means,
    the most important first.

    Arms are columns named like them.

    ``by_place``: by the name of the point. A row that not all points have says which have it.
    """
    rows = [row for place_rows in by_place.values() for row in place_rows]
    distinct = [row for number, row in enumerate(rows) if row not in rows[:number]]
    arms = dict.fromkeys(arm for row in distinct for arm in row.values)

    def points_of(row: Difference) -> str:
        names = [name for name, place_rows in by_place.items() if row in place_rows]
        return ", ".join(names) if len(names) < len(by_place) else ""

    def sentence(row: Difference) -> str:
        return "" if row.severity in ("note", "speed") else row.sentence  # the values say it

    columns = [
        wrapped("setting", "field"),
        Column("point", points_of, optional=True),
        *(wrapped(arm, partial(_value, arm), shown) for arm in arms),
        wrapped("", _meaning),
        *([wrapped("in words", sentence)] if in_words else []),
    ]
    return table(columns, by_severity(distinct))


def _value(arm: str, row: Difference) -> Any:
    return row.values.get(arm)


def _meaning(row: Difference) -> Entry:
    """How much it matters, and who asked for it."""
    origin = (
        "from library or launcher"
        if row.is_default
        else "asked for"
        if row.is_asked
        else "follows from others"
        if row.is_note
        else "allowed" * row.allowed
    )
    other_work = "other work" * (row.changes_work and row.severity != "work")
    parts = [SEVERITY_WORDS.get(row.severity, ""), other_work, origin]
    return Entry("; ".join(filter(None, parts)), kind=KINDS.get(row.severity, "plain"))
