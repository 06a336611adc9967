"""What hosts make of each other's names and addresses, and whom that refuses."""

from __future__ import annotations

import socket

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


@pytest.mark.parametrize("address", ["127.0.1.1", "127.0.0.1", "::1", None])
def test_a_host_that_others_cannot_find_by_its_own_name_is_named(address):
    (host, why), *others = names.unfindable_hosts(
        {"host1": GOOD, "host2": view("host2", address)}
    ).items()
    assert (host, others) == ("host2", [])
    assert why.startswith(
        f"its own name, 'host2', resolves to {address or 'none of its addresses'} there, which Gloo"
    )


@pytest.mark.parametrize(
    ("backend", "transport", "interface", "is_refused"),
    [
        ("ddp", "gloo", None, True),
        ("ddp", "gloo", "eth0", False),
        ("ddp", "mpi", None, False),
        ("horovod", "gloo", "eth0", True),
        ("horovod", "nccl", "eth0", True),
    ],
)
def test_backends_that_use_the_name_are_refused_on_such_a_host(
    backend, transport, interface, is_refused
):
    def check(unfindable):
        chosen = make_backend(backend, transport=transport, options={})
        require_findable(unfindable, chosen, network_interface=interface)

    check({})
    if is_refused:
        with pytest.raises(LaunchError, match=r"^host 'host2': why$"):
            check({"host2": "why"})
    else:
        check({"host2": "why"})


def test_names_that_a_host_does_not_know_are_told():
    finds = {"host1": "10.0.0.1", "host2": "10.0.0.9", "host3": None}
    views = {
        "host1": view("host1", "10.0.0.1", finds=finds, eth0=["10.0.0.1"]),
        "host2": view("b", "10.0.0.2", eth0=["10.0.0.2"]),
    }
    assert names.unknown_names(views) == [
        "host 'host1' does not know the name 'host3'; add it to DNS or to /etc/hosts there"
    ]


def test_addresses_that_several_hosts_have_are_named():
    views = {host: view(host, "10.0.0.1", docker0=["172.17.0.1"]) for host in ("host1", "host2")}
    (line,) = names.shared_addresses(views)
    assert line.startswith("hosts host1, host2 all have 172.17.0.1 on docker0")


def test_this_host_tells_what_gloo_would_take(monkeypatch):
    """Gloo takes the first address that it can serve at."""
    answers = ["192.0.2.1", "127.0.0.1", "127.0.1.1"]
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (address, 0)) for address in answers]
    )
    monkeypatch.setattr(socket, "gethostname", lambda: "myhost")
    answer = names.resolve_names(["myhost"])
    assert answer["own_address"] == "127.0.0.1"
    assert answer["finds"] == {"myhost": "192.0.2.1"}
    assert "127.0.0.1" in answer["interfaces"]["lo"]
