"""A lab for a module's tests, and the proof that nothing of it stays."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, ended_well, wait_until
from tests.kit.lab import cluster, namespaces, slurm
from tests.kit.lab.programs import program, require_programs, require_root
from tests.kit.lab.state import STATE, LabError, load_settings


def lab_command(*arguments, timeout=240, **options):
    """The lab's command line, as a contributor runs it."""
    argv = [sys.executable, "-m", "tests.kit.lab", *map(str, arguments)]
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=REPOSITORY,
        check=False,
        **options,
    )


def require(more=None):
    """Skip where no lab can be made; fail where it is required."""
    try:
        require_root()
        require_programs(more)
    except LabError as error:
        if "cluster" in os.environ.get("RINGSIDE_REQUIRE", ""):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def lab_tools():
    """A lab of the user's own is left alone."""
    require()
    if STATE.exists():
        pytest.fail(
            "a lab is up, or was left behind, and the tests make their own; remove it: python -m tests.kit.lab down"
        )


KEPT = []
"""What the machine was like before the lab that is up, which the next module has, too."""


@pytest.fixture(scope="module")
def lab(lab_tools):
    """Two hosts, links of 1 Gbit/s.

    They are made again where the module before has left one of them without its sshd."""
    if KEPT and not all(namespaces.listens(name, 22) for name in load_settings().names):
        remove_kept()
    if not KEPT:
        KEPT.append(make("--rate", "1gbit"))
    return KEPT[0]


@pytest.fixture(scope="session", autouse=True)
def removes_the_last():
    """When no module needs it any more."""
    yield
    remove_kept()


@pytest.fixture
def nothing_left(lab):
    """Hosts run no more than they ran before."""
    before = {host: len(processes_of(host)) for host in ("host1", "host2")}
    yield
    nothing_stays(before, seconds=60)


@pytest.fixture(scope="module")
def slurm_lab(lab_tools):
    """Two hosts that are nodes of a Slurm."""
    require(slurm.PACKAGES)
    remove_kept()
    KEPT.append(make("--slurm"))
    yield
    remove_kept()


def make(*flags):
    """Two hosts; returns what the machine was like before."""
    before = machine()
    ended_well(lab_command("up", "--hosts", "2", *flags))
    return before


def remove_kept():
    if KEPT:
        before = KEPT.pop()
        remove()
        assert machine() == before


def remove():
    """``lab down``, after which no process of the lab lives and nothing of it is mounted."""
    networks = list(namespaces.networks().values()) if STATE.exists() else []
    ended_well(lab_command("down"))
    assert list(namespaces.processes_in(networks)) == []
    assert namespaces.mounts() == []
    assert not STATE.exists()


def machine():
    """What a lab must not change: the machine's links and addresses, anybody's ssh files."""
    told = subprocess.run(
        [program("ip"), "-oneline", "address"], capture_output=True, text=True, check=True
    ).stdout
    addresses = [line.split()[1:4] for line in told.splitlines()]
    files = [
        *map(Path, ("/etc/ssh/ssh_config", "/etc/hosts", "/etc/shadow")),
        *sorted(Path.home().glob(".ssh/*")),
    ]
    # hashes: what a failed assertion shows is no secret
    return addresses, {
        file: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()
    }


def inside(host, *command, **options):
    """Run a command in a host of the lab, as a user does."""
    return lab_command("run", "--host", host, "--", *command, **options)


def beside(host, *command, **options):
    """Start a command in a host, to go on while another runs elsewhere."""
    argv = [sys.executable, "-m", "tests.kit.lab", "run", "--host", host, "--", *map(str, command)]
    return subprocess.Popen(argv, cwd=REPOSITORY, **options)


def processes_of(host):
    return set(namespaces.processes_in([namespaces.networks()[host]]))


def nothing_stays(before, *, seconds=20):
    """Hosts run no more than they ran before."""

    def as_few():
        return all(len(processes_of(host)) <= number for host, number in before.items())

    wait_until(as_few, seconds=seconds)


def enter(host, *command, timeout=240):
    """The same as ``inside``, without the second that another Python takes."""
    settings, pid = load_settings(), namespaces.init_of(host)
    argv = namespaces.enter_command(pid, folder=REPOSITORY, argv=list(map(str, command)))
    inner = cluster.inner_environment(settings)
    environment = {**inner, **os.environ, "PATH": inner["PATH"], "HOSTNAME": host}
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )
