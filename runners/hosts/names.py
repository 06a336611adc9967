"""Names and addresses as each host sees them: what its own name means there, whom it finds, which addresses several hosts have.

Gloo tells the other hosts the address that a host's own name stands for on it. Debian's installer writes ``127.0.1.1 myhost`` into
/etc/hosts, and then the others look for it on themselves.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

View = Mapping[str, Any]
"""What ``look`` returns, of one host."""


def look(hosts: Sequence[str]) -> dict[str, Any]:
    """Return what this host makes of its own name and of the others', by which ranks are placed; values are JSON's."""
    name = socket.gethostname()
    with ThreadPoolExecutor(max_workers=64) as pool:  # a name server may take seconds for each
        own_addresses, *found = pool.map(_addresses_of, [name, *hosts])
    own = next(filter(_is_usable, own_addresses), None)
    return {
        "name": name,
        "own_address": own,
        "finds": {host: next(iter(addresses), None) for host, addresses in zip(hosts, found, strict=True)},
        "interfaces": {
            interface: [entry.address for entry in entries if entry.family == socket.AF_INET]
            for interface, entries in psutil.net_if_addrs().items()
        },
    }


def hidden(views: Mapping[str, View]) -> dict[str, str]:
    """Return the hosts whose own name stands for no address at which others find them, with reason and remedy. Pure."""
    own = {host: view["own_address"] for host, view in views.items()}
    return {
        host: f"its own name, '{views[host]['name']}', stands for {address or 'none of its addresses'} there, which Gloo tells the "
        "other hosts; put the name beside the address by which they reach it, in /etc/hosts there; for DDP, not for Horovod, "
        "network_interface (--network-interface) will do"
        for host, address in own.items()
        if address is None or ipaddress.ip_address(address.partition("%")[0]).is_loopback
    }


def lost(views: Mapping[str, View]) -> list[str]:
    """Return which hosts do not know the name of another. Pure."""
    return [
        f"host '{host}' does not know the name '{other}'; add it to DNS or to /etc/hosts there"
        for host, view in views.items()
        for other, address in view["finds"].items()
        if address is None
    ]


def twice(views: Mapping[str, View]) -> list[str]:
    """Return which names stand for one machine: launchers would count its ranks by two nodes. Pure."""
    machines: dict[str, list[str]] = {}
    for host, view in views.items():
        machines.setdefault(json.dumps([view["name"], view["interfaces"]], sort_keys=True), []).append(host)
    return [
        f"{' and '.join(names)} are one machine; name it once, with all its slots"
        for names in ([f"'{host}'" for host in hosts] for hosts in machines.values())
        if len(names) > 1
    ]


def doubts(views: Mapping[str, View]) -> list[str]:
    """Return which addresses several hosts have: without an interface, libraries may try them. Pure."""
    owners: dict[tuple[str, str], list[str]] = {}
    for host, view in views.items():
        for interface, addresses in view["interfaces"].items():
            for address in addresses:
                owners.setdefault((address, interface), []).append(host)
    return [
        f"hosts {', '.join(hosts)} all have {address} on {interface}, and a library that tries it reaches itself; "
        "name the interface that joins them: network_interface (in your own commands GLOO_SOCKET_IFNAME and the like)"
        for (address, interface), hosts in owners.items()
        if len(hosts) > 1 and not ipaddress.ip_address(address).is_loopback
    ]


def _addresses_of(name: str) -> list[str]:
    with contextlib.suppress(OSError, UnicodeError):
        return [str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    return []


def _is_usable(address: str) -> bool:
    """Whether a process of this host can serve at it; the first such is what Gloo takes."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return True
    return False
