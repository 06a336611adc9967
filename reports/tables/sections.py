"""The tables of a report's sections: where time goes, who waited, what hosts did, what arms ran on,
whether they train alike.

A new table with a row for each arm, or for each part of one, is one entry of ``ARM_TABLES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from measurement.records.record import NcclCollective
from reports.conclusions.step_terms import SCRIPT_PHASES
from reports.parts_schema import Estimate, LossEquality, ParameterEquality
from reports.schema import (
    Comparison,
    MachineFigures,
    WhatIf,
    WhatIfArm,
)
from reports.tables import Column, Entry, Table, figure_column, number, table, wrapped
from reports.tables.arm_tables import ARM, KINDS, POINT
from reports.tables.figures import RESOURCE_COLUMNS, TERM, ArmRow, Path, arm_rows, figure_at
from reports.wording.causes import NAMES
from reports.wording.formatting import (
    NONE,
    bounds_text,
    gibibytes,
    milliseconds,
    rate,
    rate_interval,
    ratio,
    share,
    significant,
    with_interval,
)

MAX_COLLECTIVES = 3
"""How many an arm shows; comparison.json has all."""
BLOCK_KINDS = {"sync": "with exchange", "local": "without"}
MAX_ROWS = 16
"""Ranks or hosts of an arm that have a row; of more, the slowest or busiest."""
IDLE_BYTES_PER_S = 1e4
"""A network interface that sends less is not shown."""


class ArmTable(NamedTuple):
    """A table with its title."""

    title: str
    columns: Sequence[Column]
    each: Path
    """What has a row (``arm_rows``)."""


def _milliseconds(estimate: Estimate) -> str:
    return with_interval(estimate, milliseconds)


MS_PER_STEP = Column("ms per step", "arm.name")


def _collectives(collectives: Sequence[NcclCollective]) -> str:
    parts = [
        f"{collective.operation or 'one'} of {collective.num_bytes:,} bytes by"
        f" {collective.algorithm}, {collective.protocol}"
        for collective in collectives
    ]
    return "; ".join(parts) or NONE


def _network(host: MachineFigures) -> str:
    used = {name: sent for name, sent in host.sent_bytes_per_s.items() if sent >= IDLE_BYTES_PER_S}
    return ", ".join(f"{name} {significant(sent / 1e6)}" for name, sent in used.items()) or NONE


def _gpus(host: MachineFigures) -> str:
    parts = [
        f"{share(host.gpu_utilisation)} busy" if host.gpu_utilisation is not None else "",
        f"{host.gpu_mhz:.0f} MHz" if host.gpu_mhz is not None else "",
        *(f"slowed by {reason}" for reason in host.gpu_slowed_by),
    ]
    return ", ".join(filter(None, parts)) or NONE


def _most(parts: str, figure: str, row: ArmRow) -> list[Any]:
    """The ``MAX_ROWS`` parts of an arm with the most of a figure, in the order that they had."""
    found = figure_at(row, parts) or []
    most = sorted(found, key=attrgetter(figure), reverse=True)[:MAX_ROWS]
    return [part for part in found if part in most]


def _threads(row: ArmRow) -> list[dict[str, Any]]:
    threads = row.arm.threads_s
    return [
        {"kind": words, "figures": threads[kind]}
        for kind, words in BLOCK_KINDS.items()
        if kind in threads
    ]


def _nccl(row: ArmRow) -> list[Any]:
    traced = row.point.traces
    return [arm.nccl for arm in traced if arm.arm == row.arm.name and arm.nccl]


def _megabytes(size: float) -> str:
    return significant(size / 1e6)


def _verdict_entry(verdict: str, distance: float | None, where: str = "") -> Entry:
    size = f" ({distance:.1e})" if distance else ""
    return Entry(f"{verdict}{where}{size}", kind=KINDS.get(verdict, "plain"))


def _parity(row: ArmRow) -> Entry:
    parity = row.arm.parity
    if parity is None:
        return Entry("not checked")
    if not parity.passed:
        return Entry("wrong", kind="wrong")
    if row.point.cases:
        return Entry("right values", kind="ok")
    is_compared = parity.gradient_error is not None
    return Entry("same gradients", kind="ok") if is_compared else Entry("gradients not compared")


def _parameters(parameters: ParameterEquality) -> Entry:
    judged = parameters.judged_steps
    last = parameters.distances[judged - 1] if judged else None
    steps = (
        f" from step {judged} on"
        if parameters.verdict == "apart"
        else f" over {judged} {'step' if judged == 1 else 'steps'}"
        if judged
        else ""
    )
    return _verdict_entry(parameters.verdict, last, steps)


def _loss(loss: LossEquality) -> Entry:
    if loss.verdict is None:
        return Entry(NONE)
    difference = "" if loss.difference is None else f" ({loss.difference.value:+.2%})"
    return Entry(f"{loss.verdict}{difference}", kind=KINDS[loss.verdict])


ARM_TABLES = {
    "steps": ArmTable(
        "Step times",
        (
            ARM,
            number("step p50 ms", "arm.step_time_s.p50", milliseconds),
            number(
                "p5 to p95 ms",
                "part",
                lambda times: bounds_text(times.get("p5"), times.get("p95"), milliseconds),
            ),
        ),
        "arm.step_time_s",
    ),
    "terms": ArmTable(
        "Why",
        (MS_PER_STEP, number("step", "part.step", _milliseconds), *map(figure_column, TERM)),
        "arm.step_terms_s",
    ),
    "phases": ArmTable(
        "Why",
        (
            MS_PER_STEP,
            number(
                "step",
                "part",
                lambda phases: milliseconds(sum(phase.value for phase in phases.values())),
            ),
            *(
                number(
                    NAMES[phase],
                    f"part.{phase}",
                    _milliseconds,
                    optional=phase == "exchange",
                )
                for phase in SCRIPT_PHASES
            ),
        ),
        "arm.step_phases_s",
    ),
    "threads": ArmTable(
        "Who had the core",
        (
            MS_PER_STEP,
            Column("blocks", "part.kind"),
            number("training thread runs", "part.figures.running_s", _milliseconds),
            number("waits for a core", "part.figures.runnable_s", _milliseconds),
            number("library's threads run", "part.figures.library_s", _milliseconds),
        ),
        _threads,
    ),
    "causes": ArmTable(
        "Specific causes",
        (
            ARM,
            Column(
                "cause",
                "part",
                lambda cause: (
                    cause.name
                    if cause.count is None
                    else f"{cause.name} ({cause.count:.0f} a step)"
                ),
            ),
            number("ms per step", "part.per_step_s", _milliseconds),
            Column("within", "part.term", NAMES.__getitem__),
            number("bytes", "part.num_bytes", "{:,}".format),
            wrapped("changed by", "part.setting", optional=True),
        ),
        "arm.causes",
    ),
    "nccl": ArmTable(
        "What NCCL chose",
        (
            ARM,
            Column("NCCL", "part.version"),
            Column("network", "part.network"),
            wrapped(
                "ranks meet by",
                "part.connections",
                lambda ways: ", ".join(ways) or NONE,
            ),
            number("channels", "part.channels"),
            wrapped(
                "largest collectives",
                "part.collectives",
                lambda collectives: _collectives(collectives[:MAX_COLLECTIVES]),
            ),
        ),
        _nccl,
    ),
    "ranks": ArmTable(
        "Ranks",
        (
            ARM,
            Column("rank", "part.rank"),
            Column("host", "part.host"),
            number("throughput/s", "part.throughput_per_s", rate),
            number("step ms", "part.step_s", milliseconds),
            number("own ms", "part.own_s", milliseconds),
        ),
        partial(_most, "arm.by_rank.ranks", "own_s"),
    ),
    "links": ArmTable(
        "Bytes per link",
        (
            ARM,
            Column("host", "part.host"),
            number("sent MB/step", "part.sent_bytes", _megabytes),
            number("a ring needs", "part.needed_bytes", _megabytes),
            number(
                "sent/needed",
                "part",
                lambda link: (
                    f"{link.sent_bytes / link.needed_bytes:.2f}" if link.needed_bytes else ""
                ),
            ),
        ),
        "arm.links",
    ),
    "machine": ArmTable(
        "The machine beside the ranks",
        (
            ARM,
            Column("host", "part.host"),
            number(
                "cores busy",
                "part",
                # ticks may count a little more than there is
                lambda host: f"{significant(min(host.busy_cores, host.cores))} of {host.cores}",
            ),
            number(
                "memory GiB",
                "part",
                lambda host: (
                    f"{gibibytes(host.memory_used_bytes)} of {gibibytes(host.memory_bytes)}"
                ),
            ),
            number("network, MB/s sent", "part", _network, optional=True),
            number("W", "part.power_w", significant, optional=True),
            Column("GPUs", "part", _gpus, optional=True),
        ),
        partial(_most, "arm.machine", "busy_cores"),
    ),
    "conditions": ArmTable(
        "What each rank ran on",
        (
            ARM,
            number("cores", "arm.cores_per_rank"),
            number("threads", "arm.threads_per_rank"),
            # the library's, and torch's own
            number("cores for other threads", "arm.load.other_threads_share", "{:.2f}".format),
        ),
        "arm.competes",
    ),
    "parity": ArmTable(
        "Parity",
        (
            ARM,
            Column("result", _parity),
            number("gradient error", "arm.parity.gradient_error", "{:.1e}".format),
            number("parameter spread", "arm.parity.parameter_spread", "{:.1e}".format),
            number("tolerance", "arm.parity.tolerance", "{:.1e}".format),
            wrapped(
                "notes",
                "arm.parity",
                lambda parity: "; ".join([*parity.failures, *parity.notes]),
                optional=True,
            ),
        ),
        lambda row: not row.point.are_scripts,
    ),
    "equality": ArmTable(
        "Do they train alike?",
        (
            wrapped("arm", "arm.name"),
            wrapped(
                "start",
                "equality.start",
                lambda start: _verdict_entry(start.verdict, start.distance),
            ),
            wrapped(
                "gradients of step 1",
                "equality.gradients",
                lambda gradients: _verdict_entry(gradients.verdict, gradients.distance),
            ),
            wrapped("parameters", "equality.parameters", _parameters),
            wrapped("loss", "equality.loss", _loss),
        ),
        "equality.start",
    ),
}
"""By name; tables without a row are not shown."""


def resource_table(summary: Comparison) -> Table:
    """One row per arm, at each point; figures that nothing is known of are left out.

    No rows where no arm started.
    """
    rows = arm_rows(summary, "arm.resources")
    devices = " or ".join(dict.fromkeys(row.part.device for row in rows))
    names = {"unit": summary.sample_unit, "device": devices}
    columns = [
        figure_column(figure, names, optional=True) for figure in RESOURCE_COLUMNS if figure.title
    ]
    return table([POINT, ARM, *columns], rows)


def what_if_table(comparison: Comparison) -> Table:
    """One row for each scenario and arm, at each point; scenarios left out of which nothing is
    known.
    """
    columns = [
        POINT,
        wrapped("with", "scenario.scenario"),
        wrapped("arm", "arm.arm"),
        number(f"{comparison.sample_unit}/s", "arm.throughput_per_s", rate),
        number("interval", "arm.throughput_per_s", rate_interval),
        number("times measured", "arm.gain", lambda gain: with_interval(gain, ratio)),
        Column("fastest there", lambda row: _fastest_text(row["scenario"], row["arm"])),
    ]
    rows = [
        {"place": place, "scenario": scenario, "arm": arm}
        for place, point in comparison.places.items()
        for scenario in point.what_if
        if not scenario.is_unknown
        for arm in scenario.arms
    ]
    return table(columns, rows, group="scenario.scenario")


def _fastest_text(scenario: WhatIf, arm: WhatIfArm) -> str:
    """Whether the arm is fastest there."""
    if arm.unknown:
        return f"not known: {arm.unknown}"
    return (
        NONE
        if arm.arm not in scenario.fastest
        else "yes"
        if len(scenario.fastest) == 1
        else "not decided"
    )
