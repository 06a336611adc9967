"""``python -m runners.spawn --nproc-per-node 4 -m MODULE ARGUMENTS``: run a module on ranks of this
host by torch.multiprocessing.

The ranks are forked from one process that has imported PyTorch, and so start within a fraction of a
second.

For several hosts it is started once on each, by hand or by anything, with the same ``--nnodes``,
``--master-addr`` and ``--master-port`` everywhere and ``--node-rank`` 0, 1, ...: the ranks meet at
tcp://ADDR:PORT, which the first host serves::

    host1$ python -m runners.spawn --nnodes 2 --node-rank 0 --master-addr host1 ...
    host2$ python -m runners.spawn --nnodes 2 --node-rank 1 --master-addr host1 ...
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
from collections.abc import Sequence

from measurement.addresses import LOOPBACK, free_port, is_free
from runners.launchers.torchrun import RANK_VARIABLES

NAMES = RANK_VARIABLES.names
DEFAULT_PORT = 29500
IMPORTED_ONCE = ("torch", "torch._dynamo", "runners.rank.engine")
"""Imported before ranks are forked, so that they share it: an import takes each of them two seconds
of a core. The first optimizer imports the second. None of them starts a thread or uses a GPU, which
a fork would not survive."""


def main(argv: Sequence[str] | None = None) -> None:
    """Spawn the ranks and wait; the first that fails ends the others and gives the exit code 1."""
    parser = _arguments()
    options = parser.parse_args(argv)
    if not options.module:
        parser.error("give the module to run last: -m MODULE ARGUMENTS")
    try:
        environment = first_rank(options)
    except ValueError as error:
        parser.error(str(error))
    module, *arguments = options.module

    gc.disable()  # importing torch leaves no garbage, and collecting takes long
    for needed in IMPORTED_ONCE:
        importlib.import_module(needed)
    import torch.multiprocessing

    gc.freeze()  # keeps ranks from scanning, and so copying, shared memory
    gc.enable()
    ranks = int(environment[NAMES.local_world_size])
    try:
        torch.multiprocessing.start_processes(
            run_rank, args=(environment, module, arguments), nprocs=ranks, start_method="fork"
        )
    except (
        torch.multiprocessing.ProcessExitedException,
        torch.multiprocessing.ProcessRaisedException,
    ) as error:
        sys.exit(f"ringside: {error}")


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runners.spawn",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--nproc-per-node",
        required=True,
        help="ranks on each host; where hosts differ, those of every host: 2,1",
    )
    parser.add_argument(
        "--nnodes", type=int, help="hosts [1, or as many as --nproc-per-node lists]"
    )
    parser.add_argument("--node-rank", type=int, default=0, help="number of this host, from 0 [0]")
    address = "name or address of host 0, which all reach; needed for several hosts [MASTER_ADDR]"
    parser.add_argument("--master-addr", default=os.environ.get("MASTER_ADDR"), help=address)
    port = f"a port that is free there [MASTER_PORT, else {DEFAULT_PORT}; on one host, a free one]"
    parser.add_argument("--master-port", type=int, default=os.environ.get("MASTER_PORT"), help=port)
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        help="the module each rank runs, and its arguments",
    )
    return parser


def first_rank(options: argparse.Namespace) -> dict[str, str]:
    """Return torchrun's variables as the first rank of this host has them.

    Raises:
        ValueError: the options do not fit together, or the port is taken.
    """
    listed = [int(text) if text.isdecimal() else 0 for text in options.nproc_per_node.split(",")]
    nodes = len(listed) if options.nnodes is None else options.nnodes
    ranks = listed if len(listed) > 1 else listed * nodes
    if len(ranks) != nodes or min(ranks, default=0) < 1:
        raise ValueError(
            f"--nproc-per-node {options.nproc_per_node} with --nnodes {nodes} does not fit; give"
            " one number of ranks for all hosts, or one for each such as 2,1: at least 1 of each"
        )
    if not 0 <= options.node_rank < nodes:
        raise ValueError(
            f"--node-rank {options.node_rank} does not fit --nnodes {nodes}; give 0 to {nodes - 1}"
        )
    host, port = _rendezvous(options, nodes=nodes)
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "GROUP_RANK": str(options.node_rank),
        NAMES.rank: str(sum(ranks[: options.node_rank])),
        NAMES.local_rank: "0",
        NAMES.world_size: str(sum(ranks)),
        NAMES.local_world_size: str(ranks[options.node_rank]),
    }


def _rendezvous(options: argparse.Namespace, *, nodes: int) -> tuple[str, int]:
    """Address and port where the ranks meet; a port of this host is checked to be free."""
    host, port = options.master_addr, options.master_port
    if nodes > 1 and host is None:
        raise ValueError(
            "several hosts need --master-addr: the name or address of host 0, the same on every"
            " host"
        )
    port = port or (free_port() if host is None else DEFAULT_PORT)
    if options.node_rank == 0 and not is_free(port):
        where = f"port {port} of {socket.gethostname()}"
        raise ValueError(
            f"{where} is in use by another process; give another with --master-port, on every host"
        )
    return host or LOOPBACK, port


def run_rank(
    local_rank: int, first_rank_variables: dict[str, str], module: str, arguments: list[str]
) -> None:
    """One rank: torchrun's variables, then the module as ``__main__``.

    It prints an exception itself: torch (2.15) would leave a file with it in the temporary folder.
    """
    rank = int(first_rank_variables[NAMES.rank]) + local_rank
    os.environ |= first_rank_variables | {
        NAMES.rank: str(rank),
        NAMES.local_rank: str(local_rank),
    }
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception:  # noqa: BLE001 - printed as Python prints it
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
