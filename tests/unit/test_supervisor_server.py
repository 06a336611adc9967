"""What the driver hears from supervisors: real sockets, spoken to as ``host_relay`` does."""

import math
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta

import pytest

from measurement.agent.ringside_agent.agent import Channel
from measurement.agent.ringside_agent.supervision.frames import command_key, reply_key, say, seal
from measurement.agent.ringside_agent.supervision.rank_supervisor import greet, prove, receive_line
from measurement.errors import LaunchError
from runners.processes import supervisor_server
from runners.processes.supervisor_server import MAX_GREETINGS, SupervisorServer
from tests.conftest import wait_until

KEY = "the comparison's"


@pytest.fixture
def supervisors():
    served = SupervisorServer(address="127.0.0.1", key=KEY)
    yield served
    served.close()


def report(supervisors, rank, *, start=0, pid=None):
    host, _, port = supervisors.address.rpartition(":")
    return greet(
        (host, int(port)),
        KEY,
        ["arm", "0", str(start), str(rank), "9", "vm", str(pid or 1000 + rank)],
    )


def connect(supervisors, rank, **more):
    connection = report(supervisors, rank, **more)
    wait_until(lambda: rank in supervisors.heard("arm", 0).ranks)
    return connection


def channel_of(connection, rank=0):
    """What a rank has of the way to the driver."""
    return Channel(connection, key=KEY, arm="arm", launch=0, rank=rank)


@pytest.mark.parametrize(
    "sent", [b"", b"half a li", b"arm 0 0 vm 1 " + b"0" * 64 + b"\n", b"\xff\n", bytes(5000)]
)
def test_a_stranger_is_let_go_and_a_supervisor_is_served_after_it(supervisors, sent, monkeypatch):
    """A connection that closed before its line was whole kept a thread of the driver busy for
    ever."""
    monkeypatch.setattr(supervisor_server, "REFUSED_S", 0.2)
    before = set(threading.enumerate())
    host, _, port = supervisors.address.rpartition(":")
    for _ in range(3):
        with socket.create_connection((host, int(port)), timeout=10) as stranger:
            stranger.sendall(sent)
    connect(supervisors, 0).close()
    wait_until(lambda: set(threading.enumerate()) <= before)
    assert list(supervisors.heard("arm", 0).ranks) == [0]


def test_an_arm_that_is_started_anew_gets_new_commands_only(supervisors):
    old = channel_of(connect(supervisors, 0))
    supervisors.set("arm", 0, command_key("arm", 0, 0), "first")
    assert old.receive(timeout_s=20) == b"first"
    supervisors.restart("arm", 0, 1)
    with pytest.raises(ConnectionError, match="the supervisor of this rank has ended"):
        old.receive(timeout_s=20)
    with report(supervisors, 0) as late:
        assert late.recv(1) == b""
    supervisors.set("arm", 0, command_key("arm", 0, 1), "second")
    new = channel_of(connect(supervisors, 0, start=1))
    assert new.receive(timeout_s=20) == b"second"
    new.reply("done")
    new.reply("done twice")
    assert take(supervisors, reply_key("arm", 0, 1, 0)) == {reply_key("arm", 0, 1, 0): b"done"}
    with pytest.raises(TimeoutError, match="no command came"):
        new.receive(timeout_s=0.1)
    for channel in (old, new):
        channel.close()


def test_an_answer_that_was_heard_on_another_connection_proves_nothing(supervisors):
    host, _, port = supervisors.address.rpartition(":")
    who = ["arm", "0", "0", "0", "9", "vm", "77", "1.5"]
    with socket.create_connection((host, int(port)), timeout=10) as heard:
        answered = f"{' '.join(who)} {prove(KEY, receive_line(heard), *who)}\n".encode()
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        receive_line(stranger)
        stranger.sendall(answered)
        assert stranger.recv(1) == b""
    assert supervisors.heard("arm", 0).ranks == {}


@pytest.mark.slow
def test_strangers_that_say_nothing_do_not_keep_a_supervisor_out(supervisors, monkeypatch):
    monkeypatch.setattr(supervisor_server, "GREETING_TIMEOUT_S", 0.5)
    before = threading.active_count()
    host, _, port = supervisors.address.rpartition(":")
    strangers = [socket.create_connection((host, int(port)), timeout=10) for _ in range(300)]
    assert threading.active_count() <= before + 2 * MAX_GREETINGS
    connect(supervisors, 0).close()
    for stranger in strangers:
        stranger.close()


def test_ranks_that_went_are_told_in_the_order_of_their_going(supervisors):
    """A connection that broke in the middle of a line made its rank the first to go."""
    connections = [connect(supervisors, rank) for rank in range(5)]
    assert supervisors.heard("arm", 0).gone == {}
    for rank, last in [(0, b""), (1, b"gone 1 12.5\n"), (3, b"gone 3 12.25\n"), (4, b"gone 4 1")]:
        connections[rank].sendall(last)
        connections[rank].close()
    wait_until(lambda: len(supervisors.heard("arm", 0).gone) == 4)
    assert list(supervisors.heard("arm", 0).gone.items()) == [
        (3, 12.25),
        (1, 12.5),
        (0, math.inf),
        (4, math.inf),
    ]
    connections[2].close()


def test_a_rank_may_go_right_after_it_did_as_told(supervisors):
    connection = connect(supervisors, 0)
    connection.sendall(b"stop\ngone 0 3.5\n")
    supervisors.tell("arm", 0, "stop")
    connection.close()
    wait_until(lambda: supervisors.heard("arm", 0).gone == {0: 3.5})


