"""Hosts that die, labs that were never finished, labs that cannot be made: whatever happened, ``lab down`` leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.cluster.conftest import beside, inside, lab_command
from tests.conftest import REPOSITORY, wait_until
from tests.kit.lab import cluster, namespaces
from tests.kit.lab.state import STATE

pytestmark = pytest.mark.costly("lab removal")


def test_a_host_dies_with_its_first_process(no_lab):
    assert lab_command("up").returncode == 0
    with beside("host2", "sh", "-c", "echo started; exec sleep 300", stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"started\n"
        network = namespaces.networks()["host2"]
        assert len(list(namespaces.processes_in([network]))) > 3
        os.kill(namespaces.init_of("host2"), signal.SIGKILL)
        assert process.wait(30) != 0
    wait_until(lambda: not list(namespaces.processes_in([network])))
    assert namespaces.init_of("host2") is None
    assert inside("host1", "true").returncode == 0
    done = inside("host2", "true")
    assert (done.returncode, "host2 is dead" in done.stderr) == (2, True)
    assert (cluster.takes_ssh("host1"), cluster.takes_ssh("host2")) == (True, False)


def test_down_twice_and_without_a_lab(no_lab):
    assert lab_command("down").stdout == "there is no lab\n"
    assert lab_command("up", "--hosts", "1").returncode == 0
    assert lab_command("down").stdout == "the lab is removed\n"
    assert lab_command("down").stdout == "there is no lab\n"
    done = inside("host1", "true")
    assert (done.returncode, "no lab is up" in done.stderr) == (2, True)


@pytest.mark.parametrize("stage", ["", "networks/switch", "networks/host1", "logs/host3"])
def test_down_after_an_up_that_was_killed(no_lab, stage):
    """At whatever moment: each stage is known by the file it begins with."""
    argv = [sys.executable, "-m", "tests.kit.lab", "up", "--hosts", "3"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=REPOSITORY) as process:
        while not (STATE / stage).exists() and process.poll() is None:
            pass
        process.kill()
    assert process.returncode == -signal.SIGKILL or stage == "logs/host3", "it was through before it could be killed"
    done = lab_command("up")
    assert done.returncode == 2
    assert "a lab is up already, or was never removed: python -m tests.kit.lab down" in done.stderr


def test_up_that_fails_leaves_nothing(no_lab, tmp_path):
    (tmp_path / "sshd").write_text("#!/bin/sh\necho no sshd today >&2\nexit 1\n")
    (tmp_path / "sshd").chmod(0o755)
    done = lab_command("up", env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == 2
    assert done.stderr.startswith("ringside: host1 did not start: ")
    assert not STATE.exists()
