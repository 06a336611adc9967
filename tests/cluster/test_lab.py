"""The cluster on one machine: hosts that know each other by name and share nothing they should not, and go without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import beside, inside, machine, processes_of
from tests.conftest import REPOSITORY, wait_until

BOTH_WAYS = [("host1", "host2"), ("host2", "host1")]


@pytest.mark.parametrize(("here", "there"), BOTH_WAYS)
def test_ssh_by_name_both_ways(lab, here, there):
    done = inside(here, "sh", "-c", f"hostname; ssh -o BatchMode=yes {there} hostname")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [here, there]
    assert done.stderr == ""


def test_every_host_has_its_own_shared_memory_processes_and_addresses(lab, tmp_path):
    assert inside("host1", "touch", "/dev/shm/mine", "/run/mine").returncode == 0
    for place in ("/dev/shm/mine", "/run/mine"):
        assert inside("host1", "test", "-e", place).returncode == 0
        assert inside("host2", "test", "-e", place).returncode == 1
        assert not Path(place).exists()
    names = [
        inside(host, "sh", "-c", "ls -L -i /proc/self/ns/ipc /proc/self/ns/pid /proc/self/ns/mnt").stdout
        for host in ("host1", "host2")
    ]
    assert names[0] != names[1]
    interfaces = json.loads(inside("host1", "ip", "-json", "address").stdout)
    assert [entry["ifname"] for entry in interfaces] == ["lo", "eth0"]
    assert inside("host1", "ls", "/sys/class/net").stdout.split() == ["eth0", "lo"]
    assert len(inside("host1", "ps", "-e").stdout.splitlines()) < len(psutil.pids())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="hosts share the only core")
def test_hosts_have_cores_of_their_own_in_a_shell_and_over_ssh(lab):
    ask = "python -c 'import os; print(*os.sched_getaffinity(0))'"
    first, second = (set(inside(host, "sh", "-c", ask).stdout.split()) for host in ("host1", "host2"))
    assert first and second and not first & second
    assert set(inside("host1", "ssh", "host2", ask).stdout.split()) == second


def test_the_machine_sees_nothing_of_it(lab):
    assert machine() == lab


def test_a_command_has_the_users_folder_environment_arguments_and_exit_code(lab, tmp_path):
    script = "import os, sys; print(os.getcwd(), os.environ['COLOUR'], sys.argv[1:]); sys.exit(7)"
    done = inside("host2", "python", "-c", script, "a b", "$(c)", "--", "-x", env={**os.environ, "COLOUR": "dark blue"})
    assert done.returncode == 7
    assert done.stdout == f"{REPOSITORY} dark blue ['a b', '$(c)', '--', '-x']\n"
    assert inside("host1", "sh", "-c", "kill -9 $$").returncode == -signal.SIGKILL


def test_who_waits_for_a_command_ends_it(lab):
    process = beside("host1", "sh", "-c", "echo started; exec sleep 300", stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"started\n"
    wait_until(lambda: "sleep" in commands_in("host1"))
    process.terminate()
    process.wait(30)
    process.stdout.close()
    wait_until(lambda: "sleep" not in commands_in("host1"))


def commands_in(host):
    names = set()
    for pid in processes_of(host):
        with contextlib.suppress(OSError):
            names.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return names
