"""What hosts make of each other's names and addresses, and whom that refuses."""

from __future__ import annotations

import socket
from contextlib import nullcontext

import pytest

from backends import make_backend
from measurement.errors import LaunchError
from runners.hosts import host_facts as names
from runners.planning.arm_checks import require_findable


def view(name, address, *, finds=None, **interfaces):
    return {
        "name": name,
        "own_address": address,
        "finds": finds or {},
        "interfaces": {"lo": ["127.0.0.1"], **interfaces},
    }


GOOD = view("host1", "10.0.0.1", eth0=["10.0.0.1"])


@pytest.mark.parametrize("address", ["127.0.1.1", "::1", None])
def test_a_host_that_others_cannot_find_by_its_own_name_is_named(address):
    told = names.unfindable_hosts({"host1": GOOD, "host2": view("host2", address)})
    assert list(told) == ["host2"]
    assert f"'host2', resolves to {address or 'none of its addresses'} there" in told["host2"]


@pytest.mark.parametrize(
    ("backend", "transport", "interface", "is_refused"),
    [
        ("ddp", "gloo", None, True),
        ("ddp", "gloo", "eth0", False),
        ("ddp", "mpi", None, False),
        ("horovod", "gloo", "eth0", True),
    ],
)
def test_backends_that_use_the_name_are_refused_on_such_a_host(
    backend, transport, interface, is_refused
):
    chosen = make_backend(backend, transport=transport, options={})
    require_findable({}, chosen, network_interface=interface)
    refusal = pytest.raises(LaunchError, match=r"^host 'host2': why$")
    with refusal if is_refused else nullcontext():
        require_findable({"host2": "why"}, chosen, network_interface=interface)


def test_names_that_a_host_does_not_know_are_told():
    finds = {"host1": "10.0.0.1", "host3": None}
    assert names.unknown_names({"host1": view("host1", "10.0.0.1", finds=finds)}) == [
        "host 'host1' does not know the name 'host3'; add it to DNS or to /etc/hosts there"
    ]


def test_addresses_that_several_hosts_have_are_named():
    views = {host: view(host, "10.0.0.1", docker0=["172.17.0.1"]) for host in ("host1", "host2")}
    (line,) = names.shared_addresses(views)
    assert line.startswith("hosts host1, host2 all have 172.17.0.1 on docker0")


def test_this_host_tells_what_gloo_would_take(monkeypatch):
    """Gloo takes the first address that it can serve at."""
    found = [(0, 0, 0, "", (address, 0)) for address in ("192.0.2.1", "127.0.0.1", "127.0.1.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    answer = names.resolve_names(["myhost"])
    assert (answer["own_address"], answer["finds"]) == ("127.0.0.1", {"myhost": "192.0.2.1"})
    assert "127.0.0.1" in answer["interfaces"]["lo"]
