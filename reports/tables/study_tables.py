"""The tables of a study: every arm at every point, what the points are, the bytes over their links."""

from __future__ import annotations

from dataclasses import replace

from reports.schema import ArmSummary
from reports.study_schema import Study, StudyPoint
from reports.tables.rank_tables import link_caption, link_table
from reports.tables.table import Column, Entry, Row, Table, texts
from reports.tables.verdict_table import arm_columns, arm_entries
from reports.wording.formatting import NONE, with_interval
from reports.wording.study_sentences import bases, cause_of, trained_to

POINT = Column(name="point", title="point")
SCALING = (Column(name="speed_up", title="speed-up", numeric=True), Column(name="efficiency", title="efficiency", numeric=True))


def results_table(study: Study) -> Table:
    """Every arm at every point, in groups by point. Without scaling where all points have as many ranks."""
    status, throughput, *others = arm_columns(study.sample_unit, study.confidence)
    scaling = SCALING if bases(study) else ()
    arm, cause = Column(name="arm", title="arm"), Column(name="cause", title="cause", wraps=True)
    trained = any(arm.time_to_train_s for point in study.points for arm in point.arms)
    time = [Column(name="time_to_train", title=f"seconds to {trained_to(study.target_accuracy)}", numeric=True)] if trained else []
    columns = [POINT, arm, status, throughput, *scaling, *time, *others, cause]
    return Table(columns=columns, rows=[_result_row(point, arm) for point in study.points for arm in point.arms])


def _result_row(point: StudyPoint, arm: ArmSummary) -> Row:
    speed_up, efficiency, time = arm.speed_up, arm.scaling_efficiency, arm.time_to_train_s
    return Row(
        group=point.name,
        entries={
            **texts(point=point.name, arm=arm.name, cause=cause_of(arm)),
            **arm_entries(arm, point.result(arm.name)),
            "speed_up": Entry(text=with_interval(speed_up, "{:.2f}".format), short=f"{speed_up.value:.2f}" if speed_up else NONE),
            "time_to_train": Entry(text=with_interval(time, "{:.3g}".format), short=f"{time.value:.3g}" if time else NONE),
            "efficiency": Entry(
                text=with_interval(efficiency, "{:.0%}".format), short=f"{efficiency.value:.0%}" if efficiency else NONE
            ),
        },
    )


def points_table(study: Study) -> Table:
    """What the points are."""
    titles = {
        "ranks": "ranks",
        "hosts": "hosts",
        "link_rate": "link rate",
        "local_batch": "batch per rank",
        "global_batch": "global batch",
        "answer": "its answer",
    }
    columns = [POINT, *(Column(name=name, title=title) for name, title in titles.items())]
    return Table(columns=columns, rows=[_point_row(point) for point in study.points])


def _point_row(point: StudyPoint) -> Row:
    entries = texts(
        point=point.name,
        ranks=str(point.world_size),
        hosts=point.hosts or "this machine",
        link_rate=point.link_rate or ("as it is" if point.hosts else NONE),
        local_batch=str(point.local_batch_size),
        global_batch=str(point.global_batch_size),
        answer=point.cause or point.headline or "not measured",
    )
    return Row(entries=entries)


def study_link_table(study: Study) -> Table:
    """Bytes per link at every point of a lab."""
    tables = {point.name: link_table(point.arms) for point in study.points}
    rows = [
        replace(row, entries={**texts(point=name), **row.entries}, group=name)
        for name, table in tables.items()
        for row in table.rows
    ]
    return Table(columns=[POINT, *link_table([]).columns], rows=rows)


def study_link_caption(study: Study) -> str:
    """What those figures mean."""
    return link_caption([arm for point in study.points for arm in point.arms])
