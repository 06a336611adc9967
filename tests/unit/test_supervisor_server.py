"""What the driver hears from supervisors: real sockets, spoken to as ``rank_supervisor.py`` does."""

import math
import socket
import threading
from contextlib import suppress

import pytest

from measurement.errors import LaunchError
from runners.probe.ringside_probe.rank_supervisor import greet, prove, receive_line
from runners.processes import greeting_server
from runners.processes.greeting_server import MOST_GREETINGS
from runners.processes.supervisor_server import SupervisorServer
from tests.conftest import wait_until

KEY = "the comparison's"


@pytest.fixture
def supervisors():
    served = SupervisorServer(address="127.0.0.1", key=KEY)
    yield served
    served.close()


def connect(supervisors, rank):
    host, _, port = supervisors.address.rpartition(":")
    connection = greet((host, int(port)), KEY, ["arm", "0", str(rank), "vm", str(1000 + rank)])
    wait_until(lambda: rank in supervisors.of("arm", 0))
    return connection


@pytest.mark.parametrize("said", [b"", b"half a li", b"arm 0 0 vm 1 " + b"0" * 64 + b"\n", b"\xff\n", bytes(5000)])
def test_a_stranger_is_let_go_and_a_supervisor_is_served_after_it(supervisors, said, monkeypatch):
    """A connection that closed before its line was whole kept a thread of the driver busy for ever."""
    monkeypatch.setattr(greeting_server, "REFUSED_S", 0.2)
    before = set(threading.enumerate())
    host, _, port = supervisors.address.rpartition(":")
    for _ in range(3):
        with socket.create_connection((host, int(port)), timeout=10) as stranger:
            stranger.sendall(said)
    connect(supervisors, 0).close()
    wait_until(lambda: set(threading.enumerate()) <= before)
    assert list(supervisors.of("arm", 0)) == [0]


def test_nobody_takes_the_place_of_a_ranks_supervisor(supervisors):
    """Not even with the key: what it was told would no longer reach the rank."""
    first = connect(supervisors, 0)
    known = supervisors.of("arm", 0)[0]
    host, _, port = supervisors.address.rpartition(":")
    with greet((host, int(port)), KEY, ["arm", "0", "0", "vm", "77"]) as second:
        assert second.recv(1) == b""
    assert supervisors.of("arm", 0)[0] is known
    first.close()


def test_an_answer_that_was_heard_on_another_connection_proves_nothing(supervisors):
    host, _, port = supervisors.address.rpartition(":")
    who = ["arm", "0", "0", "vm", "77", "1.5"]
    with socket.create_connection((host, int(port)), timeout=10) as heard:
        answered = f"{' '.join(who)} {prove(KEY, receive_line(heard), *who)}\n".encode()
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        receive_line(stranger)
        stranger.sendall(answered)
        assert stranger.recv(1) == b""
    assert supervisors.of("arm", 0) == {}


@pytest.mark.slow
def test_strangers_that_say_nothing_do_not_keep_a_supervisor_out(supervisors, monkeypatch):
    monkeypatch.setattr(greeting_server, "GREETING_TIMEOUT_S", 0.5)
    before = threading.active_count()
    host, _, port = supervisors.address.rpartition(":")
    strangers = [socket.create_connection((host, int(port)), timeout=10) for _ in range(300)]
    assert threading.active_count() <= before + 2 * MOST_GREETINGS
    connect(supervisors, 0).close()
    for stranger in strangers:
        stranger.close()


def test_ranks_that_went_are_told_in_the_order_of_their_going(supervisors):
    connections = [connect(supervisors, rank) for rank in range(4)]
    assert supervisors.gone("arm", 0) == {}
    for rank, last in [(0, b""), (1, b"gone 12.5\n"), (3, b"gone 12.25\n")]:
        connections[rank].sendall(last)
        connections[rank].close()
    wait_until(lambda: len(supervisors.gone("arm", 0)) == 3)
    assert list(supervisors.gone("arm", 0).items()) == [(3, 12.25), (1, 12.5), (0, math.inf)]
    connections[2].close()


def test_half_a_line_is_no_time_at_which_a_rank_went(supervisors):
    """A connection that broke in the middle of it made its rank the first to go."""
    connections = [connect(supervisors, rank) for rank in range(2)]
    for connection, last in zip(connections, [b"gone 12.5\n", b"gone 1"], strict=True):
        connection.sendall(last)
        connection.close()
    wait_until(lambda: len(supervisors.gone("arm", 0)) == 2)
    assert supervisors.gone("arm", 0) == {0: 12.5, 1: math.inf}


def test_a_rank_may_go_right_after_it_did_as_told(supervisors):
    connection = connect(supervisors, 0)
    connection.sendall(b"stop\ngone 3.5\n")
    supervisors.tell("arm", 0, "stop")
    connection.close()
    wait_until(lambda: supervisors.gone("arm", 0) == {0: 3.5})


def test_a_connection_that_the_kernel_gives_up_is_a_rank_gone(supervisors):
    """ETIMEDOUT is a TimeoutError in Python, as is the end of one's own patience. Here the other end takes nothing more."""
    with connect(supervisors, 0):
        near = supervisors.of("arm", 0)[0].connection
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 100)
        near.settimeout(0)
        with suppress(BlockingIOError):
            while near.send(bytes(1 << 16)):
                pass
        wait_until(lambda: 0 in supervisors.gone("arm", 0))


def test_a_supervisor_that_could_not_obey_is_an_error_that_says_why(supervisors):
    connection = connect(supervisors, 0)
    connection.sendall(b"failed stop process 7 (python, state D) did not stop within 5 s\n")
    with pytest.raises(LaunchError, match=r"^rank 0 on vm: process 7 \(python, state D\) did not stop within 5 s$"):
        supervisors.tell("arm", 0, "stop")
    connection.sendall(b"kill\n")
    supervisors.tell("arm", 0, "kill")
    connection.close()


@pytest.mark.parametrize("said", ["failed counters ImportError: no psutil", 'counters {"at_s": "NaN"}', "counters"])
def test_counters_that_a_supervisor_cannot_read_are_left_out(supervisors, said):
    connection = connect(supervisors, 0)
    connection.sendall(f"{said}\n".encode())
    assert supervisors.counters("arm", 0) == {}
    connection.sendall(b"stop\n")
    supervisors.tell("arm", 0, "stop")
    connection.close()


def test_ranks_that_have_ended_are_found_among_those_that_say_nothing(supervisors):
    """All are asked about at once, and words that wait to be read are kept."""
    talking, ended, silent = (connect(supervisors, rank) for rank in range(3))
    talking.sendall(b"stop\n")
    ended.sendall(b"gone 12.5\n")
    ended.close()
    wait_until(lambda: supervisors.gone("arm", 0) == {1: 12.5})
    assert supervisors.of("arm", 0)[0].pending == b"stop\n"
    talking.close()
    silent.close()
