"""Measures what Ringside's own loop and timer cost, beside a bare hand-written loop.

    python benchmarks/overhead.py

Starts ``torchrun`` and ``horovodrun``, several launches each. In every rank a model is built once,
and two kinds of block train it in turn, in random order: Ringside's block, as it times every arm,
and a bare loop as tutorials show it, timed by two clock readings around all its steps. Asked twice:

- with two ranks and 32 samples each, as users train: Ringside's throughput / the bare loop's.
  Neighbours, and ranks that wait for each other, make such steps vary by a third, so that the
  interval is wide;
- with one rank and one sample, where a step takes a tenth and waits for nobody: by how many
  microseconds Ringside's takes longer. What its loop does in a step depends neither on the samples
  nor on the ranks, so this is what it costs in any step. Printed as a ratio in the two ranks' step,
  too, to be compared with the first.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from measurement.agent.ringside_agent.place import World
from runners.launchers import read_own_world
from runners.processes.local import search_path
from runners.protocol import Job
from runners.rank.engine import Engine, start_engine
from runners.rank.resources import take_resources, threads_of
from runners.rank.trainer import Batches
from runners.standalone.run import rendezvous_store
from tests.kit.ratios import equal_work, ratio_interval

WARMUP_STEPS = 2
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Setting:
    """How many ranks train what: ``samples`` per rank and step, ``steps`` in a block."""

    ranks: int
    samples: int
    steps: int


SETTINGS = {
    "two ranks": Setting(ranks=2, samples=32, steps=20),
    "loop alone": Setting(ranks=1, samples=1, steps=100),
}


def launcher(backend: str, ranks: int) -> list[str]:
    """Return the command that starts the ranks, without what they run."""
    if backend == "ddp":
        return [
            "torchrun",
            "--standalone",
            "--local-addr",
            "127.0.0.1",
            "--nproc-per-node",
            str(ranks),
        ]
    return ["horovodrun", "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}", sys.executable]


def bare_block(engine: Engine, batches: Iterator[Any], *, steps: int) -> float:
    """Return the seconds of ``steps`` steps of the loop that a user would write."""
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
    train(steps)
    return time.perf_counter() - began


def ringside_block(engine: Engine, *, steps: int) -> float:
    """Return the seconds of ``steps`` steps by Ringside's loop and clock."""
    block = engine.trainer.run_block(steps=steps, warmup_steps=WARMUP_STEPS, local=False)
    return math.fsum(map(math.fsum, block.phases_s))


def rank_main(backend: str, setting: Setting, seconds: float, seed: int, output: Path) -> None:
    """Run pairs of blocks on one rank until the time is over.

    Rank 0 writes the slowest ranks' times, in seconds a step.
    """
    world: World = read_own_world()
    job = Job(
        arm=backend,
        backend=backend,
        workload="digits",
        local_batch_size=setting.samples,
        world_size=setting.ranks,
        seed=1,
    )
    take_resources(world, threads=threads_of(world, asked=None, environment=os.environ))
    engine = start_engine(job, world, store=rendezvous_store(job, world))
    engine.trainer.build()
    batches = Batches(engine.trainer.workload, engine.trainer.world, engine.trainer.device)
    kinds: dict[str, Callable[[], float]] = {
        "bare": lambda: bare_block(engine, batches, steps=setting.steps),
        "ringside": lambda: ringside_block(engine, steps=setting.steps),
    }
    rng = random.Random(seed)
    began, pairs = time.monotonic(), []
    while True:
        order = rng.sample(sorted(kinds), k=2)
        mine = {kind: kinds[kind]() for kind in order}
        everyone = engine.backend.all_gather_object(
            (mine, time.monotonic() - began > seconds), tuple[dict[str, float], bool]
        )
        slowest = {
            kind: max(times[kind] for times, _ in everyone) / setting.steps for kind in kinds
        }
        pairs.append((slowest["ringside"], slowest["bare"]))
        if everyone[0][1]:
            break
    if world.rank == 0:
        output.write_text(json.dumps(pairs))
    engine.trainer.release()
    engine.backend.teardown()


def measure(
    backend: str, name: str, *, launches: int, seconds: float
) -> list[list[tuple[float, float]]]:
    """Return, by launch, pairs of seconds a step: Ringside's and the bare loop's."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(launches):
            output = Path(folder) / f"{number}.json"
            told = (
                __file__,
                "--seconds",
                str(seconds),
                "--rank",
                backend,
                name,
                str(number),
                str(output),
            )
            command = (*launcher(backend, SETTINGS[name].ranks), *told)
            done = subprocess.run(
                command,
                check=False,
                env=os.environ | {"PATH": search_path()},
                capture_output=True,
                text=True,
            )
            if not output.exists():
                sys.exit(
                    f"{backend}: the ranks ended with code {done.returncode} and no result\n{done.stderr[-4000:]}"
                )
            found.append(json.loads(output.read_text()))
    return found


def main() -> None:
    """Launch the ranks for both backends and print ratios and microseconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=4, help="of each backend and setting")
    parser.add_argument("--seconds", type=float, default=20, help="of blocks in each launch")
    parser.add_argument(
        "--rank", nargs=4, metavar=("BACKEND", "SETTING", "SEED", "FILE"), help=argparse.SUPPRESS
    )
    given = parser.parse_args()
    if given.launches < 2:
        parser.error(f"--launches is {given.launches}, but an interval needs two at least")
    if given.rank:
        backend, name, seed, output = given.rank
        rank_main(backend, SETTINGS[name], given.seconds, int(seed), Path(output))
        return
    for backend in ("ddp", "horovod"):
        together = measure(backend, "two ranks", launches=given.launches, seconds=given.seconds)
        found = ratio_interval(
            [equal_work(*zip(*pairs, strict=True)) for pairs in together], confidence=CONFIDENCE
        )
        assert found is not None and found.bounds is not None
        print(
            f"{backend}, two ranks: ringside / bare = {found.value:.4f}, {CONFIDENCE:.0%} interval {found.bounds[0]:.4f} to "
            f"{found.bounds[1]:.4f}, {found.launches} launches, {found.pairs} pairs",
            flush=True,
        )
        step_us = 1e6 * float(np.mean([np.mean(pairs, axis=0)[1] for pairs in together]))
        alone = measure(backend, "loop alone", launches=given.launches, seconds=given.seconds)
        longer_us = np.array([1e6 * float(np.subtract(*np.mean(pairs, axis=0))) for pairs in alone])
        half_us = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(alone) - 1) * stats.sem(longer_us))
        low_us, cost_us, high_us = (float(longer_us.mean()) + side * half_us for side in (-1, 0, 1))
        cost, low, high = (1 / (1 + longer / step_us) for longer in (cost_us, high_us, low_us))
        print(
            f"{backend}, loop alone: ringside takes {cost_us:.1f} us a step longer, {CONFIDENCE:.0%} interval {low_us:.1f} to "
            f"{high_us:.1f}, {len(alone)} launches; in the two ranks' step of {step_us / 1e3:.1f} ms "
            f"ringside / bare = {cost:.4f} ({low:.4f} to {high:.4f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
