"""Real supervisors of real process trees, told what to do through the driver's server; the kernel
says what the processes do."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from measurement.agent.ringside_agent.supervision import host_relay, rank_supervisor
from measurement.agent.ringside_agent.supervision.rank_supervisor import (
    ProcessTree,
    children_from_tasks,
)
from runners.processes.supervisor_server import SupervisorServer
from tests.conftest import REPOSITORY, started_processes, wait_until

pytestmark = pytest.mark.usefixtures("no_processes_left")

FAMILY = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
if os.fork() == 0:
    subprocess.Popen(sleep)                          # a grandchild
    time.sleep(600)
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        os.execve(sleep[0], sleep, {**os.environ, "RINGSIDE_RUN": ""})  # a daemon, whose parent ends
    os._exit(0)
os.wait()
time.sleep(600)
"""
"""A rank with a child, a grandchild and a daemon."""

BREEDS = """
import os, time
while True:
    if os.fork() == 0:
        os.setsid()
        os.fork()
        time.sleep(0.002)
        os._exit(0)
    time.sleep(0.001)
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass
"""
"""A rank that never ceases to start processes, whose parents end at once."""

WAITS_FOR_ITS_CHILD = """
import os, sys
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
"""
"""A process in the kernel's hands: it waits until its child has begun its program, and that waits
for a writer to a pipe."""


SLEEPS = "; import time; time.sleep(600)"
KEY_FILE = Path(tempfile.gettempdir()) / f"key-of-tests-{os.getpid()}" / "key"


@pytest.fixture
def supervisors():
    KEY_FILE.parent.mkdir(exist_ok=True)
    # of each test its own, as of each comparison: supervisors meet by it
    KEY_FILE.write_text(key := secrets.token_hex(8))
    served = SupervisorServer(address="127.0.0.1", key=key)
    yield served
    served.close()
    shutil.rmtree(KEY_FILE.parent)


@contextmanager
def supervised(supervisors, program, *, rank=0):
    """A process that starts its supervisor as a rank does, and then runs a program."""
    begin = "from measurement.agent.ringside_agent import agent, place, settings"
    given = f"settings.Settings({supervisors.address!r}, {str(KEY_FILE)!r}, 'arm', 0)"
    starts = f"channel = agent.join({given}, place.World({rank}, 4)){program}"
    with subprocess.Popen([sys.executable, "-c", f"{begin}; {starts}"], cwd=REPOSITORY) as process:
        try:
            wait_until(lambda: rank in supervisors.heard("arm", 0).ranks)
            yield process
        finally:
            supervisors.release("arm", 0)
            process.wait(20)


def states():
    """The kernel's letter of every process that was started here, supervisors apart."""
    lines = [
        process.pid
        for process in started_processes()
        if not rank_supervisor.is_supervisor(process.pid)
    ]
    return {pid: rank_supervisor.state(pid) for pid in lines}


def test_a_rank_is_stopped_continued_and_killed_with_all_that_it_started(supervisors):
    with supervised(supervisors, FAMILY) as rank:
        wait_until(lambda: len(states()) == 4 and set(states().values()) == {"S"})
        family = set(states())
        for _ in range(3):
            supervisors.tell("arm", 0, "stop")
            assert states() == dict.fromkeys(family, "T")
            supervisors.tell("arm", 0, "continue")
            wait_until(lambda: states() == dict.fromkeys(family, "S"))
        supervisors.tell("arm", 0, "stop")
        supervisors.tell("arm", 0, "kill")
        assert rank.wait(20) == -signal.SIGKILL
        wait_until(lambda: not states())


def test_what_a_rank_starts_while_it_is_being_stopped_is_stopped_too(supervisors):
    with supervised(supervisors, BREEDS):
        for _ in range(20):
            supervisors.tell("arm", 0, "stop")
            stopped = states()
            assert stopped and set(stopped.values()) <= {"T", "Z"}
            assert states() == stopped
            supervisors.tell("arm", 0, "continue")


