"""Two ranks that meet at a fixed place, PLACE, in the ways in which people have it; they know
nothing of Ringside."""

import http.server
import multiprocessing
import os
import sys
import threading
import urllib.request
from pathlib import Path

import torch
import torch.distributed as dist

PLACE = os.environ["PLACE"]
"""A port, which every way has alike."""


def train(rank=-1, meet_at="env://"):
    if not dist.is_initialized():
        dist.init_process_group(
            "gloo", init_method=meet_at, rank=rank, world_size=2 if rank >= 0 else -1
        )
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        while True:
            optimizer.zero_grad()
            model(torch.ones(8, 4)).sum().backward()
            optimizer.step()
    finally:
        dist.destroy_process_group()


def spawns(meet_at="env://"):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PLACE)
    torch.multiprocessing.spawn(train, (meet_at,), nprocs=2)


def meets_by_tcp():
    spawns(f"tcp://127.0.0.1:{PLACE}")


def meets_in_a_file():
    spawns(f"file://{Path.cwd()}/meeting")


def forks():
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=PLACE)
    ranks = [
        multiprocessing.get_context("fork").Process(target=train, args=(rank,)) for rank in range(2)
    ]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()


def serve_figures():
    server = http.server.HTTPServer(("", int(PLACE)), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def ask_for_figures(host):
    with urllib.request.urlopen(f"http://{host}:{PLACE}") as answer:
        assert b"own-figures" in answer.read()


def serves():
    """Rank 0 serves its figures, and asks for them."""
    if os.environ["RANK"] == "0":
        serve_figures()
        ask_for_figures("localhost")
    train()


def serves_from_the_last():
    """The last rank serves its figures, which the first asks its host for."""
    if os.environ["RANK"] == "1":
        serve_figures()
    dist.init_process_group("gloo")
    dist.barrier()
    if os.environ["RANK"] == "0":
        ask_for_figures(sys.argv[2])
    train()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
