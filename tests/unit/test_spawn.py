"""``python -m runners.spawn`` on several hosts: which rank is where, and what it refuses before it starts any."""

from __future__ import annotations

import socket

import pytest

from runners import spawn
from runners.launchers.spawn import rank_environment


def node(*arguments):
    return spawn.this_node(spawn._arguments().parse_args([*arguments, "-m", "json.tool", "--help"]))


def test_ranks_follow_the_hosts():
    second = node("--nproc-per-node", "2", "--nodes", "3", "--node-rank", "1", "--master-addr", "host1", "--master-port", "1234")
    assert (second.nodes, second.node_rank, second.nproc_per_node) == (3, 1, 2)
    assert rank_environment(1, node_rank=1, nodes=3, nproc_per_node=2, master=(second.master_addr, second.master_port)) == {
        "MASTER_ADDR": "host1",
        "MASTER_PORT": "1234",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
    }


def test_one_host_meets_on_loopback():
    alone = node("--nproc-per-node", "2")
    assert alone.master_addr == "127.0.0.1"
    assert alone.master_port > 1023


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "2"], "--nodes above 1 needs --master-addr"),
        (["--nodes", "2", "--node-rank", "2", "--master-addr", "h"], "--node-rank 2 lies outside --nodes 2; give 0 to 1"),
        (["--nodes", "0"], "--nodes 0 --nproc-per-node 1: at least 1 of each"),
    ],
)
def test_what_does_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        node("--nproc-per-node", "1", *arguments)


def test_a_port_in_use_is_named(capsys):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as left:
            spawn.main(["--nproc-per-node", "1", "--master-addr", "host1", "--master-port", str(port), "-m", "json.tool"])
    assert left.value.code == 2
    assert (
        f"port {port} of {socket.gethostname()} is in use; give another with --master-port, on every host"
        in capsys.readouterr().err
    )


def test_the_module_comes_last(capsys):
    with pytest.raises(SystemExit):
        spawn.main(["--nproc-per-node", "1"])
    assert "-m MODULE ARGUMENTS" in capsys.readouterr().err
