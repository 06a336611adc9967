"""Checks every host of a plan before anything starts: reachable, same software, interface, a way to the driver."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psutil

from measurement.addresses import family_of, listen, with_port
from measurement.conditions.conditions import CONDITIONS
from measurement.conditions.differences import differing, in_words
from measurement.errors import LaunchError, PlanError
from measurement.plans.plan import Plan
from measurement.probes.fingerprint import cards, core_count
from runners.hosts.batch_jobs import unused_nodes
from runners.hosts.host_facts import CARDS, NAMES, duplicate_machines, shared_addresses, unfindable_hosts, unknown_names
from runners.hosts.placement import Placement, planned_hosts, spare_hosts
from runners.hosts.ssh_probe import HostStatus, is_here, probe_hosts, require_reachable
from runners.launchers.base import HERE
from runners.processes import remote
from runners.processes.local import base_environment

ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What the checks found."""

    placement: Placement
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """``runners.hosts.host_facts`` by host; empty where all ranks are here."""
    warnings: Sequence[str] = ()
    unfindable: Mapping[str, str] = field(default_factory=dict)
    """Hosts that Gloo's ranks would tell the others wrong addresses of, see ``runners.hosts.host_facts``."""


def inspect(plan: Plan) -> Preflight:
    """Check the hosts of a plan; if it names none, only whether a job's nodes are left alone.

    Raises:
        LaunchError: a host cannot take ranks, or not together with the others; one line for each, with the remedy.
        PlanError: the interface or address it names is not there.
    """
    hosts = planned_hosts(plan)
    if plan.hosts is None or hosts[0].host == HERE:
        unused = unused_nodes(os.environ) if plan.hosts is None else None
        placement = Placement(hosts=hosts, cores={HERE: core_count()})
        kinds = [] if plan.device == "cpu" else _unlike_cards({HERE: {CARDS: cards()}})
        return Preflight(placement=placement, warnings=[*([unused] if unused else []), *kinds])
    spare = spare_hosts(plan, hosts)
    names = [entry.host for entry in (*hosts, *spare)]
    found = probe_hosts(names)
    require_reachable(found)
    here = places_here(found)
    address = driver_address(plan, found, here=here)
    facts = gather_facts(names, here=here, address=address)
    _require(_unusable(facts, plan, address=address))
    views = {host: found.pop(NAMES) for host, found in facts.items()}
    views = views if len(views) > 1 else {}  # one host's ranks find each other
    _require([*unknown_names(views), *duplicate_machines(views)])
    errors, warnings = host_differences(facts)
    if plan.host_differences == "refuse":
        remedy = "install the same on every host (make setup), or set host_differences: report"
        _require([f"{error}; {remedy}" for error in errors])
        errors = []
    cores = {host: found["usable_cores"] for host, found in facts.items()}
    placement = Placement(hosts=hosts, cores=cores, here=here, driver_address=address, spare=spare)
    return Preflight(
        placement=placement,
        facts=facts,
        warnings=[*errors, *warnings, *([] if plan.network_interface else shared_addresses(views))],
        unfindable=unfindable_hosts(views),
    )


def driver_address(plan: Plan, found: Sequence[HostStatus], *, here: frozenset[str]) -> str:
    """Choose the address at which ranks reach the driver: the plan's, its interface's, or that of the route to the hosts.

    Raises:
        PlanError: this machine has no such address or interface.
    """
    own = {name: [e.address for e in entries if e.family == socket.AF_INET] for name, entries in psutil.net_if_addrs().items()}
    if plan.driver_address is not None:
        with contextlib.suppress(OSError):
            listen(plan.driver_address).close()
            return plan.driver_address
        listed = ", ".join(address for addresses in own.values() for address in addresses)
        raise PlanError(f"driver_address '{plan.driver_address}' is not an address of this machine (they are {listed})")
    if plan.network_interface is not None and own.get(plan.network_interface):
        return own[plan.network_interface][0]
    if plan.network_interface is not None and len(here) > 1:
        listed = ", ".join(name for name, addresses in own.items() if addresses)
        raise PlanError(f"network_interface '{plan.network_interface}' has no address on this machine (it has {listed})")
    return route_to_others(found, here=here)


