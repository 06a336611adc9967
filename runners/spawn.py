"""``python -m runners.spawn --nproc-per-node 4 -m MODULE ARGUMENTS``: run a module on ranks of this host by torch.multiprocessing.

For several hosts it is started once on each, by hand or by anything, with the same ``--nodes``, ``--master-addr`` and
``--master-port`` everywhere and ``--node-rank`` 0, 1, ...: the ranks meet at tcp://ADDR:PORT, which the first host serves::

    host1$ python -m runners.spawn --nodes 2 --node-rank 0 --master-addr host1 --nproc-per-node 4 -m runners.ddp
    host2$ python -m runners.spawn --nodes 2 --node-rank 1 --master-addr host1 --nproc-per-node 4 -m runners.ddp
"""

from __future__ import annotations

import argparse
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from measurement.addresses import LOOPBACK, free_port, is_free
from measurement.errors import PlanError
from runners.hosts.network import use_interface
from runners.launchers.spawn import rank_environment

DEFAULT_PORT = 29500


@dataclass(frozen=True, kw_only=True)
class Node:
    """This host among the others."""

    nodes: int
    node_rank: int
    nproc_per_node: int
    master_addr: str
    master_port: int


def main(argv: Sequence[str] | None = None) -> None:
    """Spawn the ranks and wait; the first that fails ends the others and gives the exit code 1."""
    parser = _arguments()
    given = parser.parse_args(argv)
    if not given.module:
        parser.error("give the module to run last: -m MODULE ARGUMENTS")
    try:
        node = this_node(given)
        use_interface(given.network_interface)
    except (ValueError, PlanError) as error:
        parser.error(str(error))
    module, *arguments = given.module

    import torch.multiprocessing

    try:
        torch.multiprocessing.spawn(run_rank, args=(node, module, arguments), nprocs=node.nproc_per_node)
    except (torch.multiprocessing.ProcessExitedException, torch.multiprocessing.ProcessRaisedException) as error:
        sys.exit(f"ringside: {error}")


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runners.spawn", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nproc-per-node", type=int, required=True, help="ranks on this host, as many as on each other")
    parser.add_argument("--nodes", type=int, default=1, help="hosts [1]")
    parser.add_argument("--node-rank", type=int, default=0, help="number of this host, from 0 [0]")
    parser.add_argument("--master-addr", help="name or address of host 0, which all reach; needed for several hosts")
    parser.add_argument("--master-port", type=int, help=f"a port that is free there [{DEFAULT_PORT}; on one host, a free one]")
    parser.add_argument("--network-interface", help="which one of every host's the ranks shall use, such as eth0")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="the module each rank runs, and its arguments")
    return parser


def this_node(given: argparse.Namespace) -> Node:
    """What was given, checked.

    Raises:
        ValueError: it does not fit together, or the port is taken.
    """
    if given.nodes < 1 or given.nproc_per_node < 1:
        raise ValueError(f"--nodes {given.nodes} --nproc-per-node {given.nproc_per_node}: at least 1 of each")
    if not 0 <= given.node_rank < given.nodes:
        raise ValueError(f"--node-rank {given.node_rank} lies outside --nodes {given.nodes}; give 0 to {given.nodes - 1}")
    if given.nodes > 1 and given.master_addr is None:
        raise ValueError("--nodes above 1 needs --master-addr: the name or address of host 0, the same on every host")
    alone = given.nodes == 1 and given.master_addr is None
    port = given.master_port or (free_port() if alone else DEFAULT_PORT)
    if given.node_rank == 0 and not is_free(port):
        raise ValueError(f"port {port} of {socket.gethostname()} is in use; give another with --master-port, on every host")
    return Node(
        nodes=given.nodes,
        node_rank=given.node_rank,
        nproc_per_node=given.nproc_per_node,
        master_addr=given.master_addr or LOOPBACK,
        master_port=port,
    )


def run_rank(local_rank: int, node: Node, module: str, arguments: list[str]) -> None:
    """One rank: torchrun's variables, then the module as ``__main__``."""
    os.environ |= rank_environment(
        local_rank,
        node_rank=node.node_rank,
        nodes=node.nodes,
        nproc_per_node=node.nproc_per_node,
        master=(node.master_addr, node.master_port),
    )
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
