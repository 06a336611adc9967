"""``ringside hosts`` in the lab: what is wrong with a host is told before anything starts, with the
remedy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import enter
from tests.conftest import REPOSITORY, ended_well
from tests.kit.lab.ssh import AUTHORIZED, KNOWN_HOSTS

LOOK = """
import json, sys
from runners.hosts.preflight import find_addresses, gather_facts, places_here, route_to_others
addresses, failures = find_addresses(sys.argv[1:])
here = places_here(addresses)
driver = route_to_others(addresses, here=here)
facts, silent = gather_facts(addresses, here=here, address=driver)
print(json.dumps([[*facts], [*failures, *silent]]))
"""


def look(*hosts, folder=REPOSITORY):
    """The hosts that can take ranks, and why others cannot."""
    there = ("sh", "-c", 'cd "$0" && exec "$@"', folder)
    done = enter("host1", *there, sys.executable, "-c", LOOK, *hosts)
    return json.loads(ended_well(done).stdout)


def test_all_is_well(lab):
    done = ended_well(enter("host1", "ringside", "hosts", "-H", "host1:2,host2:2", "-np", "3"))
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:6] for row in rows[1:3]] == [
        ["host1", "2", "0-1", "10.77.0.1", "yes:", "Python"],
        ["host2", "2", "2", "10.77.0.2", "yes:", "Python"],
    ]


def test_an_address_that_nobody_has(lab):
    hosts, (silent,) = look("10.77.0.99", "host2")
    assert hosts == ["host2"]
    assert silent.startswith("host '10.77.0.99': ssh: connect to host 10.77.0.99 port 22: ")


def test_a_host_without_the_folder(lab):
    assert enter("host1", "mkdir", "/run/it's mine").returncode == 0
    hosts, (reason,) = look("host1", "host2", folder="/run/it's mine")
    assert hosts == ["host1"]
    assert reason.startswith("host 'host2': sh: 1: cd: can't cd to /run/it's mine; try: ssh host2")


def test_a_host_without_the_python(lab):
    folder = Path(sys.executable).parent
    # seen by host2 alone
    assert enter("host2", "mount", "-t", "tmpfs", "tmpfs", folder).returncode == 0
    try:
        hosts, (reason,) = look("host1", "host2")
        assert hosts == ["host1"]
        assert f"{sys.executable}" in reason and "No such file" in reason
        assert reason.endswith("the same checkout at the same path (make setup)")
    finally:
        assert enter("host2", "umount", folder).returncode == 0
    assert look("host2") == [["host2"], []]


@pytest.mark.parametrize(
    ("file", "reason"),
    [(KNOWN_HOSTS, "Host key verification failed."), (AUTHORIZED, "Permission denied")],
)
def test_keys_that_are_missing(lab, file, reason):
    before = file.read_text()
    file.write_text("")
    try:
        hosts, (line,) = look("host2")
        assert hosts == [] and reason in line and "; try: ssh host2 true" in line
    finally:
        file.write_text(before)


def test_closed_ports_are_told_though_ssh_works(lab):
    """host2 may answer ssh, and send nothing else to the ports that ranks choose."""
    rules = [
        ["priority", "10", "ipproto", "tcp", "sport", "22", "lookup", "main"],
        ["priority", "11", "ipproto", "tcp", "dport", "1024-65534", "prohibit"],
    ]
    for rule in rules:
        ended_well(enter("host2", "ip", "rule", "add", *rule))
    try:
        done = enter("host1", "ringside", "hosts", "-H", "host1:1,host2:1")
    finally:
        for rule in rules:
            enter("host2", "ip", "rule", "del", *rule)
    assert done.returncode == 1, done.stdout
    assert "host 'host2' does not reach the driver at " in done.stdout
    assert "Permission denied; open the firewall between them" in done.stdout
