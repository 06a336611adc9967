"""``ringside hosts``: shows the hosts of a hostfile, whether they can take ranks, and which rank
goes where.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from measurement.errors import HostfileError
from runners.hosts.batch_jobs import job_hosts, job_system
from runners.hosts.host_facts import NAMES, shared_addresses, unfindable_hosts, unknown_names
from runners.hosts.hostfile import parse_hosts, place_ranks, read_hostfile
from runners.hosts.preflight import (
    find_addresses,
    gather_facts,
    places_here,
    route_to_others,
    unreached,
)
from runners.launchers.base import HostSlots


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
    """Print the hosts as a table, and after it what is wrong with them.

    ``world_size``: None: one for each slot. ``reach``: whether to check the hosts. Returns whether
    all checked hosts can take ranks, find each other and reach this machine.

    Raises:
        HostfileError: more ranks than slots.
    """
    placed = place_ranks(
        hosts, sum(entry.slots for entry in hosts) if world_size is None else world_size
    )
    table = Table("host", box=None, pad_edge=False, header_style="bold")
    table.add_column("slots", justify="right")
    table.add_column("ranks", justify="right")
    for column in ("address", "reachable") if reach else ():
        table.add_column(column, overflow="fold")
    addresses, failures = find_addresses([entry.host for entry in hosts]) if reach else ({}, [])
    facts: dict[str, dict[str, Any]] = {}
    if addresses:
        here = places_here(addresses)
        driver = route_to_others(addresses, here=here)
        facts, silent = gather_facts(addresses, here=here, address=driver)
        failures += [*silent, *unreached(facts, address=driver)]
    views = {host: host_facts[NAMES] for host, host_facts in facts.items()}
    if len(views) > 1:  # on one host ranks find each other
        failures += unknown_names(views)
        failures += [f"host '{host}': {why}" for host, why in unfindable_hosts(views).items()]
    for entry in hosts:
        answer = f"yes: Python {facts[entry.host]['python']}" if entry.host in facts else "no"
        checked = [escape(addresses.get(entry.host, "")), answer] if reach else []
        table.add_row(escape(entry.host), str(entry.slots), span(placed[entry.host]), *checked)
    console.print(table)
    as_list = ",".join(map(str, hosts))
    notes = [f"note: {line}" for line in shared_addresses(views)]
    for line in (f"for horovodrun and mpirun: -H {as_list}", *failures, *notes):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return not failures


def span(ranks: range) -> str:
    """Ranks as people write them: ``0-3``, ``4`` or ``none``."""
    if not ranks:
        return "none"
    return str(ranks.start) if len(ranks) == 1 else f"{ranks.start}-{ranks.stop - 1}"
