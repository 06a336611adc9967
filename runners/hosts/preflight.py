"""Checks every host of a plan before anything starts: reachability, software, network interface,
connection to the driver; and for ``ringside hosts`` shows which hosts can take ranks.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from measurement.addresses import family_of, listen, with_port
from measurement.conditions import conditions
from measurement.conditions.differences import differing, in_words
from measurement.errors import HostfileError, LaunchError, PlanError
from measurement.host import cards, core_count
from measurement.plans.plan import Plan
from runners.hosts.host_facts import (
    CARDS,
    NAMES,
    ipv4_addresses,
    is_here,
    shared_addresses,
    unfindable_hosts,
    unknown_names,
)
from runners.hosts.host_lists import (
    job_hosts,
    job_system,
    parse_hosts,
    place_ranks,
    read_hostfile,
    unused_nodes,
)
from runners.hosts.placement import Placement, planned_hosts, spare_hosts
from runners.launchers.base import HERE, HostSlots
from runners.processes import remote
from runners.processes.local import base_environment

ANSWER_TIMEOUT_S = 60.0
LOST_AFTER_S = 20.0
SAME_PLACE = "it needs ssh without a password, and the same checkout at the same path (make setup)"


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """The result of the checks."""

    placement: Placement
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """``runners.hosts.host_facts`` by host; empty where all ranks are here."""
    warnings: Sequence[str] = ()
    unfindable: Mapping[str, str] = field(default_factory=dict)
    """Hosts whose Gloo ranks would give the others wrong addresses, with the reason
    (``runners.hosts.host_facts``)."""


def inspect(plan: Plan) -> Preflight:
    """Check the hosts of a plan; if it names none, only whether nodes of a job stay unused.

    Raises:
        LaunchError: a host cannot take ranks, alone or together with the others; one line for each,
            with the remedy.
        PlanError: this machine lacks the interface or address that it names.
    """
    hosts = planned_hosts(plan)
    if plan.hosts is None or hosts[0].host == HERE:
        warnings = unused_nodes(os.environ) if plan.hosts is None else []
        if plan.device != "cpu":
            warnings += _mixed_gpu_warnings({HERE: {CARDS: cards()}})
        placement = Placement(hosts=hosts, cores={HERE: core_count()})
        return Preflight(placement=placement, warnings=warnings)
    spare = spare_hosts(plan, hosts)
    addresses, failures = find_addresses([entry.host for entry in (*hosts, *spare)])
    _require(failures)
    here = places_here(addresses)
    address = driver_address(plan, addresses, here=here)
    facts, failures = gather_facts(addresses, here=here, address=address)
    _require(failures)
    _require(unreached(facts, address=address))
    views = {host: host_facts.pop(NAMES) for host, host_facts in facts.items()}
    views = views if len(views) > 1 else {}  # on one host ranks find each other
    _require(unknown_names(views))
    errors, warnings = host_differences(facts)
    if plan.host_differences == "refuse":
        remedy = "install the same on every host (make setup), or set host_differences: report"
        _require([f"{error}; {remedy}" for error in errors])
        errors = []
    cores = {host: host_facts["usable_cores"] for host, host_facts in facts.items()}
    placement = Placement(hosts=hosts, cores=cores, here=here, driver_address=address, spare=spare)
    return Preflight(
        placement=placement,
        facts=facts,
        warnings=[*errors, *warnings, *([] if plan.network_interface else shared_addresses(views))],
        unfindable=unfindable_hosts(views),
    )


def driver_address(plan: Plan, addresses: Mapping[str, str], *, here: frozenset[str]) -> str:
    """Choose the address at which ranks reach the driver: the plan's, its interface's, or that of
    the route to other hosts.

    Raises:
        PlanError: this machine has no such address or interface.
    """
    own_addresses = ipv4_addresses()
    if plan.driver_address is not None:
        if is_here(plan.driver_address):
            return plan.driver_address
        listed = ", ".join(address for addresses in own_addresses.values() for address in addresses)
        raise PlanError(
            f"driver_address '{plan.driver_address}' is not an address of this machine (they are"
            f" {listed})"
        )
    interface = plan.network_interface or ""
    if own_addresses.get(interface):
        return own_addresses[interface][0]
    if interface and len(here) > 1:
        listed = ", ".join(name for name, addresses in own_addresses.items() if addresses)
        raise PlanError(
            f"network_interface '{interface}' has no address on this machine (it has {listed})"
        )
    return route_to_others(addresses, here=here)


def find_addresses(hosts: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the address of each host, and a line for each whose name has none here."""
    addresses, failures = {}, []
    for host in hosts:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses[host] = str(found[0][4][0])
        except (OSError, UnicodeError):
            failures.append(
                f"host '{host}': its name cannot be resolved; correct it, or add it to DNS or"
                " /etc/hosts (an alias in ~/.ssh/config is not enough: ranks connect by the name)"
            )
    return addresses, failures