@pytest.fixture
def two_ranks(supervisors):
    """Two ranks of one host."""
    with (
        supervised(supervisors, SLEEPS) as first,
        supervised(supervisors, SLEEPS, rank=1) as second,
    ):
        yield first, second


def test_a_rank_is_stopped_without_other_ranks_and_their_supervisors(two_ranks):
    first, second = two_ranks
    tree = ProcessTree(first.pid)
    assert tree.stop(timeout_s=10) == {}
    assert states() == {first.pid: "T", second.pid: "S"}
    tree.go_on()


def connection_of(supervisors):
    """The driver's connection to the first supervisor of the arm's only host."""
    (host,) = supervisors._arm("arm", 0).open_hosts
    return host.connection


def test_a_connection_that_is_reset_after_stop_leaves_no_frozen_rank(supervisors):
    with supervised(supervisors, SLEEPS) as rank:
        connection = connection_of(supervisors)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(b"stop\n" * 50)
        supervisors.release("arm", 0)
        assert rank.wait(20) == -signal.SIGKILL


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_frozen_rank_does_not_outlive_its_supervisor(supervisors, sent):
    with supervised(supervisors, SLEEPS) as rank:
        supervisors.tell("arm", 0, "stop")
        supervisor_of(rank).send_signal(sent)
        assert rank.wait(20) == -signal.SIGKILL


WITHOUT_PIDFDS = """
import errno, os, socket
def pidfd_open(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")
os.pidfd_open = pidfd_open
from measurement.agent.ringside_agent.supervision import host_relay
way, _ = socket.socketpair()
host_relay.watch({address!r}, {key_file!r}, str(way.detach()), who=["arm", "0", "0", "0", "1", "vm", str(os.getppid())])
"""


def test_a_rank_is_supervised_where_the_kernel_has_no_pidfds(supervisors):
    """Its supervisor ended with a traceback.

    The rank's parent, this process, does not reap it until its end was seen."""
    watches = WITHOUT_PIDFDS.format(address=supervisors.address, key_file=str(KEY_FILE))
    argv = f"[sys.executable, '-c', {watches!r}, {rank_supervisor.THIS_FILE!r}]"
    starts = f"import subprocess, sys, time; subprocess.Popen({argv}); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", starts], cwd=REPOSITORY) as rank:
        try:
            wait_until(lambda: 0 in supervisors.heard("arm", 0).ranks)
            supervisors.tell("arm", 0, "stop")
            assert rank_supervisor.state(rank.pid) == "T"
            supervisors.tell("arm", 0, "continue")
            rank.kill()
            wait_until(lambda: supervisors.heard("arm", 0).gone.get(0, math.inf) < math.inf)
        finally:
            rank.kill()


def supervisor_of(process):
    """The supervisor that a rank started."""
    (supervisor,) = (
        child
        for child in psutil.Process(process.pid).children()
        if rank_supervisor.is_supervisor(child.pid)
    )
    return supervisor


ANSWERS = """
number = int(channel.job())
channel.receive()
channel.reply("x" * 1_000_000 * (number + rank))
channel.receive()
"""


def take_all(supervisors, *places):
    replies = {}
    while len(replies) < len(places):
        came = supervisors.take(
            "arm", 0, [place for place in places if place not in replies], timedelta(seconds=20)
        )
        assert came, f"only {sorted(replies)} came"
        replies |= came
    return replies


def test_the_ranks_of_a_host_share_a_connection_over_which_messages_pass(supervisors):
    """The second one comes late, and gets what the first has had."""
    supervisors.set("arm", 0, "0/arm/job", "5")
    supervisors.set("arm", 0, "0/arm/command/0", "start")
    programs = {rank: f"; rank = {rank}{ANSWERS}" for rank in (3, 0)}
    with (
        supervised(supervisors, programs[3], rank=3) as first,
        supervised(supervisors, programs[0]) as second,
    ):
        connection_of(supervisors)
        replies = take_all(supervisors, "0/arm/reply/0/0", "0/arm/reply/0/3")
        assert {place: len(text) for place, text in replies.items()} == {
            "0/arm/reply/0/0": 5e6,
            "0/arm/reply/0/3": 8e6,
        }
        supervisors.set("arm", 0, "0/arm/command/1", "end")
        assert (first.wait(20), second.wait(20)) == (0, 0)


