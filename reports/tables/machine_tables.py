"""The tables of what each host did beside the ranks, of who was slow, and of what each arm makes of its devices and links."""

from __future__ import annotations

from reports.schema import ArmSummary, ByRank, Comparison, Estimate, MachineFigures, RankFigures
from reports.tables.arm_tables import ARM, POINT
from reports.tables.figures import RESOURCES, ArmRow, arm_rows
from reports.tables.table import Column, Table, figure_column, number, table
from reports.wording.formatting import gibibytes, milliseconds, rate, share, significant

MOST_HOSTS = 16
"""That all have a row of their own; of more, those whose cores are busiest."""
MOST_INTERFACES = 3
IDLE_BYTES_PER_S = 1e4
"""An interface that sends less is not spoken of."""


def _network(host: MachineFigures) -> str | None:
    """The interfaces over which most is sent."""
    used = {name: sent for name, sent in host.sent_bytes_per_s.items() if sent >= IDLE_BYTES_PER_S}
    by_rate = sorted(used.items(), key=lambda entry: entry[1], reverse=True)[:MOST_INTERFACES]
    return ", ".join(f"{name} {significant(sent / 1e6)}" for name, sent in by_rate) or None


def _gpus(host: MachineFigures) -> str | None:
    busy = "" if host.gpu_utilisation is None else f"{share(host.gpu_utilisation)} busy"
    clock = "" if host.gpu_mhz is None else f"{host.gpu_mhz:.0f} MHz"
    return ", ".join(filter(None, [busy, clock, *(f"slowed by {reason}" for reason in host.gpu_slowed_by)])) or None


MACHINE = (
    Column("arm", "arm"),
    Column("host", "host.host"),
    number("cores busy", "host", lambda host: f"{significant(host.busy_cores)} of {len(host.core_shares)}"),
    number("busiest core", "host", lambda host: share(max(host.core_shares, default=None)), optional=True),
    number("memory GiB", "host", lambda host: f"{gibibytes(host.memory_used_bytes)} of {gibibytes(host.memory_bytes)}"),
    Column("network, MB/s sent", lambda row: _network(row["host"]), optional=True),
    number("W", "host.power_w", significant, optional=True),
    Column("GPUs", lambda row: _gpus(row["host"]), optional=True),
)


def machine_table(comparison: Comparison) -> Table:
    """A row for each arm and host; columns that nothing is known for are left out. No rows where nothing was read."""
    return table(MACHINE, [{"arm": arm.name, "host": host} for arm in comparison.arms for host in _shown(arm)], group="arm")


def _shown(arm: ArmSummary) -> list[MachineFigures]:
    busiest = sorted(arm.machine, key=lambda host: host.busy_cores, reverse=True)[:MOST_HOSTS]
    return [host for host in arm.machine if host in busiest]


FLOP_UNITS = {"GPU": ("TFLOP/s", 1e12), "core": ("GFLOP/s", 1e9)}
"""By device."""


def _flops(row: ArmRow) -> Estimate | None:
    """In the unit that is usual for the device."""
    found = row.arm.resources
    if found is None or found.flops_per_s is None:
        return None
    _, size = FLOP_UNITS[found.device]
    return found.flops_per_s.mapped(lambda value: value / size)


def resource_table(summary: Comparison) -> Table:
    """One row per arm, at each point; figures that nothing is known of are left out. No rows where no arm started."""
    rows = [row for row in arm_rows(summary) if row.arm.resources]
    devices = list(dict.fromkeys(row.arm.resources.device for row in rows if row.arm.resources))
    flops, _ = FLOP_UNITS[devices[0] if devices else "GPU"]
    names = {"unit": summary.sample_unit, "device": " or ".join(devices), "flops": flops}
    read = {"flops_per_device_per_s": _flops}  # other formats have it in FLOP/s
    shown = [figure for figure in RESOURCES if figure.title]
    columns = [figure_column(figure, names, read=read.get(figure.name, figure.read), optional=True) for figure in shown]
    return table([POINT, ARM, *columns], rows, group="place")


MOST_RANKS = 64
"""That all have a row of their own."""
SLOWEST_SHOWN = 8
"""Ranks of each arm that have a row, where there are more."""


def rank_table(comparison: Comparison) -> Table:
    """A row for each arm and rank, then for each arm and host. Of very many ranks only the slowest of each arm have a row."""
    columns = [
        Column("arm", "arm"),
        Column("", "place"),
        Column("host", "host"),
        number(f"{comparison.sample_unit}/s", "throughput_per_s", rate),
        number("step ms", "step_s", milliseconds),
        number("own ms", "own_s", milliseconds),
    ]
    arms = [(arm.name, arm.by_rank) for arm in comparison.arms if arm.by_rank]
    rows = [
        {"arm": name, "place": place, **one.model_dump()}
        for name, found in arms
        for place, one in [*((f"rank {rank.rank}", rank) for rank in _slowest(found)), *(("sum", host) for host in found.hosts)]
    ]
    return table(columns, rows, group="arm")


def _slowest(found: ByRank) -> list[RankFigures]:
    """All ranks; of very many those that take longest by themselves."""
    if len(found.ranks) <= MOST_RANKS:
        return found.ranks
    own = sorted(found.ranks, key=lambda rank: rank.own_s, reverse=True)
    return sorted(own[:SLOWEST_SHOWN], key=lambda rank: rank.rank)


def _megabytes(size: float) -> str:
    return significant(size / 1e6)


LINKS = (
    POINT,
    Column("arm", "arm"),
    Column("host", "link.host"),
    Column("sent MB/step", "link.sent_bytes", _megabytes),
    Column("received MB/step", "link.received_bytes", _megabytes),
    Column("a ring needs", "link.needed_bytes", _megabytes),
    Column("sent/needed", "link", lambda link: f"{link.sent_bytes / link.needed_bytes:.2f}" if link.needed_bytes else ""),
)


def link_table(summary: Comparison) -> Table:
    """Bytes over the link of each host, a row for each arm and host, at each point; none where nothing was counted."""
    rows = [{"place": row.place, "arm": row.arm.name, "link": link} for row in arm_rows(summary) for link in row.arm.links]
    return table(LINKS, rows, group="place")
