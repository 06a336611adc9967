"""Reports the facts of a host before ranks start there, and finds errors in the names and addresses
of several hosts.

Gloo gives the other hosts the address to which a host's own name resolves on it. Debian's installer
writes ``127.0.1.1 myhost`` into /etc/hosts; then the others look for it on themselves.

The driver runs ``python -m runners.hosts.host_facts DRIVER:PORT HOST...`` on each, with the names
of all hosts. It answers with JSON. With ``--free-port`` in place of the driver's address it answers
with free ports. It imports nothing large.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from measurement.addresses import free_port, listen, split_port
from measurement.agent.ringside_agent.machine import fingerprint
from measurement.host import cards, installed_mpi
from runners.processes.remote import give

FREE_PORT = "--free-port"
NAMES, CARDS = "names", "cards"
CONNECT_TIMEOUT_S = 5.0


def main(driver: str, *hosts: str) -> None:
    """Print the facts, or a number of free ports."""
    if driver == FREE_PORT:
        give(" ".join(str(free_port()) for _ in range(int(hosts[0]))))
    else:
        give(json.dumps(facts(driver, hosts)))


def facts(driver: str, hosts: Sequence[str]) -> dict[str, Any]:
    """The fingerprint, and further facts for the preflight.

    GPUs (``cards``), why the driver is
    not reached (``driver_error``), and how names resolve (``names``).
    """
    error = None
    try:
        socket.create_connection(split_port(driver), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as refusal:
        error = str(refusal)
    return {
        **fingerprint(),
        "mpirun": str(mpi) if (mpi := installed_mpi("mpirun")) else None,
        "driver_error": error,
        CARDS: cards(),
        NAMES: resolve_names(hosts),
    }


HostView = Mapping[str, Any]
"""What ``resolve_names`` returns, of one host."""


def resolve_names(hosts: Sequence[str]) -> dict[str, Any]:
    """Return how this host resolves its own name and the others'; values are JSON's."""
    name = socket.gethostname()
    with ThreadPoolExecutor(max_workers=64) as pool:  # a name server may take seconds for each
        own_addresses, *other_addresses = pool.map(_addresses_of, [name, *hosts])
    return {
        "name": name,
        "own_address": next(filter(is_here, own_addresses), None),
        "finds": {
            host: next(iter(addresses), None)
            for host, addresses in zip(hosts, other_addresses, strict=True)
        },
        "interfaces": ipv4_addresses(),
    }


def ipv4_addresses() -> dict[str, list[str]]:
    """Return this host's IPv4 addresses by network interface."""
    return {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }


def unfindable_hosts(views: Mapping[str, HostView]) -> dict[str, str]:
    """Return the hosts whose own name resolves to no address at which others find them, with reason
    and remedy. Pure.
    """
    own_addresses = {host: view["own_address"] for host, view in views.items()}
    return {
        host: (
            f"its own name, '{views[host]['name']}', resolves to"
            f" {address or 'none of its addresses'} there, which Gloo gives the other hosts; put"
            " the name beside the address by which they reach it, in /etc/hosts there; for DDP,"
            " not for Horovod, network_interface (--network-interface) will do"
        )
        for host, address in own_addresses.items()
        if address is None or ipaddress.ip_address(address.partition("%")[0]).is_loopback
    }


def unknown_names(views: Mapping[str, HostView]) -> list[str]:
    """Return which hosts do not know the name of another. Pure."""
    return [
        f"host '{host}' does not know the name '{other}'; add it to DNS or to /etc/hosts there"
        for host, view in views.items()
        for other, address in view["finds"].items()
        if address is None
    ]


def shared_addresses(views: Mapping[str, HostView]) -> list[str]:
    """Return which addresses several hosts share; without a named interface, libraries may try
    them. Pure.
    """
    owners: dict[tuple[str, str], list[str]] = {}
    for host, view in views.items():
        for interface, addresses in view["interfaces"].items():
            for address in addresses:
                owners.setdefault((address, interface), []).append(host)
    return [
        f"hosts {', '.join(hosts)} all have {address} on {interface}, and a library that tries it"
        " reaches itself; name the interface that joins them: network_interface (in your own"
        " commands GLOO_SOCKET_IFNAME and the like)"
        for (address, interface), hosts in owners.items()
        if len(hosts) > 1 and not ipaddress.ip_address(address).is_loopback
    ]


def _addresses_of(name: str) -> list[str]:
    with contextlib.suppress(OSError, UnicodeError):
        return [str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    return []


def is_here(address: str) -> bool:
    """Whether a process of this host can serve at an address. Gloo takes the first such one."""
    with contextlib.suppress(OSError):
        listen(address).close()
        return True
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
