"""What the driver hears from scripts' ranks: real sockets, spoken to as the probe does."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import timedelta

import pytest

from runners.probe.ringside_probe.channel import Channel
from runners.probe.ringside_probe.supervision.rank_supervisor import greet
from runners.processes import greeting_server
from runners.protocol.messages import command_key, reply_key
from runners.scripts.probe_server import ProbeServer
from tests.conftest import wait_until

KEY = "the comparison's"
SHORT, LONG = timedelta(seconds=0.2), timedelta(seconds=20)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(greeting_server, "REFUSED_S", 0.2)
    with closing(ProbeServer(address="127.0.0.1", key=KEY)) as made:
        yield made


def connect(server, *, rank=0, start=0, arm="a/b", key=KEY, pid=7):
    host, _, port = server.address.rpartition(":")
    words = [arm, "1", str(start), str(rank)]
    return Channel(greet((host, int(port)), key, [*words, "here", str(pid), "2"]), key=key, rank=words)


def command(number):
    return command_key("a/b", 1, number)


def reply(number, rank=0):
    return reply_key("a/b", 1, number, rank)


def test_a_command_reaches_ranks_that_are_there_and_those_that_come(server):
    first = connect(server)
    wait_until(lambda: server.ranks_of("a/b", 1))
    server.set("a/b", 1, command(0), '{"do": "start"}')
    other = connect(server, rank=1)
    assert first.receive(timeout_s=20) == other.receive(timeout_s=20) == {"do": "start"}
    first.reply({"kind": "started", "text": "ä"})
    found = server.take("a/b", 1, [reply(0), reply(0, 1)], LONG)
    assert {place: json.loads(text) for place, text in found.items()} == {reply(0): {"kind": "started", "text": "ä"}}
    assert server.take("a/b", 1, [reply(0), reply(0, 1)], SHORT) == {}
    other.reply({"kind": "started"})
    assert set(server.take("a/b", 1, [reply(0), reply(0, 1)], LONG)) == {reply(0, 1)}
    assert {rank: (one.pid, one.world_size) for rank, one in server.ranks_of("a/b", 1).items()} == {0: (7, 2), 1: (7, 2)}


def test_a_command_is_answered_once(server):
    server.set("a/b", 1, command(0), '{"do": "start"}')
    channel = connect(server)
    channel.receive(timeout_s=20)
    channel.reply({"kind": "ended"})
    channel.reply({"kind": "started"})
    assert b"ended" in server.take("a/b", 1, [reply(0)], LONG)[reply(0)]


def test_a_second_process_of_a_rank_is_let_go_and_known(server):
    first = connect(server)
    wait_until(lambda: server.ranks_of("a/b", 1))
    second = connect(server, pid=8)
    assert second.receive(timeout_s=20) is None
    assert [one.pid for one in server.refused_of("a/b", 1)] == [8]
    first.close()


def test_who_does_not_have_the_key_is_let_go(server):
    assert connect(server, key="another").receive(timeout_s=20) is None
    assert not server.ranks_of("a/b", 1)


def test_a_reply_that_another_wrote_is_not_taken(server):
    server.set("a/b", 1, command(0), '{"do": "start"}')
    channel = connect(server)
    channel.receive(timeout_s=20)
    channel._key = "another"
    channel.reply({"kind": "started"})
    assert channel.receive(timeout_s=20) is None
    assert server.take("a/b", 1, [reply(0)], SHORT) == {}


def test_a_command_that_another_wrote_is_not_obeyed(server):
    channel = connect(server)
    channel._key = "another"
    server.set("a/b", 1, command(0), '{"do": "start"}')
    assert channel.receive(timeout_s=20) is None


def test_a_script_that_is_started_anew_gets_new_commands_only(server):
    old = connect(server)
    server.set("a/b", 1, command(0), '{"do": "start"}')
    assert old.receive(timeout_s=20)
    assert server.restart("a/b", 1) == 1
    assert old.receive(timeout_s=20) is None
    late = connect(server, start=0)
    assert late.receive(timeout_s=20) is None
    server.set("a/b", 1, command(1), '{"do": "finish"}')
    new = connect(server, start=1)
    assert new.receive(timeout_s=20) == {"do": "finish"}
    new.reply({"kind": "finished"})
    assert server.take("a/b", 1, [reply(1)], LONG)


@pytest.mark.slow
def test_nothing_is_kept_of_an_arm_that_was_released(server):
    channel = connect(server)
    server.set("a/b", 1, command(0), '{"do": "start"}')
    channel.receive(timeout_s=20)
    server.release("a/b", 1)
    assert channel.receive(timeout_s=20) is None
    assert connect(server).receive(timeout_s=0.5) is None, "no command waits for it"
    server.release("a/b", 1)
    assert not server.ranks_of("a/b", 1)
