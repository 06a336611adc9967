"""The cluster on one machine: hosts that know each other by name and share nothing they should not, and go without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import inside, lab_command, machine
from tests.conftest import REPOSITORY, wait_until
from tests.kit.lab import namespaces

BOTH_WAYS = [("host1", "host2"), ("host2", "host1")]
GBIT_IN_BYTES = 125_000_000


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


def test_over_ssh_the_same_programs_are_found(lab):
    script = "import sys; print(sys.executable)"
    done = inside("host1", "ssh", "host2", f"python -c '{script}'")
    assert done.stdout.strip() == sys.executable, done.stderr


def test_who_waits_for_a_command_ends_it(lab):
    argv = [sys.executable, "-m", "tests.kit.lab", "run", "--", "sh", "-c", "echo started; exec sleep 300"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=REPOSITORY)
    assert process.stdout.readline() == b"started\n"
    network = namespaces.networks()["host1"]
    wait_until(lambda: "sleep" in commands_in(network))
    process.terminate()
    process.wait(30)
    process.stdout.close()
    wait_until(lambda: "sleep" not in commands_in(network))


def commands_in(network):
    names = set()
    for pid in namespaces.processes_in([network]):
        with contextlib.suppress(OSError):
            names.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return names


def test_links_are_shaped_both_ways(lab):
    shaped = {
        "eth0 of host1": namespaces.run_in_network("host1", "tc", "-json", "qdisc", "show", "dev", "eth0"),
        "host1 of the switch": namespaces.run_in_network("switch", "tc", "-json", "qdisc", "show", "dev", "host1"),
        "host2 of the switch": namespaces.run_in_network("switch", "tc", "-json", "qdisc", "show", "dev", "host2"),
    }
    for link, told in shaped.items():
        (queue,) = json.loads(told)
        assert (queue["kind"], queue["options"]["rate"]) == ("tbf", GBIT_IN_BYTES), link


def test_the_ways_to_misuse_a_lab(lab):
    for arguments, message in (
        (["up"], "a lab is up already"),
        (["run", "--host", "host3", "--", "true"], "the lab has no host 'host3'; it has host1, host2"),
    ):
        done = lab_command(*arguments)
        assert done.returncode == 2
        assert message in done.stderr
