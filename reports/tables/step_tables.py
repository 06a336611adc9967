"""The tables of where time goes: step times, terms, threads, and what if a cause were gone."""

from __future__ import annotations

from collections.abc import Sequence

from measurement.records.trace import NcclCollective
from reports.conclusions.step_terms import SCRIPT_PHASES
from reports.estimate import Estimate
from reports.schema import ArmSummary, Comparison, Phase, WhatIf, WhatIfArm
from reports.tables.arm_tables import ARM, POINT
from reports.tables.figures import TERM, arm_rows
from reports.tables.table import Column, Table, figure_column, number, table
from reports.wording.causes import NAMES
from reports.wording.formatting import NONE, bounds_text, milliseconds, rate, rate_interval, ratio, with_interval

MOST_COLLECTIVES = 3
"""How many an arm shows; comparison.json has all."""
KINDS = {"sync": "with exchange", "local": "without"}
PHASE_TITLES: dict[Phase, str] = {
    "data_wait": "data wait",
    "forward": "forward, all else",
    "backward": "backward, exchange in it",
    "exchange": "waiting for exchange",
    "optimizer": "optimizer",
}
EXCHANGE_TIME = "avg_backward_comm_time"
BESIDE_BACKWARD = "avg_backward_compute_comm_overlap_time"
"""DDP's own counters (``_get_ddp_logging_data``), in ns."""


def _milliseconds(estimate: Estimate) -> str:
    return with_interval(estimate, milliseconds)


def _bytes(size: int) -> str:
    return f"{size:,}"


STEPS = (
    POINT,
    ARM,
    Column("step p50 ms", "arm.step_time_s.p50", milliseconds),
    Column("p5 to p95 ms", "arm.step_time_s", lambda times: bounds_text(times.get("p5"), times.get("p95"), milliseconds)),
)


def steps_table(comparison: Comparison) -> Table:
    """One row per arm: how long its steps are."""
    return table(STEPS, [row for row in arm_rows(comparison) if row.arm.step_time_s], group="place")


def terms_table(comparison: Comparison) -> Table:
    """One row per arm that has blocks of both kinds: milliseconds of a step, term by term. No rows where nothing is known."""
    step = number("step", "arm.step_terms_s.step", _milliseconds)
    columns = [POINT, Column("ms per step", "arm.name"), step, *map(figure_column, TERM)]
    return table(columns, [row for row in arm_rows(comparison) if row.arm.step_terms_s], group="place")


def phases_table(comparison: Comparison) -> Table:
    """One row for each script: mean milliseconds of a step by phase, on the slowest rank. No rows without scripts."""
    columns = [
        Column("ms per step", "name"),
        *(
            number(PHASE_TITLES[phase], f"step_phases_s.{phase}", _milliseconds, optional=phase == "exchange")
            for phase in SCRIPT_PHASES
        ),
        Column("exchange by DDP's counters", _counted, optional=True),
        Column("long gaps", "gaps", lambda gaps: f"{gaps.count}, longest {milliseconds(gaps.longest_s)} ms", optional=True),
    ]
    return table(columns, [arm for arm in comparison.arms if arm.step_phases_s])


def _counted(arm: ArmSummary) -> str | None:
    """What DDP says of its exchange, and how much of it lies beside backward."""
    counters = arm.described.get("counters") or {}
    waiting, beside = counters.get(EXCHANGE_TIME), counters.get(BESIDE_BACKWARD)
    if not waiting or beside is None:
        return None
    return f"{milliseconds(waiting / 1e9)}, of it {milliseconds(beside / 1e9)} beside backward"


THREADS = (
    Column("ms per step", "arm"),
    Column("blocks", "kind"),
    number("training thread runs", "found.running_s", _milliseconds),
    number("waits for a core", "found.runnable_s", _milliseconds),
    number("library's threads run", "found.library_s", _milliseconds),
)


def threads_table(comparison: Comparison) -> Table:
    """One row per arm and kind of block: what the training thread and the library's threads did in a step, in milliseconds."""
    rows = [
        {"arm": arm.name, "kind": words, "found": arm.threads_s[kind]}
        for arm in comparison.arms
        for kind, words in KINDS.items()
        if kind in arm.threads_s
    ]
    return table(THREADS, rows, group="arm")


CAUSES = (
    Column("arm", "arm"),
    Column("cause", "cause", lambda cause: cause.name if cause.count is None else f"{cause.name} ({cause.count:.0f} a step)"),
    number("ms per step", "cause.per_step_s", _milliseconds),
    Column("within", "cause.term", NAMES.__getitem__),
    number("bytes", "cause.num_bytes", _bytes),
    Column("changed by", "cause.setting", wraps=True, optional=True),
)


def causes_table(comparison: Comparison) -> Table:
    """One row for each specific cause of an arm: its milliseconds, what it moves, and the setting that changes it."""
    return table(CAUSES, [{"arm": arm.name, "cause": cause} for arm in comparison.arms for cause in arm.causes])


NCCL = (
    Column("arm", "arm"),
    Column("NCCL", "nccl.version"),
    Column("network", "nccl.network"),
    Column("ranks meet by", "nccl.connections", lambda ways: ", ".join(ways) or NONE, wraps=True),
    number("channels", "nccl.channels"),
    Column("largest collectives", "nccl.collectives", lambda found: _collectives(found[:MOST_COLLECTIVES]), wraps=True),
)


def _collectives(found: Sequence[NcclCollective]) -> str:
    told = [f"{one.operation or 'one'} of {one.num_bytes:,} bytes by {one.algorithm}, {one.protocol}" for one in found]
    return "; ".join(told) or NONE


def nccl_table(comparison: Comparison) -> Table:
    """What NCCL chose in the traced launch: a row for each arm that exchanges over it."""
    return table(NCCL, [arm for arm in (comparison.traces.arms if comparison.traces else []) if arm.nccl])


def what_if_table(found: Sequence[WhatIf], *, unit: str) -> Table:
    """One row for each scenario and arm; scenarios left out of which nothing is known. ``unit``: that of the samples."""
    columns = [
        Column("with", "scenario.scenario", wraps=True),
        Column("arm", "arm.arm", wraps=True),
        number(f"{unit}/s", "arm.throughput_per_s", rate),
        number("interval", "arm.throughput_per_s", rate_interval),
        number("times measured", "arm.gain", lambda gain: with_interval(gain, ratio)),
        Column("fastest there", lambda row: _leads(row["scenario"], row["arm"])),
    ]
    rows = [{"scenario": one, "arm": arm} for one in found if not one.is_unknown for arm in one.arms]
    return table(columns, rows, group="scenario.scenario")


def _leads(one: WhatIf, arm: WhatIfArm) -> str:
    """Whether the arm is fastest there."""
    if arm.unknown:
        return f"not known: {arm.unknown}"
    return NONE if arm.arm not in one.fastest else "yes" if len(one.fastest) == 1 else "tied"