def places_here(addresses: Mapping[str, str]) -> frozenset[str]:
    """Return the names of this machine among the hosts."""
    return frozenset({HERE, *(host for host, address in addresses.items() if is_here(address))})


def route_to_others(addresses: Mapping[str, str], *, here: frozenset[str]) -> str:
    """Return this machine's address on the route to the first other host. Nothing is sent."""
    others = [address for host, address in addresses.items() if host not in here]
    (address, *_) = others or addresses.values()
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def gather_facts(
    hosts: Iterable[str], *, here: frozenset[str], address: str
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Ask all hosts at once for their facts, while the driver listens.

    Returns:
        The facts, and a line for each host that does not report them.
    """
    with listen(address) as listening:
        driver = with_port(address, listening.getsockname()[1])
        ask_of = partial(ask, here=here, question=[driver, *hosts])
        answers = dict(zip(hosts, remote.on_each([*hosts], ask_of), strict=True))
    return (
        {host: answer for host, answer in answers.items() if isinstance(answer, dict)},
        [answer for answer in answers.values() if isinstance(answer, str)],
    )


def ask(host: str, *, here: frozenset[str], question: Sequence[str]) -> dict[str, Any] | str:
    """Ask one host for its facts; returns why it cannot take ranks if it does not report them."""
    try:
        answer = remote.ask(
            None if host in here else host,
            remote.python("runners.hosts.host_facts", *question),
            timeout_s=ANSWER_TIMEOUT_S,
            environment=base_environment(),
        )
    except LaunchError as error:
        return f"host '{host}': {error}" if host in here else f"{error}; {SAME_PLACE}"
    return dict(json.loads(answer))


def lost_hosts(hosts: Sequence[str]) -> list[str]:
    """Return why one of these hosts no longer answers; empty if all do."""
    try:
        remote.run_on(hosts, ["true"], timeout_s=LOST_AFTER_S)
    except LaunchError as error:
        return [str(error)]
    return []


def unreached(facts: Mapping[str, Mapping[str, Any]], *, address: str) -> list[str]:
    """Return which hosts do not reach the driver, a line for each."""
    return [
        f"host '{host}' does not reach the driver at {address}: {host_facts['driver_error']}; open"
        " the firewall between them, or set driver_address or network_interface"
        for host, host_facts in facts.items()
        if host_facts["driver_error"]
    ]


def _require(failures: Sequence[str]) -> None:
    if failures:
        raise LaunchError("\n".join(failures))


def host_differences(facts: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Return differences between hosts that make ranks unequal, and other differences worth
    knowing. Pure.

    ``facts``: by host, ``conditions.fingerprint``.
    """
    differences, unequal, worth_knowing = differing(facts), list[str](), list[str]()
    for condition in conditions():
        name = condition.field
        if condition.hosts and name in differences:
            (unequal if condition.hosts == "refuse" else worth_knowing).append(
                f"hosts differ in {in_words(name, differences[name], none='missing', at='on')}"
            )
    return unequal, [*worth_knowing, *_mixed_gpu_warnings(facts)]


def _mixed_gpu_warnings(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a warning if GPUs are of several models: all ranks wait for the slowest."""
    kinds = {host: sorted({*host_facts.get(CARDS, [])}) for host, host_facts in facts.items()}
    if len({model for models in kinds.values() for model in models or ["none"]}) < 2:
        return []
    listed = ", ".join(
        f"'{host}' has {' and '.join(models) or 'none'}" for host, models in kinds.items()
    )
    return [f"GPUs are of several kinds, and all ranks wait for the slowest: {listed}"]


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
    as_list = f"for horovodrun and mpirun: -H {','.join(map(str, hosts))}"
    notes = (f"note: {line}" for line in shared_addresses(views))
    for line in (as_list, *failures, *notes):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return not failures


def span(ranks: range) -> str:
    """Ranks as people write them: ``0-3``, ``4`` or ``none``."""
    if not ranks:
        return "none"
    return str(ranks.start) if len(ranks) == 1 else f"{ranks.start}-{ranks.stop - 1}"
