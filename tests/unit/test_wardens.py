"""What the driver hears from wardens: real sockets, spoken to as ``runners/warden.py`` does."""

import math
import socket
from contextlib import suppress

import pytest

from runners.wardens import Wardens
from tests.conftest import wait_until


@pytest.fixture
def wardens():
    served = Wardens(address="127.0.0.1")
    yield served
    served.close()


def connect(wardens, rank):
    host, _, port = wardens.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(f"{wardens.token} arm 0 {rank} vm {1000 + rank}\n".encode())
    wait_until(lambda: rank in wardens.of("arm", 0))
    return connection


def test_ranks_that_went_are_told_in_the_order_of_their_going(wardens):
    connections = [connect(wardens, rank) for rank in range(4)]
    assert wardens.gone("arm", 0) == {}
    for rank, last in [(0, b""), (1, b"gone 12.5\n"), (3, b"gone 12.25\n")]:
        connections[rank].sendall(last)
        connections[rank].close()
    wait_until(lambda: len(wardens.gone("arm", 0)) == 3)
    assert list(wardens.gone("arm", 0).items()) == [(3, 12.25), (1, 12.5), (0, math.inf)]
    connections[2].close()


def test_a_rank_may_go_right_after_it_did_as_told(wardens):
    connection = connect(wardens, 0)
    connection.sendall(b"stop\ngone 3.5\n")
    wardens.tell("arm", 0, "stop")
    connection.close()
    wait_until(lambda: wardens.gone("arm", 0) == {0: 3.5})


def test_a_connection_that_the_kernel_gives_up_is_a_rank_gone(wardens):
    """ETIMEDOUT is a TimeoutError in Python, as is the end of one's own patience. Here the other end takes nothing more."""
    with connect(wardens, 0):
        near = wardens.of("arm", 0)[0].connection
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 100)
        near.settimeout(0)
        with suppress(BlockingIOError):
            while near.send(bytes(1 << 16)):
                pass
        wait_until(lambda: 0 in wardens.gone("arm", 0))
