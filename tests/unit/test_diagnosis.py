"""Who is blamed, in words: ranks that raise, die or hang, launchers that end, hosts that go.

Supervisors speak over real sockets, launchers are real short processes. Only the ranks' words are
made up.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
import time

import pytest

from measurement.agent.ringside_agent.supervision.rank_supervisor import GONE, greet
from measurement.errors import PlanError
from runners.hosts.placement import Placement
from runners.launchers import HERE, HostCommand, HostSlots
from runners.processes.remote_results import log_name
from runners.processes.sandbox import Sandbox
from runners.processes.supervisor_server import SupervisorServer
from runners.protocol import CheckReport, ErrorReply, GateReply, mentions_lost_peer
from runners.rank.worker import error_reply
from runners.session.arm_processes import LAUNCHER_LOG, LOG_LINES, ArmProcesses
from runners.session.diagnosis import Diagnosis
from tests.conftest import wait_until

ARM, LAUNCH, RUN = "ddp", 0, "test-of-diagnosis"


def raised(error, *, at_s):
    """The last words of a rank."""
    return ErrorReply(**{**error_reply(error), "at_s": at_s})


ANSWERED = GateReply(report=CheckReport(failures=[], not_offered={}))
"""The words of a rank that is well."""
DAMAGED = PlanError("image 'a.jpg' cannot be read")
LOST_PEER = RuntimeError("Connection closed by peer")
NO_MORE = ValueError("no more")
NOWHERE = "no-such-host.invalid"


def sandbox_of(root, users):
    """The folder of a script's start on this host alone."""
    return Sandbox(
        root=root,
        users=users,
        left_out=root.parent,
        hosts=[],
        are_offline=False,
        is_kept=False,
    )


class Scene:
    """An arm of three ranks: its supervisors, its launchers, and what is diagnosed of it."""

    def __init__(self, folder, hosts, *, here=(HERE, "host1")):
        self.folder, self.is_script, self.has_reported = folder, False, False
        self.sandbox: Sandbox | None = None
        self.placement = Placement(
            hosts=hosts, cores={entry.host: 2 for entry in hosts}, here=frozenset(here)
        )
        self.supervisors = SupervisorServer(address="127.0.0.1", key="k")
        self.ranks: dict[int, socket.socket] = {}
        self.processes = self.launched()

    @property
    def diagnosis(self):
        return Diagnosis(
            ARM,
            LAUNCH,
            supervisors=self.supervisors,
            processes=self.processes,
            placement=self.placement,
            run_id=RUN,
            may_end=self.is_script,
            has_reported=self.has_reported,
            sandbox=self.sandbox,
        )

    def launched(self, *scripts):
        """Launchers of this machine."""
        commands = [
            HostCommand(host=HERE, argv=("sh", "-c", script), environment={}) for script in scripts
        ]
        return ArmProcesses(commands, run_id=RUN, folder=self.folder, placement=self.placement)

    def launch(self, script):
        self.processes = self.launched(script)
        self.processes.start()

    def connect(self, *ranks, host="vm", clock_ahead_s=0.0):
        """Supervisors report, from a host of another name than the plan's."""
        address, _, port = self.supervisors.address.rpartition(":")
        for rank in ranks:
            who = [ARM, str(LAUNCH), "0", str(rank), "9", host, str(1000 + rank)]
            self.ranks[rank] = greet(
                (address, int(port)), "k", who, clock=lambda: time.time() + clock_ahead_s
            )
            wait_until(lambda rank=rank: rank in self.supervisors.heard(ARM, LAUNCH).ranks)

    def go(self, **at_s):
        """Ranks end at a time that their supervisors tell: ``r0=12.5``."""
        for rank, when in ((int(name[1:]), when) for name, when in at_s.items()):
            self.ranks[rank].sendall(f"{GONE} {rank} {when}\n".encode())
            self.ranks[rank].close()
            wait_until(lambda rank=rank: rank in self.supervisors.heard(ARM, LAUNCH).gone)

    def write_log(self, name, text):
        (self.folder / name).write_text(text)

    def close(self):
        for connection in self.ranks.values():
            connection.close()
        self.processes.end(kill_ranks=lambda: None)
        self.supervisors.close()


@pytest.fixture
def scene(tmp_path):
    with contextlib.closing(Scene(tmp_path, (HostSlots(host=HERE, slots=3),))) as made:
        yield made


@pytest.fixture
def two_hosts(tmp_path):
    """Ranks 0 and 1 on this machine under another name, rank 2 on a host that nobody reaches."""
    made = Scene(tmp_path, (HostSlots(host="host1", slots=2), HostSlots(host=NOWHERE, slots=1)))
    yield made
    made.processes.unreachable[NOWHERE] = "there is nothing to end on it"
    made.close()