@pytest.mark.slow
def test_a_connection_that_the_kernel_gives_up_is_a_rank_gone(supervisors):
    """ETIMEDOUT is a TimeoutError in Python, as is the end of one's own patience.

    Here the other end takes nothing more."""
    with connect(supervisors, 0):
        near = supervisors._arm("arm", 0).open_hosts[0].connection
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 100)
        near.settimeout(0)
        with suppress(BlockingIOError):
            while near.send(bytes(1 << 16)):
                pass
        wait_until(lambda: 0 in supervisors.heard("arm", 0).gone)


def test_a_supervisor_that_could_not_obey_is_an_error_that_says_why(supervisors):
    connection = connect(supervisors, 0)
    connection.sendall(b"failed stop 3 process 7 (python, state D) did not stop within 5 s\n")
    with pytest.raises(
        LaunchError, match=r"^rank 3 on vm: process 7 \(python, state D\) did not stop within 5 s$"
    ):
        supervisors.tell("arm", 0, "stop")
    connection.sendall(b"kill\n")
    supervisors.tell("arm", 0, "kill")
    connection.close()


def test_a_host_that_does_not_answer_is_named(supervisors, monkeypatch):
    monkeypatch.setattr(supervisor_server, "ACKNOWLEDGE_TIMEOUT_S", 0.2)
    connections = [connect(supervisors, rank) for rank in range(2)]
    connections[0].sendall(b"stop\n")
    with pytest.raises(
        LaunchError,
        match=r"^rank 1 on vm did not acknowledge 'stop': its supervisor does not answer$",
    ):
        supervisors.tell("arm", 0, "stop")
    for connection in connections:
        connection.close()


@pytest.mark.parametrize(
    "sent", ["failed counters 0 ImportError: no psutil", 'counters {"at_s": "NaN"}', "counters"]
)
def test_counters_that_a_supervisor_cannot_read_are_left_out(supervisors, sent):
    connection = connect(supervisors, 0)
    connection.sendall(f"{sent}\n".encode())
    assert supervisors.tell("arm", 0, "counters") == {}
    connection.sendall(b"stop\n")
    supervisors.tell("arm", 0, "stop")
    connection.close()


def test_ranks_that_have_ended_are_found_among_those_that_say_nothing(supervisors):
    """All are asked about at once, and words that wait to be read are kept."""
    talking, ended, silent = (connect(supervisors, rank) for rank in range(3))
    talking.sendall(b"stop\n")
    ended.sendall(b"gone 1 12.5\n")
    ended.close()
    wait_until(lambda: supervisors.heard("arm", 0).gone == {1: 12.5})
    for connection in (ended, silent):
        connection.close()
    supervisors.tell("arm", 0, "stop")
    talking.close()


def take(supervisors, *places, s=20):
    return supervisors.take("arm", 0, places, timedelta(seconds=s))


def test_who_does_not_wait_gets_what_has_come(supervisors):
    """An error that a rank had told of was not seen, and its death was the cause."""
    connect(supervisors, 0).sendall(say("0/arm/reply/0/0", seal(KEY, "0/arm/reply/0/0", "late")))
    time.sleep(0.2)
    assert take(supervisors, "0/arm/reply/0/0", s=0) == {"0/arm/reply/0/0": b"late"}
    assert take(supervisors, "0/arm/reply/0/0", s=0) == {}


def test_what_an_arm_sends_is_read_while_another_is_waited_for(supervisors):
    """The kernel ended a connection that was full and not read for 20 s, and with it the rank."""
    connection = connect(supervisors, 0)
    connection.settimeout(10)
    late = seal(KEY, "0/arm/reply/0/0", "late" * (4 << 20))
    sender = threading.Thread(target=connection.sendall, args=(say("0/arm/reply/0/0", late),))
    sender.start()
    deadline = time.monotonic() + 10
    while sender.is_alive() and time.monotonic() < deadline:
        supervisors.take("another", 0, ["0/another/reply/0/0"], timedelta(milliseconds=1))
    assert not sender.is_alive()
    assert len(take(supervisors, "0/arm/reply/0/0")["0/arm/reply/0/0"]) == 16 << 20


FORGED = {
    "plain": b'{"workload": "evil.py:C"}',
    "empty": b"",
    "no text": bytes([255, 0, 32, 32]),
    "another key": seal("another", "0/arm/job", "{}"),
    "of another place": seal(KEY, "0/arm/other", "{}"),
    "longer": seal(KEY, "0/arm/job", "{}") + b" ",
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_what_somebody_else_wrote_is_refused(supervisors, forged):
    connection = connect(supervisors, 0)
    connection.sendall(say("0/arm/job", forged))
    with pytest.raises(LaunchError, match="'0/arm/job' is not signed with this comparison's key"):
        take(supervisors, "0/arm/job")
    supervisors._arm("arm", 0).open_hosts[0].connection.sendall(say("0/arm/job", forged))
    with pytest.raises(
        ConnectionError, match="'0/arm/job' is not signed with this comparison's key"
    ):
        channel_of(connection).job()


@pytest.mark.parametrize(
    "sent", [b"say 0/arm/reply/0/0 -1\n", b"say 0/arm/reply/0/0 9999999999999\n", b"x" * 3_000_000]
)
def test_who_does_not_speak_as_supervisors_do_is_a_rank_gone(supervisors, sent):
    connection = connect(supervisors, 0)
    with suppress(OSError):
        connection.sendall(sent)
    wait_until(lambda: 0 in supervisors.heard("arm", 0).gone)
    connection.close()
