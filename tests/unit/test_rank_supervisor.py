"""Real supervisors of real process trees, told what to do through the driver's server; the kernel says what the processes do."""

from __future__ import annotations

import math
import os
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
from pathlib import Path

import psutil
import pytest

from runners.probe.ringside_probe import rank_supervisor
from runners.probe.ringside_probe.rank_supervisor import ProcessTree, children_from_all_processes, children_from_tasks
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
"""A process in the kernel's hands: it waits until its child has begun its program, and that waits for a writer to a pipe."""


KEY_FILE = Path(tempfile.mkdtemp()) / "key"


@pytest.fixture
def supervisors():
    KEY_FILE.parent.mkdir(exist_ok=True)
    KEY_FILE.write_text("k")
    served = SupervisorServer(address="127.0.0.1", key="k")
    yield served
    served.close()
    shutil.rmtree(KEY_FILE.parent)


@contextmanager
def supervised(supervisors, program, *, rank=0):
    """A process that starts its supervisor as a rank does, and then runs a program."""
    begin = f"from runners.probe.ringside_probe.rank_supervisor import start; start(*{[supervisors.address, str(KEY_FILE)]}"
    with subprocess.Popen([sys.executable, "-c", f"{begin}, 'arm', 0, {rank}){program}"], cwd=REPOSITORY) as process:
        try:
            wait_until(lambda: rank in supervisors.of("arm", 0))
            yield process
        finally:
            supervisors.release("arm", 0)
            process.wait(20)


def states():
    """The kernel's letter of every process that was started here, supervisors apart."""
    found = [process.pid for process in started_processes() if not rank_supervisor.is_supervisor(process.pid)]
    return {pid: rank_supervisor.state(pid) for pid in found}


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


def test_a_rank_is_stopped_without_other_ranks_and_their_supervisors(supervisors):
    sleeps = "; import time; time.sleep(600)"
    with supervised(supervisors, sleeps) as first, supervised(supervisors, sleeps, rank=1) as second:
        tree = ProcessTree(first.pid)
        assert tree.stop(timeout_s=10) == {}
        assert states() == {first.pid: "T", second.pid: "S"}
        tree.go_on()
        supervisors.tell("arm", 0, "stop")
        assert states() == {first.pid: "T", second.pid: "T"}


SLEEPS = "; import time; time.sleep(600)"


def test_half_a_word_is_waited_for(supervisors):
    with supervised(supervisors, SLEEPS) as rank:
        connection = supervisors.of("arm", 0)[0].connection
        connection.sendall(b"sto")
        time.sleep(0.3)
        assert rank_supervisor.state(rank.pid) == "S"
        connection.sendall(b"p\ncont")
        wait_until(lambda: rank_supervisor.state(rank.pid) == "T")
        connection.sendall(b"inue\n")
        wait_until(lambda: rank_supervisor.state(rank.pid) == "S")


def test_a_connection_that_is_reset_after_stop_leaves_no_frozen_rank(supervisors):
    with supervised(supervisors, SLEEPS) as rank:
        one = supervisors.of("arm", 0)[0]
        one.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.connection.sendall(b"stop\n" * 50)
        one.connection.close()
        assert rank.wait(20) == -signal.SIGKILL


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_supervisor_that_is_told_to_end_takes_its_frozen_rank_with_it(supervisors, sent):
    with supervised(supervisors, SLEEPS) as rank:
        supervisors.tell("arm", 0, "stop")
        (own,) = [process.pid for process in started_processes() if rank_supervisor.is_supervisor(process.pid)]
        os.kill(own, sent)
        assert rank.wait(20) == -signal.SIGKILL


@pytest.mark.parametrize("frozen", [False, True])
def test_a_rank_does_not_outlive_its_supervisor(supervisors, frozen):
    with supervised(supervisors, SLEEPS) as rank:
        if frozen:
            supervisors.tell("arm", 0, "stop")
        (supervisor,) = (one for one in psutil.Process(rank.pid).children() if rank_supervisor.is_supervisor(one.pid))
        supervisor.kill()
        assert rank.wait(20) == -signal.SIGKILL


WITHOUT_PIDFDS = """
import errno, os
def pidfd_open(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")
os.pidfd_open = pidfd_open
from runners.probe.ringside_probe import rank_supervisor
rank_supervisor.watch({address!r}, {key_file!r}, "arm", "0", "0", "vm", str(os.getppid()))
"""


def test_a_rank_is_supervised_where_the_kernel_has_no_pidfds(supervisors):
    """Its supervisor ended with a traceback. The rank's parent, this process, does not reap it until its end was seen."""
    watches = WITHOUT_PIDFDS.format(address=supervisors.address, key_file=str(KEY_FILE))
    argv = f"[sys.executable, '-c', {watches!r}, {rank_supervisor.THIS_FILE!r}]"
    starts = f"import subprocess, sys, time; subprocess.Popen({argv}); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", starts], cwd=REPOSITORY) as rank:
        try:
            wait_until(lambda: 0 in supervisors.of("arm", 0))
            supervisors.tell("arm", 0, "stop")
            assert rank_supervisor.state(rank.pid) == "T"
            supervisors.tell("arm", 0, "continue")
            rank.kill()
            wait_until(lambda: supervisors.gone("arm", 0).get(0, math.inf) < math.inf)
        finally:
            rank.kill()


def test_a_process_that_does_not_stop_is_named(tmp_path, monkeypatch):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(rank_supervisor, "STOP_TIMEOUT_S", 0.2)
    with subprocess.Popen([sys.executable, "-c", WAITS_FOR_ITS_CHILD, pipe]) as process:
        tree = ProcessTree(process.pid)
        try:
            # With a child: an interpreter that starts waits for the disk in state D, too, and then does stop.
            wait_until(lambda: children_from_tasks(process.pid) and rank_supervisor.state(process.pid) == "D")
            said = tree.obey("stop")
            assert said.startswith(f"failed stop process {process.pid} (")
            assert said.endswith(", state D) did not stop within 0.2 s")
        finally:
            tree.kill()


def test_a_process_is_given_the_time_that_a_crowded_host_takes(tmp_path):
    """On two cores with a dozen ranks one got no core for five seconds, and its arm's launch was lost."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen([sys.executable, "-c", WAITS_FOR_ITS_CHILD, pipe]) as process:
        tree = ProcessTree(process.pid)
        try:
            wait_until(lambda: children_from_tasks(process.pid) and rank_supervisor.state(process.pid) == "D")
            late = threading.Timer(6, pipe.write_text, [""])
            late.start()
            assert tree.obey("stop") == "stop"
            late.join()
        finally:
            tree.kill()


def test_both_ways_to_find_children_agree():
    if not Path("/proc/thread-self/children").exists():
        pytest.skip("this kernel keeps no lists of children (CONFIG_PROC_CHILDREN)")
    with subprocess.Popen(["sleep", "60"]) as process:
        own = [child.pid for child in psutil.Process().children()]
        assert process.pid in own
        assert sorted(children_from_tasks(os.getpid())) == sorted(children_from_all_processes()(os.getpid())) == sorted(own)
        process.kill()
