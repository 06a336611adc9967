"""Measures what Ringside's own loop and timer cost, beside a bare hand-written loop.

    python benchmarks/overhead.py

Starts ``torchrun`` and ``horovodrun`` with two ranks, several launches each. In every rank a model is built once, and two kinds of
block train it in turn, in random order: Ringside's block, as it times every arm, and a bare loop as tutorials show it, timed by two
clock readings around all its steps. Printed: Ringside's throughput / the bare loop's, with its interval; at least 0.99 is wanted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from measurement.world import World
from reports.statistics.intervals import equal_work, ratio_interval
from runners.launchers import read_own_world
from runners.processes.local import search_path
from runners.protocol.messages import Job
from runners.rank.engine import Engine, start_engine
from runners.rank.resources import take_resources, threads_of
from runners.standalone.rendezvous import rendezvous_store

STEPS, WARMUP_STEPS = 20, 2
LAUNCHERS = {
    "ddp": ("torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"),
    "horovod": ("horovodrun", "--gloo", "-np", "2", "-H", "localhost:2", sys.executable),
}


def bare_block(engine: Engine, batches: Iterator[Any]) -> float:
    """Return the seconds of ``STEPS`` steps of the loop that a user would write."""
    model, optimizer = engine.trainer.joined.model, engine.trainer.joined.optimizer

    def train(steps: int) -> None:
        for _ in range(steps):
            images, labels = next(batches)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()

    train(WARMUP_STEPS)
    engine.backend.barrier()
    began = time.perf_counter()
    train(STEPS)
    return time.perf_counter() - began


def ringside_block(engine: Engine) -> float:
    """Return the seconds of ``STEPS`` steps by Ringside's loop and clock."""
    block = engine.trainer.run_block(steps=STEPS, warmup_steps=WARMUP_STEPS, local=False, rebuild=False)
    return math.fsum(map(math.fsum, block.phases_s))


def rank_main(backend: str, seconds: float, seed: int, output: Path) -> None:
    """Run pairs of blocks on one rank until the time is over. Rank 0 writes the slowest ranks' times."""
    world: World = read_own_world()
    job = Job(arm=backend, backend=backend, workload="digits", local_batch_size=32, world_size=world.world_size, seed=1)
    take_resources(world, threads=threads_of(world, asked=None, environment=os.environ))
    engine = start_engine(job, world, store=rendezvous_store(job, world))
    engine.trainer.build()
    batches = engine.trainer.new_batches()
    kinds: dict[str, Callable[[], float]] = {
        "bare": lambda: bare_block(engine, batches),
        "ringside": lambda: ringside_block(engine),
    }
    rng = random.Random(seed)
    began, pairs = time.monotonic(), []
    while True:
        order = rng.sample(sorted(kinds), k=2)
        mine = {kind: kinds[kind]() for kind in order}
        everyone = engine.backend.all_gather_object((mine, time.monotonic() - began > seconds), tuple[dict[str, float], bool])
        slowest = {kind: max(times[kind] for times, _ in everyone) for kind in kinds}
        pairs.append((slowest["ringside"], slowest["bare"]))
        if everyone[0][1]:
            break
    if world.rank == 0:
        output.write_text(json.dumps(pairs))
    engine.trainer.release()
    engine.backend.teardown()


def main() -> None:
    """Launch the ranks for both backends and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20, help="of blocks in each launch")
    parser.add_argument("--rank", nargs=3, metavar=("BACKEND", "SEED", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        backend, seed, output = given.rank
        rank_main(backend, given.seconds, int(seed), Path(output))
        return
    for backend, launcher in LAUNCHERS.items():
        with tempfile.TemporaryDirectory() as folder:
            launches = []
            for number in range(given.launches):
                output = Path(folder) / f"{number}.json"
                told = (__file__, "--seconds", str(given.seconds), "--rank", backend, str(number), str(output))
                environment = os.environ | {"PATH": search_path()}
                done = subprocess.run((*launcher, *told), check=False, env=environment, capture_output=True, text=True)
                if not output.exists():
                    sys.exit(f"{backend}: the ranks ended with code {done.returncode} and no result\n{done.stderr[-4000:]}")
                launches.append(equal_work(*zip(*json.loads(output.read_text()), strict=True)))
        found = ratio_interval(launches, confidence=0.95)
        assert found is not None and found.low is not None and found.high is not None
        print(
            f"{backend}: ringside / bare = {found.estimate:.4f}, 95% interval {found.low:.4f} to {found.high:.4f}, "
            f"{found.launches} launches, {found.pairs} pairs",
            flush=True,
        )


if __name__ == "__main__":
    main()
