"""The tables of a report's sections: where time goes, who waited, what hosts did, what arms ran on,
whether they train alike.

A new table with a row for each arm, or for each part of one, is one entry of ``ARM_TABLES``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from measurement.records.trace import NcclCollective
from reports.conclusions.step_terms import SCRIPT_PHASES
from reports.estimate import Estimate
from reports.parts_schema import LossEquality, ParameterEquality
from reports.schema import ArmSummary, Comparison, MachineFigures, Phase, WhatIf, WhatIfArm
from reports.tables.arm_tables import ARM, KINDS, POINT
from reports.tables.figures import RESOURCE_COLUMNS, TERM, ArmRow, arm_rows
from reports.tables.table import Column, Entry, Table, figure_column, number, table
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
MAX_HOSTS = 16
"""That all have a row of their own; of more, those whose cores are busiest."""
MAX_INTERFACES = 3
IDLE_BYTES_PER_S = 1e4
"""An interface that sends less is not spoken of."""


class ArmTable(NamedTuple):
    """A table with its title."""

    title: str
    columns: Sequence[Column]
    each: str | Callable[[ArmRow], Any]
    """What has a row (``arm_rows``)."""


def _milliseconds(estimate: Estimate) -> str:
    return with_interval(estimate, milliseconds)


MS_PER_STEP = Column("ms per step", "arm.name")


def _ddp_exchange_time(arm: ArmSummary) -> str | None:
    """DDP's own figures of its exchange, and how much of it is beside backward; None where it
    exceeds the step.
    """
    counters = arm.described.get("counters") or {}
    waiting, beside = counters.get(EXCHANGE_TIME), counters.get(BESIDE_BACKWARD)
    if (
        not waiting
        or beside is None
        or waiting / 1e9 > sum(phase.value for phase in arm.step_phases_s.values())
    ):
        return None
    return f"{milliseconds(waiting / 1e9)}, of it {milliseconds(beside / 1e9)} beside backward"


def _collectives(collectives: Sequence[NcclCollective]) -> str:
    parts = [
        f"{collective.operation or 'one'} of {collective.num_bytes:,} bytes by"
        f" {collective.algorithm}, {collective.protocol}"
        for collective in collectives
    ]
    return "; ".join(parts) or NONE


def _network(host: MachineFigures) -> str | None:
    """The interfaces over which most is sent."""
    used = {name: sent for name, sent in host.sent_bytes_per_s.items() if sent >= IDLE_BYTES_PER_S}
    by_rate = sorted(used.items(), key=lambda entry: entry[1], reverse=True)[:MAX_INTERFACES]
    return ", ".join(f"{name} {significant(sent / 1e6)}" for name, sent in by_rate) or None


def _gpus(host: MachineFigures) -> str | None:
    busy = "" if host.gpu_utilisation is None else f"{share(host.gpu_utilisation)} busy"
    clock = "" if host.gpu_mhz is None else f"{host.gpu_mhz:.0f} MHz"
    return (
        ", ".join(
            filter(None, [busy, clock, *(f"slowed by {reason}" for reason in host.gpu_slowed_by)])
        )
        or None
    )


def _busiest(row: ArmRow) -> list[MachineFigures]:
    busiest = sorted(row.arm.machine, key=lambda host: host.busy_cores, reverse=True)[:MAX_HOSTS]
    return [host for host in row.arm.machine if host in busiest]


def _threads(row: ArmRow) -> list[dict[str, Any]]:
    threads = row.arm.threads_s
    return [
        {"kind": words, "figures": threads[kind]}
        for kind, words in BLOCK_KINDS.items()
        if kind in threads
    ]


def _nccl(row: ArmRow) -> list[Any]:
    traced = row.point.traces.arms if row.point.traces else []
    return [arm.nccl for arm in traced if arm.arm == row.arm.name and arm.nccl]


def _megabytes(size: float) -> str:
    return significant(size / 1e6)


def _verdict_entry(verdict: str, distance: float | None, where: str = "") -> Entry:
    size = f" ({distance:.1e})" if distance else ""
    return Entry(text=f"{verdict}{where}{size}", kind=KINDS.get(verdict, "plain"))


def _parity(row: ArmRow) -> Entry:
    parity = row.arm.parity
    if parity is None:
        return Entry(text="not checked")
    right = "right values" if row.point.cases else "same gradients"
    return Entry(text=right, kind="ok") if parity.passed else Entry(text="wrong", kind="wrong")


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
    entry = _verdict_entry(parameters.verdict, last, steps)
    if not parameters.perturbed:
        return entry
    later = ", ".join(f"{distance:.1e}" for distance in parameters.distances[judged:])
    return replace(entry, text=f"{entry.text}; then rounding grows: {later}")


def _loss(loss: LossEquality) -> Entry | str:
    if loss.verdict is None:
        return NONE
    difference = "" if loss.difference is None else f" ({loss.difference.value:+.2%})"
    return Entry(text=f"{loss.verdict}{difference}", kind=KINDS[loss.verdict])


ARM_TABLES = {
    "steps": ArmTable(
        "Step times",
        (
            ARM,
            Column("step p50 ms", "arm.step_time_s.p50", milliseconds),
            Column(
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
            *(
                number(
                    PHASE_TITLES[phase],
                    f"part.{phase}",
                    _milliseconds,
                    optional=phase == "exchange",
                )
                for phase in SCRIPT_PHASES
            ),
            Column(
                "exchange by DDP's counters", lambda row: _ddp_exchange_time(row.arm), optional=True
            ),
            Column(
                "long gaps",
                "arm.gaps",
                lambda gaps: f"{gaps.count}, longest {milliseconds(gaps.longest_s)} ms",
                optional=True,
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
            Column("changed by", "part.setting", wraps=True, optional=True),
        ),
        "arm.causes",
    ),
    "nccl": ArmTable(
        "What NCCL chose",
        (
            ARM,
            Column("NCCL", "part.version"),
            Column("network", "part.network"),
            Column(
                "ranks meet by",
                "part.connections",
                lambda ways: ", ".join(ways) or NONE,
                wraps=True,
            ),
            number("channels", "part.channels"),
            Column(
                "largest collectives",
                "part.collectives",
                lambda collectives: _collectives(collectives[:MAX_COLLECTIVES]),
                wraps=True,
            ),
        ),
        _nccl,
    ),
    "links": ArmTable(
        "Bytes per link",
        (
            ARM,
            Column("host", "part.host"),
            Column("sent MB/step", "part.sent_bytes", _megabytes),
            Column("received MB/step", "part.received_bytes", _megabytes),
            Column("a ring needs", "part.needed_bytes", _megabytes),
            Column(
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
                lambda host: f"{significant(host.busy_cores)} of {host.cores}",
            ),
            number(
                "memory GiB",
                "part",
                lambda host: (
                    f"{gibibytes(host.memory_used_bytes)} of {gibibytes(host.memory_bytes)}"
                ),
            ),
            Column("network, MB/s sent", lambda row: _network(row.part), optional=True),
            number("W", "part.power_w", significant, optional=True),
            Column("GPUs", lambda row: _gpus(row.part), optional=True),
        ),
        _busiest,
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
            Column(
                "notes",
                "arm.parity",
                lambda parity: "; ".join([*parity.failures, *parity.notes]),
                wraps=True,
                optional=True,
            ),
        ),
        lambda row: not row.point.are_scripts,
    ),
    "equality": ArmTable(
        "Do they train alike?",
        (
            Column("arm", "arm.name", wraps=True),
            Column(
                "start",
                "equality.start",
                lambda start: _verdict_entry(start.verdict, start.distance),
                wraps=True,
            ),
            Column(
                "gradients of step 1",
                "equality.gradients",
                lambda gradients: _verdict_entry(gradients.verdict, gradients.distance),
                wraps=True,
            ),
            Column("parameters", "equality.parameters", _parameters, wraps=True),
            Column("loss", "equality.loss", _loss, wraps=True),
        ),
        "equality.start",
    ),
}
"""By name; tables without a row are not shown."""


FLOP_UNITS = {"GPU": ("TFLOP/s", 1e12), "core": ("GFLOP/s", 1e9)}
"""By device."""


def _flops(row: ArmRow) -> Estimate | None:
    """In the unit that is usual for the device."""
    resources = row.arm.resources
    if resources is None or resources.flops_per_s is None:
        return None
    _, size = FLOP_UNITS[resources.device]
    return resources.flops_per_s.mapped(lambda value: value / size)


def resource_table(summary: Comparison) -> Table:
    """One row per arm, at each point; figures that nothing is known of are left out.

    No rows where no arm started.
    """
    rows = arm_rows(summary, "arm.resources")
    devices = list(dict.fromkeys(row.part.device for row in rows))
    flops, _ = FLOP_UNITS[devices[0] if devices else "GPU"]
    names = {"unit": summary.sample_unit, "device": " or ".join(devices), "flops": flops}
    read = {"flops_per_device_per_s": _flops}  # other formats have it in FLOP/s
    shown = [figure for figure in RESOURCE_COLUMNS if figure.title]
    columns = [
        figure_column(figure, names, read=read.get(figure.name, figure.read), optional=True)
        for figure in shown
    ]
    return table([POINT, ARM, *columns], rows)


MAX_RANKS = 64
"""That all have a row of their own."""
SLOWEST_SHOWN = 8
"""Ranks of each arm that have a row, where there are more."""


def rank_table(comparison: Comparison) -> Table:
    """A row for each arm and rank, then for each arm and host.

    Of very many ranks only the slowest of each arm have a row.
    """
    columns = [
        POINT,
        ARM,
        Column("", "part.place"),
        Column("host", "part.host"),
        number(f"{comparison.sample_unit}/s", "part.throughput_per_s", rate),
        number("step ms", "part.step_s", milliseconds),
        number("own ms", "part.own_s", milliseconds),
    ]
    return table(columns, arm_rows(comparison, _ranks))


def _ranks(row: ArmRow) -> list[dict[str, Any]]:
    """Ranks, of very many those that take longest by themselves, then hosts."""
    by_rank = row.arm.by_rank
    if by_rank is None:
        return []
    ranks = by_rank.ranks
    if len(ranks) > MAX_RANKS:
        slowest = sorted(ranks, key=lambda rank: rank.own_s, reverse=True)[:SLOWEST_SHOWN]
        ranks = sorted(slowest, key=lambda rank: rank.rank)
    places = [
        *((f"rank {rank.rank}", rank) for rank in ranks),
        *(("sum", host) for host in by_rank.hosts),
    ]
    return [{"place": place, **figures.model_dump()} for place, figures in places]


def what_if_table(comparison: Comparison) -> Table:
    """One row for each scenario and arm, at each point; scenarios left out of which nothing is
    known.
    """
    columns = [
        POINT,
        Column("with", "scenario.scenario", wraps=True),
        Column("arm", "arm.arm", wraps=True),
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
