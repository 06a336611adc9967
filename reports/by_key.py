"""Figures by any key of the records, such as host, rank, seed, launch or round: a projection, as
Go's benchstat has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from measurement.errors import PlanError, unknown_name
from measurement.records.results import ResultsFolder
from reports.conclusions.ratios import ratio_intervals_of
from reports.conclusions.steps import (
    RANK_BLOCK_TYPES,
    TIMES,
    read_steps,
    tabulate_blocks,
    throughput_interval,
)
from reports.conclusions.summaries import Evidence
from reports.scripts.script_arms import ITERATIONS, sample_unit
from reports.tables import Column, Table, number, table, wrapped
from reports.wording.formatting import bounds_text, milliseconds, percent, rate, ratio

OF_RANK = ["launch", "arm", "rank"]
NO_KEYS = {"steps", "samples", "kind", *TIMES}
"""Columns of steps that nothing is known by."""


def table_by_key(folder: ResultsFolder, key: str) -> Table:
    """A comparison's arms for each value of a key, at each point, in groups by value.

    Raises:
        PlanError: no record has such a key.
        RecordError: the folder is missing or damaged.
    """
    plan = folder.read_plan()
    places = folder.measured_points(plan) if plan.points else {"": folder}
    rows, unit = list[dict[str, Any]](), ""
    for place, point_folder in places.items():
        records = point_folder.records()
        if records:
            unit = sample_unit(records)
            evidence = Evidence.gather(
                point_folder.read_plan(),
                records,
                read_steps(point_folder, records),
                host_use=None,
                manifest=point_folder.manifest(),
            )
            rows += rows_by_key(evidence, key, place=place, by_iteration=unit == ITERATIONS)
    columns = [
        wrapped(key, "value"),
        Column("point", "place", optional=True),
        wrapped("case", "case", optional=True),
        wrapped("arm", "arm"),
        number(f"{unit}/s", "throughput_per_s", rate),
        number("ms per step", "step_s", milliseconds),
        number(
            "ratio",
            lambda row: (
                "1" if row["arm"] == plan.baseline else row["ratio"] and ratio(row["ratio"].value)
            ),
        ),
        number(
            f"{percent(plan.measurement.confidence)} interval",
            "ratio",
            lambda ratio_interval: bounds_text(ratio_interval.ci_low, ratio_interval.ci_high),
        ),
    ]
    return table(columns, rows, group="value")


def rows_by_key(
    evidence: Evidence, key: str, *, place: str, by_iteration: bool
) -> Iterator[dict[str, Any]]:
    """The figures of each arm for each value of a key; of a micro-benchmark, in each case.

    Ranks of another value are left out, as if they had not been there. ``step_s`` is the mean of
    the blocks with exchange, by the slowest of the ranks that have this value. ``ratio`` is to the
    baseline's blocks of the same rounds with the same value.

    ``place``: the point's name; empty where there is but one. ``by_iteration``: whether iterations
    are counted, since samples could not be.

    Raises:
        PlanError: no record has such a key.
    """
    plan, table = evidence.plan, _blocks_with_keys(evidence)
    keys = [str(name) for name in table if name not in NO_KEYS]
    if key not in keys:
        several = [name for name in keys if table[name].nunique() > 1]
        raise PlanError(unknown_name("key", key, several, remedy="these have several values here"))
    for value, part in table.groupby(key):
        steps = replace(evidence.steps, rank_blocks=part[list(RANK_BLOCK_TYPES)])
        blocks = tabulate_blocks(steps.by_iteration() if by_iteration else steps)
        for case, timed in blocks[blocks["kind"] == "sync"].groupby("case", dropna=False):
            ratios = (
                ratio_intervals_of(evidence, timed) if plan.baseline in set(timed["arm"]) else {}
            )
            for arm in plan.compared_arms():
                arm_blocks = timed[timed["arm"] == arm]
                if len(arm_blocks):
                    yield {
                        "value": value,
                        "place": place,
                        "case": None if pd.isna(case) else case,
                        "arm": arm,
                        "throughput_per_s": throughput_interval(
                            arm_blocks, confidence=evidence.confidence
                        ),
                        "step_s": arm_blocks["block_s"].sum() / arm_blocks["steps"].sum(),
                        "ratio": ratios.get(arm),
                    }


def _blocks_with_keys(evidence: Evidence) -> pd.DataFrame:
    """The sums of each rank and block beside what record and rank report of themselves, as far as
    it is a number or a word.
    """
    rows = [
        _words(dict(record)) | _words(dict(rank)) | {"launch": record.launch, "arm": record.arm}
        for record in evidence.records
        for rank in record.ranks
    ]
    sums = evidence.steps.rank_blocks
    reported = pd.DataFrame(rows, columns=None if rows else OF_RANK)
    more = [name for name in reported if name in OF_RANK or name not in sums]
    return sums.merge(reported[more], on=OF_RANK)


def _words(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if isinstance(value, str | int)}
