"""The tables of what each host did beside the ranks, and of what each arm makes of its devices, with their captions."""

from __future__ import annotations

from collections.abc import Callable

from reports.schema import PLANS_PEAK, ArmSummary, Comparison, Estimate, MachineFigures, ResourceFigures, Study, StudyPoint
from reports.tables.table import Entries, Entry, Table, table
from reports.wording.formatting import NONE, gibibytes, rate, ratio, share, significant, with_interval

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
    rows = [
        {
            "arm": arm.name,
            "host": host.host,
            "cores": f"{significant(host.busy_cores)} of {len(host.core_shares)}",
            "busiest": share(max(host.core_shares, default=None)),
            "memory": f"{gibibytes(host.memory_used_bytes)} of {gibibytes(host.memory_bytes)}",
            "network": _network(host),
            "power": NONE if host.power_w is None else significant(host.power_w),
            "gpus": _gpus(host),
        }
        for arm in comparison.arms
        for host in _shown(arm)
    ]
    return table(TITLES, rows, numeric=TITLES.keys() - WORDS, optional=TITLES, group="arm")


def _shown(arm: ArmSummary) -> list[MachineFigures]:
    if len(arm.machine) <= MOST_HOSTS:
        return arm.machine
    busiest = sorted(arm.machine, key=lambda host: host.busy_cores, reverse=True)[:MOST_HOSTS]
    return [host for host in arm.machine if host in busiest]


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


FLOP_UNITS = {"GPU": ("TFLOP/s", 1e12), "core": ("GFLOP/s", 1e9)}
"""By device."""


Known = tuple[Comparison | StudyPoint, ArmSummary, ResourceFigures]
"""An arm of which something is known, and where it ran."""


def _known(shown: Comparison | Study) -> list[Known]:
    points = shown.points if isinstance(shown, Study) else [shown]
    return [(point, arm, arm.resources) for point in points for arm in point.arms if arm.resources]


def resource_table(shown: Comparison | Study) -> Table:
    """One row per arm, of a study at each point; columns that nothing is known for are left out. No rows where no arm started."""
    unit, known = shown.sample_unit, _known(shown)
    device = " or ".join(dict.fromkeys(one.device for _, _, one in known))
    flops, _ = FLOP_UNITS[known[0][2].device if known else "GPU"]
    titles = {
        **({"point": "point"} if isinstance(shown, Study) else {}),
        "arm": "arm",
        "rate": f"{unit}/s per {device}",
        "flops": f"{flops} per {device}",
        "mfu": "MFU",
        "memory": "peak GiB",
        "memory_ratio": "memory ratio",
        "energy": "J per sample",
    }
    rows: list[Entries] = []
    for point, arm, own in known:
        result = point.result(arm.name)
        first = "1" if arm.name == shown.baseline else NONE
        rows.append(
            {
                "point": point.name,
                "arm": arm.name,
                "rate": _entry(own.per_device_per_s, rate),
                "flops": _flops(own),
                "mfu": _entry(own.mfu, "{:.1%}".format),
                "memory": _entry(own.memory_bytes, lambda value: gibibytes(round(value))),
                "memory_ratio": _entry(result.memory_ratio, ratio) if result else first,
                "energy": significant(arm.energy_per_sample_j) if arm.energy_per_sample_j else NONE,
            }
        )
    figures = titles.keys() - {"point", "arm"}
    return table(titles, rows, numeric=figures, optional=figures, group="point")


def _flops(own: ResourceFigures) -> Entry:
    _, size = FLOP_UNITS[own.device]
    return _entry(own.flops_per_s, lambda value: significant(value / size))


def _entry(estimate: Estimate | None, words: Callable[[float], str]) -> Entry:
    return Entry(text=with_interval(estimate, words), short=words(estimate.value) if estimate else None)


def asked_resources(comparison: Comparison) -> Table | None:
    """The table for a terminal, without what stands elsewhere; None unless the plan gives a peak."""
    found = [arm.resources for arm in comparison.arms if arm.resources]
    is_asked = any(one.peak_source == PLANS_PEAK for one in found)
    return resource_table(comparison).without("rate", "flops") if is_asked else None
