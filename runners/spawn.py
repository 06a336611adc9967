"""``python -m runners.spawn --nproc-per-node N -- MODULE ARGS``: run a module on N ranks of this host by torch.multiprocessing."""

from __future__ import annotations

import argparse
import os
import runpy
import socket
import sys


def main() -> None:
    """Spawn the ranks and wait; the first that fails ends the others and gives the exit code 1."""
    import torch.multiprocessing

    parser = argparse.ArgumentParser(prog="python -m runners.spawn", description=__doc__)
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    port = _free_port()
    try:
        torch.multiprocessing.spawn(
            run_rank, args=(given.nproc_per_node, port, given.module, given.arguments), nprocs=given.nproc_per_node
        )
    except (torch.multiprocessing.ProcessExitedException, torch.multiprocessing.ProcessRaisedException) as error:
        sys.exit(f"ringside: {error}")


def run_rank(rank: int, world_size: int, port: int, module: str, arguments: list[str]) -> None:
    """One rank: torchrun's variables, then the module as ``__main__``."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
    }
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
