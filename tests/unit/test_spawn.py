"""``python -m runners.spawn`` on several hosts: which rank is where, and what it refuses before it
starts any."""

from __future__ import annotations

import socket

import pytest

from runners import spawn


def first(*arguments):
    return spawn.first_rank(
        spawn._arguments().parse_args([*arguments, "-m", "json.tool", "--help"])
    )


def test_ranks_follow_the_hosts():
    assert first(
        "--nproc-per-node",
        "2",
        "--nnodes",
        "3",
        "--node-rank",
        "1",
        "--master-addr",
        "host1",
        "--master-port",
        "1234",
    ) == {
        "MASTER_ADDR": "host1",
        "MASTER_PORT": "1234",
        "RANK": "2",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
    }


def test_variables_say_where_ranks_meet_unless_flags_do(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "host7")
    monkeypatch.setenv("MASTER_PORT", "4321")
    several = ("--nproc-per-node", "1", "--nnodes", "2", "--node-rank", "1")
    named = ("--master-addr", "host8", "--master-port", "1234")
    environments = [first(*several), first(*several, *named)]
    assert [
        (environment["MASTER_ADDR"], environment["MASTER_PORT"]) for environment in environments
    ] == [
        ("host7", "4321"),
        ("host8", "1234"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nnodes", "2"], "several hosts need --master-addr"),
        (["--nproc-per-node", "2,x"], "--nproc-per-node 2,x with --nnodes 2 does not fit"),
        (
            ["--nproc-per-node", "2,1", "--nnodes", "3"],
            "--nproc-per-node 2,1 with --nnodes 3 does not fit; give one number",
        ),
        (
            ["--nnodes", "2", "--node-rank", "2", "--master-addr", "h"],
            "--node-rank 2 does not fit --nnodes 2; give 0 to 1",
        ),
        (
            ["--nnodes", "0"],
            "--nproc-per-node 1 with --nnodes 0 does not fit; .*at least 1 of each",
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        first("--nproc-per-node", "1", *arguments)


def test_a_port_in_use_is_named(capsys):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as left:
            spawn.main(
                [
                    "--nproc-per-node",
                    "1",
                    "--master-addr",
                    "host1",
                    "--master-port",
                    str(port),
                    "-m",
                    "json.tool",
                ]
            )
    assert left.value.code == 2
    message = " ".join(capsys.readouterr().err.split())
    assert f"port {port} of {socket.gethostname()} is in use by another process" in message


def test_the_module_comes_last(capsys):
    with pytest.raises(SystemExit):
        spawn.main(["--nproc-per-node", "1"])
    assert "-m MODULE ARGUMENTS" in capsys.readouterr().err
