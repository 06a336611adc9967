"""The cluster on one machine: hosts that know each other by name and share nothing they should not,
and go without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import KEPT, inside, lab_command, machine, remove_kept
from tests.conftest import REPOSITORY
from tests.kit.lab.state import STATE


def test_every_host_has_its_own_files_namespaces_cores_and_link_and_the_machine_sees_nothing_of_it(
    lab,
):
    assert inside("host1", "touch", "/dev/shm/mine", "/run/mine").returncode == 0
    for place in ("/dev/shm/mine", "/run/mine"):
        assert inside("host2", "test", "-e", place).returncode == 1
        assert not Path(place).exists()
    spaces = "ls -L -i /proc/self/ns/ipc /proc/self/ns/pid /proc/self/ns/mnt"
    assert inside("host1", "sh", "-c", spaces).stdout != inside("host2", "sh", "-c", spaces).stdout
    assert inside("host1", "ls", "/sys/class/net").stdout.split() == ["eth0", "lo"]
    ask = "python -c 'import os; print(*os.sched_getaffinity(0))'"
    first, second = (
        set(inside(host, "sh", "-c", ask).stdout.split()) for host in ("host1", "host2")
    )
    assert (first and not first & second) or len(os.sched_getaffinity(0)) < 2
    assert set(inside("host1", "ssh", "host2", ask).stdout.split()) == second
    assert machine() == lab


@pytest.mark.costly
def test_down_leaves_nothing_of_an_up_that_was_killed(lab_tools):
    """While it starts the third host, as its log shows."""
    remove_kept()
    KEPT.append(machine())
    argv = [sys.executable, "-m", "tests.kit.lab", "up", "--hosts", "3"]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL, cwd=REPOSITORY) as process:
        while not (STATE / "logs/host3").exists() and process.poll() is None:
            pass
        process.kill()
    assert "a lab is up already, or was never removed: " in lab_command("up").stderr
    remove_kept()
    assert lab_command("down").stdout == "there is no lab\n"