def test_the_first_to_raise_is_blamed_and_not_those_that_lost_it(scene):
    scene.write_log(log_name(1), "step 7\nValueError: no more\n")
    scene.write_log(log_name(0), str(LOST_PEER))
    heard = {0: raised(LOST_PEER, at_s=12.5), 1: raised(NO_MORE, at_s=12.0), 2: ANSWERED}
    failed = scene.diagnosis.for_exit(heard)
    assert (failed.status, failed.failure.ranks) == ("failed", [1])
    assert failed.failure.message == "rank 1: ValueError: no more"
    assert failed.failure.log_tail == {log_name(1): "step 7\nValueError: no more"}


@pytest.mark.parametrize(
    ("launched", "went", "heard", "message"),
    [
        # bad input, even after a death
        ("exec sleep 60", {"r0": 11.0}, {1: raised(DAMAGED, at_s=12.0)}, "rank 1: "),
        # the launcher ended others, since it had failed
        ("exit 1", {"r0": 12.4}, {1: raised(NO_MORE, at_s=12.0)}, "rank 1: "),
        ("exec sleep 60", {"r0": 12.75, "r1": 12.25}, {}, "rank 1 died without reporting an "),
        # at the same time
        ("exec sleep 60", {"r1": 12.5, "r0": 12.5}, {}, "ranks 0, 1 died without reporting an "),
        # a busy host's supervisor learns of the death when the peer has told of it already
        ("exec sleep 60", {"r1": 12.5}, {0: raised(LOST_PEER, at_s=12.4)}, "rank 1 died without "),
    ],
)
def test_the_first_to_go_is_blamed_unless_another_had_raised_its_own_error(
    scene, launched, went, heard, message
):
    scene.launch(launched)
    scene.connect(0, 1, 2)
    scene.go(**went)
    failed = scene.diagnosis.for_exit(heard).failure
    assert failed.message.startswith(message)
    assert failed.ranks == ([0, 1] if "s 0, 1" in message else [1])


@pytest.mark.parametrize(
    "words",
    [
        str(LOST_PEER),
        "HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of the ranks",
        "DistBackendError: NCCL error: remote process exited or there was a network error",
        "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "ncclRemoteError: A call failed",
        "MPI_Abort(comm) was called",
    ],
)
def test_libraries_tell_of_a_lost_peer(words):
    assert mentions_lost_peer(words)


def test_the_last_lines_of_each_log_are_kept(scene):
    lines = [f"line {number}" for number in range(100)]
    scene.write_log(log_name(1), "\n".join(lines))
    assert scene.processes.log_tails([0, 1]) == {log_name(1): "\n".join(lines[-LOG_LINES:])}


def test_an_error_of_its_own_is_the_cause_though_another_tells_of_a_lost_peer_before(scene):
    """By clocks that differ."""
    heard = {0: raised(LOST_PEER, at_s=11.9), 1: raised(NO_MORE, at_s=12.0)}
    assert scene.diagnosis.for_errors(heard).failure.message == "rank 1: ValueError: no more"


def test_who_raised_first_is_the_cause_across_hosts_whose_clocks_differ(tmp_path):
    """The launcher kills the peers within a second; they were blamed, and the error was in no
    record."""
    hosts = (HostSlots(host="host1", slots=2), HostSlots(host="host2", slots=1))
    with contextlib.closing(Scene(tmp_path, hosts, here={"host1", "host2"})) as scene:
        scene.connect(0, 1)
        scene.connect(2, host="ahead", clock_ahead_s=100.0)
        now = time.time()
        scene.go(r0=now + 0.4, r1=now + 0.5)
        failed = scene.diagnosis.for_exit({2: raised(NO_MORE, at_s=now + 100.0)})
        assert failed.failure.message == "rank 2 on host2: ValueError: no more"
        later = scene.diagnosis.for_exit({2: raised(LOST_PEER, at_s=now + 101.0)})
        assert later.failure.message.startswith("rank 0 on host1 died without reporting an error; ")


def test_a_launcher_that_ended_before_any_rank_reported_is_told_with_its_code_and_its_words(scene):
    scene.launch("echo -----; echo no such module; echo '[1] lib.so(+0x1)[0x7f]'; exit 3")
    wait_until(scene.diagnosis.looks_dead)
    failed = scene.diagnosis.for_exit({})
    assert failed.failure.message == "the ranks did not report; the launcher ended with code 3"
    assert failed.failure.log_tail == {
        LAUNCHER_LOG: "-----\nno such module\n[1] lib.so(+0x1)[0x7f]"
    }
    assert failed.failure.excerpt == ["no such module"]


