"""``ringside hosts`` in the lab: what is wrong with a host is told before anything starts, with the
remedy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import enter
from tests.conftest import REPOSITORY
from tests.kit.lab import namespaces
from tests.kit.lab.ssh import AUTHORIZED, KNOWN_HOSTS

LOOK = """
import json, sys
from pathlib import Path
from runners.hosts.ssh_probe import Probe, probe_hosts
folder, *hosts = sys.argv[1:]
print(json.dumps([vars(found) for found in probe_hosts(hosts, probe=Probe(folder=Path(folder)))]))
"""


def look(*hosts, folder=REPOSITORY):
    done = enter("host1", "python", "-c", LOOK, folder, *hosts)
    assert done.returncode == 0, done.stderr
    return {found["host"]: found for found in json.loads(done.stdout)}


def test_all_is_well(lab):
    done = enter("host1", "ringside", "hosts", "-H", "host1:2,host2:2", "-np", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:6] for row in rows[1:3]] == [
        ["host1", "2", "0-1", "10.77.0.1", "yes:", "Python"],
        ["host2", "2", "2", "10.77.0.2", "yes:", "Python"],
    ]


def test_names_and_addresses_that_nobody_has(lab):
    found = look("host9", "10.77.0.99", "host2")
    assert found["host9"]["status"] == "unresolved"
    assert found["10.77.0.99"]["status"] == "unreachable"
    assert found["host2"]["status"] == "ok"


def test_a_host_without_the_folder(lab):
    assert enter("host1", "mkdir", "/run/it's mine").returncode == 0
    found = look("host1", "host2", folder="/run/it's mine")
    assert found["host1"]["status"] == "ok"
    assert (found["host2"]["status"], found["host2"]["detail"]) == (
        "no folder",
        "it has no folder /run/it's mine",
    )


def test_a_host_without_the_python(lab):
    folder = Path(sys.executable).parent
    # seen by host2 alone
    assert enter("host2", "mount", "-t", "tmpfs", "tmpfs", folder).returncode == 0
    try:
        found = look("host1", "host2")
        assert found["host1"]["status"] == "ok"
        assert (found["host2"]["status"], found["host2"]["detail"]) == (
            "no python",
            f"it has no {sys.executable}",
        )
        assert found["host2"]["remedy"] == "set it up there, in the same folder: make setup"
    finally:
        assert enter("host2", "umount", folder).returncode == 0
    assert look("host2")["host2"]["status"] == "ok"


@pytest.mark.parametrize(
    ("file", "status", "remedy"),
    [
        (KNOWN_HOSTS, "unknown key", "compare and accept it once: ssh host2 true"),
        (AUTHORIZED, "denied", "give it a key: ssh-keygen -t ed25519; ssh-copy-id host2"),
    ],
)
def test_keys_that_are_missing(lab, file, status, remedy):
    before = file.read_text()
    file.write_text("")
    try:
        found = look("host2")["host2"]
        assert (found["status"], found["remedy"]) == (status, remedy)
    finally:
        file.write_text(before)


def test_closed_ports_are_told_though_ssh_works(lab):
    """host2 may answer ssh, and send nothing else to the ports that ranks choose."""
    looked = enter("host1", "ringside", "hosts", "-H", "host1:1,host2:1")
    assert looked.returncode == 0, looked.stdout
    assert "ports: all 2 hosts reach those of this machine, at " in looked.stdout
    rules = [
        ["priority", "10", "ipproto", "tcp", "sport", "22", "lookup", "main"],
        ["priority", "11", "ipproto", "tcp", "dport", "1024-65534", "prohibit"],
    ]
    for rule in rules:
        added = enter("host2", "ip", "rule", "add", *rule)
        assert added.returncode == 0, added.stderr
    try:
        done = enter("host1", "ringside", "hosts", "-H", "host1:1,host2:1")
    finally:
        for rule in rules:
            enter("host2", "ip", "rule", "del", *rule)
    assert done.returncode == 1, done.stdout
    assert "host 'host2' does not reach the driver at " in done.stdout
    assert "Permission denied; open the firewall between them" in done.stdout


def test_a_host_without_sshd(lab):
    """Last in this file: sshd is not started again."""
    (sshd,) = psutil.Process(namespaces.init_of("host2")).children()
    sshd.kill()
    psutil.wait_procs([sshd], timeout=10)
    found = look("host1", "host2")["host2"]
    assert (found["status"], found["detail"]) == (
        "refused",
        "connection refused: no sshd listens there",
    )
    done = enter("host1", "ringside", "hosts", "-H", "host1:2,host2:2")
    assert done.returncode == 1
    assert "host2: start it there" in done.stdout
