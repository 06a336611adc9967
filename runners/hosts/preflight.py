"""Checks every host of a plan before anything starts: reachability, software, network interface,
connection to the driver.
"""

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

from measurement.addresses import family_of, listen, with_port
from measurement.conditions.conditions import conditions
from measurement.conditions.differences import differing, in_words
from measurement.errors import LaunchError, PlanError
from measurement.plans.plan import Plan
from measurement.probes.fingerprint import cards, core_count
from runners.hosts.batch_jobs import unused_nodes
from runners.hosts.host_facts import (
    CARDS,
    NAMES,
    duplicate_machines,
    ipv4_addresses,
    shared_addresses,
    unfindable_hosts,
    unknown_names,
)
from runners.hosts.placement import Placement, planned_hosts, spare_hosts
from runners.hosts.ssh_probe import HostStatus, is_here, probe_hosts, require_reachable
from runners.launchers.base import HERE
from runners.processes import remote
from runners.processes.local import base_environment

ANSWER_TIMEOUT_S = 60.0


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
        unused = unused_nodes(os.environ) if plan.hosts is None else None
        placement = Placement(hosts=hosts, cores={HERE: core_count()})
        kinds = [] if plan.device == "cpu" else _mixed_gpu_warnings({HERE: {CARDS: cards()}})
        return Preflight(placement=placement, warnings=[*([unused] if unused else []), *kinds])
    spare = spare_hosts(plan, hosts)
    names = [entry.host for entry in (*hosts, *spare)]
    statuses = probe_hosts(names)
    require_reachable(statuses)
    here = places_here(statuses)
    address = driver_address(plan, statuses, here=here)
    facts = gather_facts(names, here=here, address=address)
    _require(
        [*_without_interface(facts, plan.network_interface), *unreached(facts, address=address)]
    )
    views = {host: host_facts.pop(NAMES) for host, host_facts in facts.items()}
    views = views if len(views) > 1 else {}  # on one host ranks find each other
    _require([*unknown_names(views), *duplicate_machines(views)])
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


def driver_address(plan: Plan, statuses: Sequence[HostStatus], *, here: frozenset[str]) -> str:
    """Choose the address at which ranks reach the driver: the plan's, its interface's, or that of
    the route to other hosts.

    Raises:
        PlanError: this machine has no such address or interface.
    """
    own_addresses = ipv4_addresses()
    if plan.driver_address is not None:
        with contextlib.suppress(OSError):
            listen(plan.driver_address).close()
            return plan.driver_address
        listed = ", ".join(address for addresses in own_addresses.values() for address in addresses)
        raise PlanError(
            f"driver_address '{plan.driver_address}' is not an address of this machine (they are"
            f" {listed})"
        )
    if plan.network_interface is not None and own_addresses.get(plan.network_interface):
        return own_addresses[plan.network_interface][0]
    if plan.network_interface is not None and len(here) > 1:
        listed = ", ".join(name for name, addresses in own_addresses.items() if addresses)
        raise PlanError(
            f"network_interface '{plan.network_interface}' has no address on this machine (it has"
            f" {listed})"
        )
    return route_to_others(statuses, here=here)


def places_here(statuses: Sequence[HostStatus]) -> frozenset[str]:
    """Return the names of this machine among the hosts."""
    return frozenset({HERE, *(reach.host for reach in statuses if is_here(reach.address))})


def route_to_others(statuses: Sequence[HostStatus], *, here: frozenset[str]) -> str:
    """Return this machine's address on the route to the first other host. Nothing is sent."""
    address = next(
        (reach.address for reach in statuses if reach.host not in here), statuses[0].address
    )
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def gather_facts(
    hosts: Sequence[str], *, here: frozenset[str], address: str
) -> dict[str, dict[str, Any]]:
    """Ask all hosts at once for their facts, while the driver listens.

    Raises:
        LaunchError: a host does not answer.
    """
    with listen(address) as listening, ThreadPoolExecutor(max_workers=64) as pool:
        driver = with_port(address, listening.getsockname()[1])
        ask_of = partial(ask, here=here, question=[driver, *hosts])
        return dict(zip(hosts, pool.map(ask_of, hosts), strict=True))


def ask(host: str, *, here: frozenset[str], question: Sequence[str]) -> dict[str, Any]:
    """Ask one host for its facts.

    Raises:
        LaunchError: it does not answer, or not with facts.
    """
    argv = remote.python("runners.hosts.host_facts", *question)
    try:
        answer = remote.ask(
            None if host in here else host,
            argv,
            timeout_s=ANSWER_TIMEOUT_S,
            environment=base_environment(),
        )
    except LaunchError as error:
        raise LaunchError(
            f"host '{host}' does not report its facts: {error}; try there: python -m"
            f" runners.hosts.host_facts {question[0]}"
        ) from error
    return dict(json.loads(answer))


def _without_interface(facts: Mapping[str, Mapping[str, Any]], interface: str | None) -> list[str]:
    """Return which hosts lack the interface, a line for each."""
    return [
        f"host '{host}' has no interface '{interface}'; it has"
        f" {', '.join(host_facts['interfaces'])}: set network_interface"
        for host, host_facts in facts.items()
        if interface is not None and interface not in host_facts["interfaces"]
    ]


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
    for condition in (
        condition
        for condition in conditions()
        if condition.hosts and condition.field in differences
    ):
        (unequal if condition.hosts == "refuse" else worth_knowing).append(
            "hosts differ in"
            f" {in_words(condition.field, differences[condition.field], none='missing', at='on')}"
        )
    return unequal, [*worth_knowing, *_mixed_gpu_warnings(facts)]


def _mixed_gpu_warnings(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a warning if GPUs are of several models: all ranks wait for the slowest."""
    kinds = {host: sorted(set(host_facts.get(CARDS, []))) for host, host_facts in facts.items()}
    if len({tuple(models) for models in kinds.values()}) < 2 and all(
        len(models) < 2 for models in kinds.values()
    ):
        return []
    listed = ", ".join(
        f"'{host}' has {' and '.join(models) or 'none'}" for host, models in kinds.items()
    )
    return [f"GPUs are of several kinds, and all ranks wait for the slowest: {listed}"]