def test_others_go_on_when_the_first_rank_of_a_host_has_ended(supervisors, two_ranks):
    first, second = two_ranks
    first.kill()
    first.wait(20)
    wait_until(lambda: list(supervisors.heard("arm", 0).gone) == [0])
    supervisors.tell("arm", 0, "stop")
    assert rank_supervisor.state(second.pid) == "T"
    assert supervisors.tell("arm", 0, "stop", "counters")


@pytest.mark.parametrize("goes", ["rank", "supervisor"])
def test_the_end_of_another_rank_is_told_with_its_time(supervisors, two_ranks, goes):
    """Where its supervisor ended, too: the first to go was told last."""
    _, other = two_ranks
    before = time.time()
    other.kill() if goes == "rank" else supervisor_of(other).kill()
    assert other.wait(20) == -signal.SIGKILL
    wait_until(lambda: 1 in supervisors.heard("arm", 0).gone)
    assert before <= supervisors.heard("arm", 0).gone[1] <= time.time()


def test_a_hosts_ranks_do_not_outlive_the_first_ones_supervisor(supervisors, two_ranks):
    supervisor_of(two_ranks[0]).kill()
    assert [rank.wait(20) for rank in two_ranks] == [-signal.SIGKILL] * 2
    wait_until(lambda: supervisors.heard("arm", 0).gone == {0: math.inf, 1: math.inf})


def test_a_second_process_of_a_rank_is_let_go(supervisors):
    """Such as two processes of a script that are rank 0 of 1 each."""
    with supervised(supervisors, SLEEPS) as first, supervised(supervisors, SLEEPS) as second:
        assert second.wait(20) == -signal.SIGKILL
        assert [
            (process.rank, process.pid, process.world_size)
            for process in supervisors.heard("arm", 0).refused
        ] == [(0, second.pid, 4)]
        supervisors.tell("arm", 0, "stop")
        assert rank_supervisor.state(first.pid) == "T"


def test_ranks_of_another_user_are_no_followers(supervisors, monkeypatch):
    """A socket in the kernel's abstract namespace asks nobody for a permission."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert host_relay._is_ours(ours)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert not host_relay._is_ours(ours)


@contextmanager
def in_the_kernels_hands(pipe):
    """A process that stops once somebody writes to this pipe."""
    os.mkfifo(pipe)
    with subprocess.Popen([sys.executable, "-c", WAITS_FOR_ITS_CHILD, pipe]) as process:
        tree = ProcessTree(process.pid)
        try:
            # With a child: an interpreter that starts waits for the disk in state D, too, and then
            # does stop.
            wait_until(
                lambda: (
                    children_from_tasks(process.pid) and rank_supervisor.state(process.pid) == "D"
                )
            )
            yield tree
        finally:
            tree.kill()


def test_a_process_that_does_not_stop_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_supervisor, "STOP_TIMEOUT_S", 0.2)
    with in_the_kernels_hands(tmp_path / "pipe") as tree:
        answer = tree.obey("stop")
        assert answer.startswith(f"process {tree.root} (")
        assert answer.endswith("(state D) did not stop within 0.2 s")


def test_a_process_is_given_the_time_that_a_crowded_host_takes(tmp_path):
    """On two cores with a dozen ranks one got no core for five seconds, and its arm's launch was
    lost."""
    pipe = tmp_path / "pipe"
    with in_the_kernels_hands(pipe) as tree:
        late = threading.Timer(6, pipe.write_text, [""])
        late.start()
        assert tree.obey("stop") == ""
        late.join()