def places_here(found: Sequence[HostStatus]) -> frozenset[str]:
    """Return the names that stand for this machine."""
    return frozenset({HERE, *(reach.host for reach in found if is_here(reach.address))})


def route_to_others(found: Sequence[HostStatus], *, here: frozenset[str]) -> str:
    """Return this machine's address on the route to the first other host. Nothing is sent."""
    address = next((reach.address for reach in found if reach.host not in here), found[0].address)
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def gather_facts(hosts: Sequence[str], *, here: frozenset[str], address: str) -> dict[str, dict[str, Any]]:
    """Ask all hosts at once what they are, while the driver listens.

    Raises:
        LaunchError: one does not answer.
    """
    with listen(address) as listening, ThreadPoolExecutor(max_workers=64) as pool:
        driver = with_port(address, listening.getsockname()[1])
        ask_of = partial(ask, here=here, question=[driver, *hosts])
        return dict(zip(hosts, pool.map(ask_of, hosts), strict=True))


def ask(host: str, *, here: frozenset[str], question: Sequence[str]) -> dict[str, Any]:
    """Ask one host for its facts.

    Raises:
        LaunchError: it does not answer as it should.
    """
    argv = remote.python("runners.hosts.host_facts", *question)
    try:
        answer = remote.ask(None if host in here else host, argv, timeout_s=ANSWER_TIMEOUT_S, environment=base_environment())
    except LaunchError as error:
        raise LaunchError(
            f"host '{host}' does not say what it is: {error}; try there: python -m runners.hosts.host_facts {question[0]}"
        ) from error
    return dict(json.loads(answer))


def _unusable(facts: Mapping[str, Mapping[str, Any]], plan: Plan, *, address: str) -> list[str]:
    """Return what is wrong with hosts that lack the interface or do not reach the driver."""
    wanted = plan.network_interface
    lacking = [
        f"host '{host}' has no interface '{wanted}'; it has {', '.join(found['interfaces'])}: set network_interface"
        for host, found in facts.items()
        if wanted is not None and wanted not in found["interfaces"]
    ]
    return [*lacking, *unreached(facts, address=address)]


def unreached(facts: Mapping[str, Mapping[str, Any]], *, address: str) -> list[str]:
    """Return which hosts do not reach the driver, a line for each."""
    return [
        f"host '{host}' does not reach the driver at {address}: {found['driver_error']}; open the firewall between them, "
        "or set driver_address or network_interface"
        for host, found in facts.items()
        if found["driver_error"]
    ]


def _require(wrong: Sequence[str]) -> None:
    if wrong:
        raise LaunchError("\n".join(wrong))


def host_differences(facts: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Differences between hosts that make ranks unequal, and others that are worth knowing. Pure.

    ``facts``: by host, ``conditions.fingerprint``.
    """
    found, unlike, worth_knowing = differing(facts), list[str](), list[str]()
    for condition in (one for one in CONDITIONS if one.hosts and one.field in found):
        (unlike if condition.hosts == "refuse" else worth_knowing).append(
            f"hosts differ in {in_words(condition.field, found[condition.field], none='missing', at='on')}"
        )
    return unlike, [*worth_knowing, *_unlike_cards(facts)]


def _unlike_cards(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is to be known of GPUs of several kinds: all ranks wait for those on the slowest."""
    kinds = {host: sorted(set(found.get(CARDS, []))) for host, found in facts.items()}
    if len({tuple(own) for own in kinds.values()}) < 2 and all(len(own) < 2 for own in kinds.values()):
        return []
    listed = ", ".join(f"'{host}' has {' and '.join(own) or 'none'}" for host, own in kinds.items())
    return [f"GPUs are of several kinds, and all ranks wait for the slowest: {listed}"]
