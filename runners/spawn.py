"""``python -m runners.spawn --nproc-per-node 4 -m MODULE ARGUMENTS``: run a module on ranks of this host by torch.multiprocessing.

The ranks are forked from one process that has imported PyTorch, and so start within a fraction of a second.

For several hosts it is started once on each, by hand or by anything, with the same ``--nodes``, ``--master-addr`` and
``--master-port`` everywhere and ``--node-rank`` 0, 1, ...: the ranks meet at tcp://ADDR:PORT, which the first host serves::

    host1$ python -m runners.spawn --nodes 2 --node-rank 0 --master-addr host1 --nproc-per-node 4 -m runners.ddp
    host2$ python -m runners.spawn --nodes 2 --node-rank 1 --master-addr host1 --nproc-per-node 4 -m runners.ddp
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from measurement.addresses import LOOPBACK, free_port, holder_of, is_free
from measurement.errors import PlanError
from runners.hosts.names import use_interface
from runners.launchers.spawn import rank_environment

DEFAULT_PORT = 29500
IMPORTED_ONCE = ("torch", "torch._dynamo", "runners.rank.engine")
"""Before ranks are forked, so that they share it: importing takes each of them two seconds of a core. The first optimizer imports
the second. None of them starts a thread or touches a GPU, which a fork would not survive."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """This host among the others."""

    node_rank: int
    ranks: tuple[int, ...]
    """On each host."""
    master: tuple[str, int] | str
    """Host and port at which the ranks meet, or the path of the file in which they do."""


def main(argv: Sequence[str] | None = None) -> None:
    """Spawn the ranks and wait; the first that fails ends the others and gives the exit code 1."""
    parser = _arguments()
    given = parser.parse_args(argv)
    if not given.module:
        parser.error("give the module to run last: -m MODULE ARGUMENTS")
    try:
        node = this_node(given, os.environ)
        use_interface(given.network_interface)
    except (ValueError, PlanError) as error:
        parser.error(str(error))
    module, *arguments = given.module

    gc.disable()  # importing torch leaves no garbage, and looking for it takes long
    for needed in IMPORTED_ONCE:
        importlib.import_module(needed)
    import torch.multiprocessing

    gc.freeze()  # no rank looks at what all share, which would also copy it
    gc.enable()
    ranks = node.ranks[node.node_rank]
    try:
        torch.multiprocessing.start_processes(run_rank, args=(node, module, arguments), nprocs=ranks, start_method="fork")
    except (torch.multiprocessing.ProcessExitedException, torch.multiprocessing.ProcessRaisedException) as error:
        sys.exit(f"ringside: {error}")


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runners.spawn", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nproc-per-node", type=int, help="ranks on this host, as many as on each other")
    parser.add_argument("--ranks-per-node", help="or, where hosts differ, the ranks of every host: 2,1; the same on every host")
    parser.add_argument("--nodes", "--nnodes", type=int, help="hosts [1, or as many as --ranks-per-node names]")
    parser.add_argument("--node-rank", type=int, default=0, help="number of this host, from 0 [0]")
    parser.add_argument("--master-addr", help="name or address of host 0, which all reach; needed for several hosts [MASTER_ADDR]")
    ports = f"MASTER_PORT, else {DEFAULT_PORT}; on one host, a free one"
    parser.add_argument("--master-port", type=int, help=f"a port that is free there [{ports}]")
    parser.add_argument("--init-method", help="tcp://HOST:PORT in the place of both, or file://PATH: a new file that all hosts see")
    parser.add_argument("--network-interface", help="which one of every host's the ranks shall use, such as eth0")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="the module each rank runs, and its arguments")
    return parser


def this_node(given: argparse.Namespace, environment: Mapping[str, str]) -> Node:
    """What was given, checked.

    Raises:
        ValueError: it does not fit together, or the port is taken.
    """
    ranks = _ranks(given)
    if not 0 <= given.node_rank < len(ranks):
        raise ValueError(f"--node-rank {given.node_rank} lies outside --nodes {len(ranks)}; give 0 to {len(ranks) - 1}")
    return Node(node_rank=given.node_rank, ranks=ranks, master=_meeting(given, environment, nodes=len(ranks)))


def _ranks(given: argparse.Namespace) -> tuple[int, ...]:
    """How many ranks each host has."""
    nodes = 1 if given.nodes is None else given.nodes
    listed = given.ranks_per_node.split(",") if given.ranks_per_node else [given.nproc_per_node] * nodes
    if listed and listed == [None] * len(listed):
        raise ValueError("say --nproc-per-node N, or --ranks-per-node 2,1 where hosts differ")
    if not listed or not all(str(one).strip().isdigit() and int(one) > 0 for one in listed):
        told = f"--ranks-per-node {given.ranks_per_node}" if given.ranks_per_node else f"--nproc-per-node {given.nproc_per_node}"
        raise ValueError(f"{told} with --nodes {nodes}: at least 1 of each")
    ranks = tuple(map(int, listed))
    if given.nodes is not None and given.nodes != len(ranks):
        raise ValueError(f"--nodes {given.nodes} is not what --ranks-per-node {given.ranks_per_node} says; leave --nodes out")
    own = ranks[given.node_rank] if 0 <= given.node_rank < len(ranks) else None
    if given.ranks_per_node and given.nproc_per_node not in (None, own):
        raise ValueError(
            f"--nproc-per-node {given.nproc_per_node} is not what --ranks-per-node {given.ranks_per_node} says of host "
            f"{given.node_rank}; leave it out"
        )
    return ranks


def _meeting(given: argparse.Namespace, environment: Mapping[str, str], *, nodes: int) -> tuple[str, int] | str:
    """Where the ranks meet; a port of this host is seen to be free."""
    host, port = given.master_addr or environment.get("MASTER_ADDR"), given.master_port
    if port is None and environment.get("MASTER_PORT", "").isdigit():
        port = int(environment["MASTER_PORT"])
    if given.init_method is not None:
        method = urlsplit(given.init_method)
        if method.scheme == "file" and method.path:
            return str(method.path)
        if method.scheme != "tcp" or not method.hostname or not _port(method):
            raise ValueError(f"--init-method {given.init_method!r} is not known; give tcp://HOST:PORT or file:///a/new/file")
        host, port = method.hostname, _port(method)
    if nodes > 1 and host is None:
        raise ValueError("several hosts need --master-addr: the name or address of host 0, the same on every host")
    port = port or (free_port() if host is None else DEFAULT_PORT)
    if given.node_rank == 0 and not is_free(port):
        holder = holder_of(port) or "another process"
        where = f"port {port} of {socket.gethostname()}"
        raise ValueError(f"{where} is in use by {holder}; give another with --master-port, on every host")
    return host or LOOPBACK, port


def _port(method: SplitResult) -> int | None:
    try:
        return method.port
    except ValueError:
        return None


def run_rank(local_rank: int, node: Node, module: str, arguments: list[str]) -> None:
    """One rank: torchrun's variables, then the module as ``__main__``.

    It tells of an exception itself: torch (2.15) would leave a file of it in the temporary folder.
    """
    os.environ |= rank_environment(
        local_rank,
        node_rank=node.node_rank,
        ranks=node.ranks,
        master=node.master,
    )
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception:  # noqa: BLE001 - whatever the module raises, it is printed as Python prints it
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
