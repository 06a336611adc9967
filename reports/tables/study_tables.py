"""The tables of a study: every arm at every point, what the points are, the bytes over their links."""

from __future__ import annotations

from reports.schema import Estimate, Study
from reports.tables.rank_tables import LINK_TITLES, link_table
from reports.tables.table import Entries, Entry, Table, table
from reports.tables.verdict_table import ARM_NUMBERS, arm_entries, arm_titles
from reports.wording.formatting import NONE, with_interval
from reports.wording.study_sentences import bases, cause_of, trained_to


def results_table(study: Study) -> Table:
    """Every arm at every point, in groups by point. Without scaling where all points have as many ranks."""
    own = arm_titles(study.sample_unit, study.confidence)
    scaling = {"speed_up": "speed-up", "efficiency": "efficiency"} if bases(study) else {}
    trained = any(arm.time_to_train_s for point in study.points for arm in point.arms)
    time = {"time_to_train": f"seconds to {trained_to(study.target_accuracy)}"} if trained else {}
    first = {"point": "point", "arm": "arm", "status": own["status"], "throughput": own["throughput"]}
    rows: list[Entries] = [
        {
            "point": point.name,
            "arm": arm.name,
            "cause": cause_of(arm),
            **arm_entries(arm, point.result(arm.name)),
            "speed_up": _with_interval(arm.speed_up, "{:.2f}"),
            "time_to_train": _with_interval(arm.time_to_train_s, "{:.3g}"),
            "efficiency": _with_interval(arm.scaling_efficiency, "{:.0%}"),
        }
        for point in study.points
        for arm in point.arms
    ]
    titles = first | scaling | time | own | {"cause": "cause"}
    return table(titles, rows, numeric=(*ARM_NUMBERS, *scaling, *time), wraps=["cause"], group="point")


def _with_interval(estimate: Estimate | None, form: str) -> Entry:
    return Entry(text=with_interval(estimate, form.format), short=form.format(estimate.value) if estimate else NONE)


def points_table(study: Study) -> Table:
    """What the points are."""
    titles = {
        "point": "point",
        "ranks": "ranks",
        "hosts": "hosts",
        "local_batch": "batch per rank",
        "global_batch": "global batch",
        "answer": "its answer",
    }
    rows = [
        {
            "point": point.name,
            "ranks": str(point.world_size),
            "hosts": point.hosts or "this machine",
            "local_batch": str(point.local_batch_size),
            "global_batch": str(point.global_batch_size),
            "answer": point.cause or point.headline or "not measured",
        }
        for point in study.points
    ]
    return table(titles, rows)


def study_link_table(study: Study) -> Table:
    """Bytes per link at every point of a lab."""
    rows = [{"point": Entry(text=point.name), **own.entries} for point in study.points for own in link_table(point.arms).rows]
    return table({"point": "point"} | LINK_TITLES, rows, group="point")
