"""The table that a standalone run prints: throughput of every rank and of all together, or a
micro-benchmark's cases.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from rich.table import Table

from measurement.records.record import LaunchRecord
from reports.conclusions.step_terms import data_wait_share, step_shares, step_terms, terms_by_launch
from reports.conclusions.steps import Steps, tabulate_blocks, throughput_per_s
from reports.conclusions.summaries import summarise_cases
from reports.tables.arm_tables import case_figures
from reports.wording.causes import limit_sentence
from reports.wording.disturbances import oversubscription_warning
from reports.wording.formatting import count, share, size_text

CONFIDENCE = 0.95


def throughput_table(record: LaunchRecord, steps: pd.DataFrame) -> Table:
    """One row per rank of a run that is ok, then all ranks together as in the reports.

    The caption says what limits the speed.

    ``steps``: at least one block that every rank finished.
    """
    columns = ("step ms (median)", "step ms (95%)", "waiting for data")
    table = _table(record, "host", "rank", f"{record.sample_unit}/s", *columns)
    both = Steps.of(steps.assign(launch=record.launch, arm=record.arm)).valid([record])
    timed = both.where(kind="sync")
    raw = steps[steps["turn"].isin(timed.slowest["turn"])]
    for place in record.ranks:
        own = raw[raw["rank"] == place.rank]
        rate_per_s = own["samples"].sum() / own["step_s"].sum()
        table.add_row(place.host, str(place.rank), *_figures(rate_per_s, own["step_s"], own))
    in_all = throughput_per_s(tabulate_blocks(timed))
    table.add_section()
    table.add_row(
        "all",
        str(record.world_size),
        *_figures(in_all, timed.slowest["step_s"], timed.rank_blocks),
        style="bold",
    )
    shares = step_shares(
        timed.rank_blocks, step_terms(terms_by_launch(both, None), confidence=CONFIDENCE)
    )
    lines = limit_sentence({record.arm: shares}), oversubscription_warning(record.ranks)
    table.caption = "\n".join(filter(None, lines))
    table.caption_justify, table.caption_style = "left", "none"
    return table


def cases_table(record: LaunchRecord, steps: pd.DataFrame) -> Table:
    """One row per case of a micro-benchmark: its figures, or why there are none."""
    table = _table(record, "operation", "size", "speed", "")
    blocks = tabulate_blocks(Steps.of(steps.assign(launch=record.launch, arm=record.arm)))
    for case, summary in zip(
        record.cases, summarise_cases([record], blocks, confidence=CONFIDENCE), strict=True
    ):
        speed, below = (summary.not_offered, "") if summary.not_offered else case_figures(summary)
        table.add_row(case.operation, size_text(case), speed, below)
    return table


def _table(record: LaunchRecord, *columns: str) -> Table:
    where = f"{count(record.world_size, 'rank')} on {count(len(record.hosts), 'host')}"
    title = f"{record.workload} under {record.backend} over {record.transport}: {where}"
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    return table


def _figures(throughput_per_s: float, step_s: pd.Series, steps: pd.DataFrame) -> list[str]:
    median, high = np.percentile(step_s, [50, 95]) * 1e3
    return [
        f"{throughput_per_s:,.1f}",
        f"{median:.2f}",
        f"{high:.2f}",
        share(data_wait_share(steps)),
    ]
