"""The table of what each host did beside the ranks, with its caption."""

from __future__ import annotations

from reports.schema import ArmSummary, Comparison, MachineFigures
from reports.tables.table import Row, Table, columns, row
from reports.wording.formatting import NONE, gibibytes, share, significant

TITLES = {
    "arm": "arm",
    "host": "host",
    "cores": "cores busy",
    "busiest": "busiest core",
    "memory": "memory GiB",
    "network": "network, MB/s sent (packets/s)",
    "power": "W",
    "gpus": "GPUs",
}
WORDS = {"arm", "host", "network", "gpus"}
"""Columns whose entries are no single number."""
MOST_HOSTS = 16
"""That all have a row of their own; of more, those whose cores are busiest."""
MOST_INTERFACES = 3
IDLE_BYTES_PER_S = 1e4
"""An interface that sends less is not spoken of."""


def machine_table(comparison: Comparison) -> Table:
    """A row for each arm and host; columns that nothing is known for are left out. No rows where nothing was read."""
    rows = [_row(arm, host) for arm in comparison.arms for host in _shown(arm)]
    empty = {name for name in TITLES if all(made.entries[name].text == NONE for made in rows)}
    shown = {name: title for name, title in TITLES.items() if name not in empty}
    return Table(columns=columns(shown, numeric=shown.keys() - WORDS), rows=rows)


def _shown(arm: ArmSummary) -> list[MachineFigures]:
    if len(arm.machine) <= MOST_HOSTS:
        return arm.machine
    busiest = sorted(arm.machine, key=lambda host: host.busy_cores, reverse=True)[:MOST_HOSTS]
    return [host for host in arm.machine if host in busiest]


def _row(arm: ArmSummary, host: MachineFigures) -> Row:
    return row(
        {
            "arm": arm.name,
            "host": host.host,
            "cores": f"{significant(host.busy_cores)} of {len(host.core_shares)}",
            "busiest": share(max(host.core_shares, default=None)),
            "memory": f"{gibibytes(host.memory_used_bytes)} of {gibibytes(host.memory_bytes)}",
            "network": _network(host),
            "power": NONE if host.power_w is None else significant(host.power_w),
            "gpus": _gpus(host),
        },
        group=arm.name,
    )


def _network(host: MachineFigures) -> str:
    """The interfaces over which most is sent."""
    used = {name: one for name, one in host.network.items() if one.sent_bytes_per_s >= IDLE_BYTES_PER_S}
    by_rate = sorted(used.items(), key=lambda entry: entry[1].sent_bytes_per_s, reverse=True)[:MOST_INTERFACES]
    said = [f"{name} {significant(one.sent_bytes_per_s / 1e6)} ({one.packets_per_s:,.0f})" for name, one in by_rate]
    return ", ".join(said) or NONE


def _gpus(host: MachineFigures) -> str:
    busy = "" if host.gpu_utilisation is None else f"{share(host.gpu_utilisation)} busy"
    clock = "" if host.gpu_mhz is None else f"{host.gpu_mhz:.0f} MHz"
    return ", ".join(filter(None, [busy, clock, *(f"slowed by {reason}" for reason in host.gpu_slowed_by)])) or NONE


def machine_caption(arms: list[ArmSummary]) -> str:
    """What the table's figures mean."""
    hosts = max((len(arm.machine) for arm in arms), default=0)
    shown = f". Of {hosts} hosts the {MOST_HOSTS} that are busiest are shown, of each arm" if hosts > MOST_HOSTS else ""
    return (
        "Everything on the host while the arm's blocks with exchange ran, untimed steps included, counted outside the ranks by "
        "kernel and devices before and after each block; 'lo' is what ranks on one host send each other by sockets" + shown
    )