def test_what_a_script_raised_is_told_with_its_remedy_however_much_its_launcher_says_after_it(
    scene,
):
    scene.is_script = True
    raised = "Traceback (most recent call last):\\n  t.py, line 1\\nModuleNotFoundError: No module named its\\n"
    scene.launch(f"printf '{raised}'; seq 100; exit 3")
    wait_until(scene.diagnosis.looks_dead)
    message = "ModuleNotFoundError: No module named its; the launcher ended with code 3; the Python that ran it lacks this module: activate"
    assert scene.diagnosis.for_exit({}).failure.message.startswith(message)


def test_an_exception_is_at_the_line_of_the_users_file_and_not_of_its_copy(
    scene, tmp_path, monkeypatch
):
    """The results folder is in the current one, as by default; the copy is gone afterwards."""
    script, root = tmp_path / "train.py", tmp_path / "results" / "files-0"
    script.write_text("import its\n")
    scene.is_script, scene.sandbox = True, sandbox_of(root, tmp_path)
    scene.sandbox.make()
    monkeypatch.chdir(tmp_path)
    scene.launch(f"{sys.executable} {scene.sandbox.folder / 'train.py'}")
    wait_until(scene.diagnosis.looks_dead)
    failure = scene.diagnosis.for_exit({}).failure
    assert failure.message.startswith(
        "ModuleNotFoundError: No module named 'its', at train.py:1; the launcher ended with code 1;"
    )
    assert failure.excerpt == ["> 1 | import its"]


def test_an_arm_whose_ranks_and_launcher_live_is_not_dead(scene):
    scene.launch("exec sleep 60")
    scene.connect(0, 1, 2)
    assert not scene.diagnosis.looks_dead()
    assert scene.diagnosis.for_exit({}) is None
    scene.go(r1=12.5)
    assert scene.diagnosis.looks_dead()


def test_silence_is_a_timeout_of_those_that_did_not_answer_with_what_they_wrote_when_asked(scene):
    """A supervisor that is told to trace its rank answers when the rank has been sent the
    signal."""
    scene.connect(1)
    scene.ranks[1].sendall(b"trace\n")
    scene.write_log(log_name(1), "File 'model.py', line 3, in forward\n")
    failed = scene.diagnosis.for_timeout([1, 2], timeout_s=8)
    assert scene.ranks[1].recv(64) == b"trace\n"
    assert (failed.status, failed.failure.ranks) == ("timeout", [1, 2])
    assert failed.failure.message == "no answer from ranks 1, 2 within 8 s"
    assert failed.failure.log_tail == {log_name(1): "File 'model.py', line 3, in forward"}


@pytest.mark.parametrize(
    ("has_reported", "why"),
    [
        (False, "if its first steps take longer, raise start_timeout_s"),
        (True, "do its ranks take different numbers of steps?"),
    ],
)
def test_a_rank_of_a_script_that_is_late_is_told_by_what_it_was_waited_for(
    scene, has_reported, why
):
    scene.is_script, scene.has_reported = True, has_reported
    scene.connect(0, 1, 2)
    for connection in scene.ranks.values():
        connection.sendall(b"trace\n")
    failed = scene.diagnosis.for_timeout([0], timeout_s=8)
    assert failed.failure.message == f"no answer from rank 0 within 8 s; {why}"


def test_ranks_on_several_hosts_are_told_with_theirs_and_with_hosts_that_do_not_answer(two_hosts):
    two_hosts.processes.exit_codes = [0]  # what is left has been fetched before
    two_hosts.processes.unreachable[NOWHERE] = "no route"
    failure = two_hosts.diagnosis.for_errors({1: raised(NO_MORE, at_s=1.0)}).failure
    assert failure.message == "rank 1 on host1: ValueError: no more; no route"
    assert failure.hosts == ["host1"]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh here")
def test_a_lost_host_is_the_cause_of_all_that_its_ranks_took_with_them(two_hosts):
    """Rank 0 went first, as far as anybody heard; rank 2's host does not answer when it is asked
    for its logs."""
    two_hosts.connect(0, 1, 2)
    two_hosts.go(r0=12.25)
    failure = two_hosts.diagnosis.for_exit({1: raised(LOST_PEER, at_s=12.0)}).failure
    assert failure.message.startswith(f"rank 2 on {NOWHERE} lost with the host; ")
    assert f"host '{NOWHERE}': ssh: Could not resolve hostname" in failure.message
    assert (failure.ranks, failure.hosts) == ([2], [NOWHERE])
