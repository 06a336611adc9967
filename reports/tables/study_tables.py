"""The tables of a study: every arm at every point, what the points are, the bytes over their links."""

from __future__ import annotations

from reports.schema import ArmSummary, Estimate
from reports.study_schema import Study, StudyPoint
from reports.tables.rank_tables import LINK_TITLES, link_caption, link_table
from reports.tables.table import Entry, Row, Table, columns, row
from reports.tables.verdict_table import arm_columns, arm_entries
from reports.wording.formatting import NONE, with_interval
from reports.wording.study_sentences import bases, cause_of, trained_to

POINT = {"point": "point"}


def results_table(study: Study) -> Table:
    """Every arm at every point, in groups by point. Without scaling where all points have as many ranks."""
    status, throughput, *others = arm_columns(study.sample_unit, study.confidence)
    scaling = {"speed_up": "speed-up", "efficiency": "efficiency"} if bases(study) else {}
    trained = any(arm.time_to_train_s for point in study.points for arm in point.arms)
    time = {"time_to_train": f"seconds to {trained_to(study.target_accuracy)}"} if trained else {}
    made = [
        *columns(POINT | {"arm": "arm"}),
        status,
        throughput,
        *columns(scaling | time, numeric=scaling | time),
        *others,
        *columns({"cause": "cause"}, wraps=["cause"]),
    ]
    return Table(columns=made, rows=[_result_row(point, arm) for point in study.points for arm in point.arms])


def _result_row(point: StudyPoint, arm: ArmSummary) -> Row:
    return row(
        {
            "point": point.name,
            "arm": arm.name,
            "cause": cause_of(arm),
            **arm_entries(arm, point.result(arm.name)),
            "speed_up": _with_interval(arm.speed_up, "{:.2f}"),
            "time_to_train": _with_interval(arm.time_to_train_s, "{:.3g}"),
            "efficiency": _with_interval(arm.scaling_efficiency, "{:.0%}"),
        },
        group=point.name,
    )


def _with_interval(estimate: Estimate | None, form: str) -> Entry:
    return Entry(text=with_interval(estimate, form.format), short=form.format(estimate.value) if estimate else NONE)


def points_table(study: Study) -> Table:
    """What the points are."""
    titles = {
        "ranks": "ranks",
        "hosts": "hosts",
        "local_batch": "batch per rank",
        "global_batch": "global batch",
        "answer": "its answer",
    }
    rows = []
    for point in study.points:
        entries = {
            "point": point.name,
            "ranks": str(point.world_size),
            "hosts": point.hosts or "this machine",
            "local_batch": str(point.local_batch_size),
            "global_batch": str(point.global_batch_size),
            "answer": point.cause or point.headline or "not measured",
        }
        rows.append(row(entries))
    return Table(columns=columns(POINT | titles), rows=rows)


def study_link_table(study: Study) -> Table:
    """Bytes per link at every point of a lab."""
    rows = [
        row({"point": point.name, **own.entries}, group=point.name) for point in study.points for own in link_table(point.arms).rows
    ]
    return Table(columns=columns(POINT | LINK_TITLES), rows=rows)


def study_link_caption(study: Study) -> str:
    """What those figures mean."""
    return link_caption([arm for point in study.points for arm in point.arms])
