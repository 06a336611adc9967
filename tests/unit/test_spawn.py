"""``python -m runners.spawn`` on several hosts: which rank is where, and what it refuses before it
starts any."""

from __future__ import annotations

import socket

import pytest

from runners import spawn


def first(typed):
    return spawn.first_rank(spawn._arguments().parse_args([*typed.split(), "-m", "json.tool"]))


ON_SECOND_OF_THREE = "--nproc-per-node 2 --nnodes 3 --node-rank 1"


def test_ranks_follow_the_hosts():
    assert first(f"{ON_SECOND_OF_THREE} --master-addr host1 --master-port 1234") == {
        "MASTER_ADDR": "host1",
        "MASTER_PORT": "1234",
        "RANK": "2",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
    }


@pytest.mark.parametrize(
    ("flags", "met_at"),
    [("", ("host7", "4321")), ("--master-addr host8 --master-port 1234", ("host8", "1234"))],
)
def test_variables_say_where_ranks_meet_unless_flags_do(monkeypatch, flags, met_at):
    monkeypatch.setenv("MASTER_ADDR", "host7")
    monkeypatch.setenv("MASTER_PORT", "4321")
    environment = first(f"{ON_SECOND_OF_THREE} {flags}")
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == met_at


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--nnodes 2", "several hosts need --master-addr"),
        ("--nproc-per-node 2,1 --nnodes 3", "does not fit; give one number"),
        (
            "--nnodes 2 --node-rank 2 --master-addr h",
            "--node-rank 2 does not fit --nnodes 2; give 0 to 1",
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused(typed, message):
    with pytest.raises(ValueError, match=message):
        first(f"--nproc-per-node 1 {typed}")


def test_a_port_in_use_is_named():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} of {socket.gethostname()} is in use"):
            first(f"--nproc-per-node 1 --master-addr host1 --master-port {port}")
