"""``ringside hosts``: shows the hosts of a hostfile, whether they can take ranks, and which rank
goes where.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from measurement.addresses import bracketed
from measurement.errors import HostfileError
from runners.hosts.batch_jobs import job_hosts, job_system
from runners.hosts.host_facts import (
    NAMES,
    duplicate_machines,
    shared_addresses,
    unfindable_hosts,
    unknown_names,
)
from runners.hosts.hostfile import parse_hosts, place_ranks, read_hostfile
from runners.hosts.preflight import gather_facts, places_here, route_to_others, unreached
from runners.hosts.ssh_probe import HostStatus, probe_hosts
from runners.launchers.base import HostSlots
from runners.launchers.mpirun import KEEP_FULL_NAMES, KEEP_FULL_NAMES_5, needs_full_names


def named_hosts(path: Path | None, listed: str | None) -> tuple[HostSlots, ...]:
    """The hosts of a hostfile, of a ``-H`` list or, if neither is given, of the current batch job.

    Raises:
        HostfileError: neither or both are given, or the hosts are not accepted.
    """
    job = job_system(os.environ)
    if path is None and listed is None and job is not None:
        return job_hosts(job, os.environ)
    if (path is None) == (listed is None):
        raise HostfileError(
            "give a hostfile (such as hostfiles/two-hosts) or a list (-H host1:4,host2:4), and not"
            " both"
        )
    return read_hostfile(path) if path is not None else parse_hosts(listed or "")


def show_hosts(
    hosts: Sequence[HostSlots], *, world_size: int | None, reach: bool, console: Console
) -> bool:
    """Print the hosts as a table, and after it the remedy for each that cannot take ranks.

    ``world_size``: None: one for each slot. ``reach``: whether to check the hosts. Returns whether
    all checked hosts can take ranks and reach this machine.

    Raises:
        HostfileError: more ranks than slots.
    """
    placed = place_ranks(
        hosts, sum(entry.slots for entry in hosts) if world_size is None else world_size
    )
    statuses = probe_hosts([entry.host for entry in hosts]) if reach else []
    console.print(hosts_table(hosts, placed, {entry.host: entry for entry in statuses}))
    as_list = ",".join(f"{bracketed(entry.host)}:{entry.slots}" for entry in hosts)
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(f"for horovodrun and mpirun: -H {as_list}")
    if needs_full_names(hosts):
        say(
            f"note: for mpirun, export {KEEP_FULL_NAMES}=1 {KEEP_FULL_NAMES_5}=1: Open MPI cuts"
            " names at the first dot"
        )
    failed = [entry for entry in statuses if entry.status != "ok"]
    for entry in failed:
        say(f"{entry.host}: {entry.remedy}")
    usable = [entry for entry in statuses if entry.status == "ok"]
    are_connected = len(usable) < 2 or _check_connections(usable, say=say)
    return not failed and are_connected


def _check_connections(hosts: Sequence[HostStatus], *, say: Callable[[str], None]) -> bool:
    """Check that several hosts find each other and reach this machine; prints what fails.

    Returns whether all do.
    """
    here = places_here(hosts)
    address = route_to_others(hosts, here=here)
    facts = gather_facts([entry.host for entry in hosts], here=here, address=address)
    views = {host: host_facts[NAMES] for host, host_facts in facts.items()}
    unconnected = unreached(facts, address=address)
    failures = [
        *unconnected,
        *unknown_names(views),
        *(f"{host}: {why}" for host, why in unfindable_hosts(views).items()),
        *duplicate_machines(views),
    ]
    for line in [*failures, *(f"note: {line}" for line in shared_addresses(views))]:
        say(line)
    if not unconnected:
        say(f"ports: all {len(hosts)} hosts reach those of this machine, at {address}")
    return not failures


def hosts_table(
    hosts: Sequence[HostSlots], placed: Mapping[str, range], status_of: Mapping[str, HostStatus]
) -> Table:
    """One row per host."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("host", "slots", "ranks", *(("address", "reachable") if status_of else ())):
        table.add_column(
            column, justify="right" if column in ("slots", "ranks") else "left", overflow="fold"
        )
    for entry in hosts:
        row = [escape(entry.host), str(entry.slots), span(placed[entry.host])]
        if status := status_of.get(entry.host):
            answer = "[green]yes[/]" if status.status == "ok" else "[red]no[/]"
            row += [escape(status.address), f"{answer}: {escape(status.detail)}"]
        table.add_row(*row)
    return table


def span(ranks: range) -> str:
    """Ranks as people write them: ``0-3``, ``4`` or ``none``."""
    if not ranks:
        return "none"
    return str(ranks.start) if len(ranks) == 1 else f"{ranks.start}-{ranks.stop - 1}"
