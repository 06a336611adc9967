"""Measures the process group over MPI beside raw mpi4py and Gloo: all_reduce by size, and a step of
ResNet-18 under DDP.

    python benchmarks/process_group.py [--launches 3] [--seconds 40] [--ranks 2]

Starts ``mpirun`` several times. In each launch blocks of the same all_reduce alternate in random
order between the three implementations, on the same buffers. A block's time is the slowest rank's.
Printed by size: microseconds; what the group adds to raw MPI, as the median of the pairs with a 95%
interval; raw MPI's time / the group's and Gloo's time / the group's, with intervals over the
launches. Expected: raw / group of at least 0.95 from 1 MiB on, less than 40 us added up to 4 KiB,
Gloo / group above 1. The steps of ResNet-18 (32x32, synthetic) alternate too, each block on a
freshly built model. A rank has one core.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torchvision
from scipy import stats
from torch.nn.parallel import DistributedDataParallel

import backends.mpi.process_group  # noqa: F401 - registers "mpi4py"
from runners.launchers import read_own_world
from runners.processes.local import search_path
from runners.rank.resources import take_resources
from tests.kit.ratios import equal_work, ratio_interval

SIZES = [1024 * 4**power for power in range(9)]
BLOCK_S = 0.02
STEPS, WARMUP_STEPS, LOCAL_BATCH_SIZE = 4, 2, 8
Times = dict[str, list[dict[str, float]]]
"""Seconds of every round by implementation, for each size in bytes and for "resnet18"."""


def ways_to_reduce(size: int, raw: Any, gloo: Any) -> dict[str, Callable[[], Any]]:
    """Return one all_reduce of the same buffer, by implementation."""
    from mpi4py import MPI

    tensor = torch.zeros(size // 4)
    array = tensor.numpy()
    return {
        "raw": lambda: raw.Allreduce(MPI.IN_PLACE, array),
        "group": lambda: dist.all_reduce(tensor),
        "gloo": lambda: dist.all_reduce(tensor, group=gloo),
    }


def ways_to_train(gloo: Any) -> dict[str, Callable[[], float]]:
    """Return functions that time a step of ResNet-18 in seconds, by the group that DDP uses."""
    images, labels = (
        torch.randn(LOCAL_BATCH_SIZE, 3, 32, 32),
        torch.randint(10, (LOCAL_BATCH_SIZE,)),
    )

    def step_s(group: Any) -> float:
        model = DistributedDataParallel(
            torchvision.models.resnet18(num_classes=10), process_group=group
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        began = 0.0
        for step in range(WARMUP_STEPS + STEPS):
            if step == WARMUP_STEPS:
                dist.barrier(group=group)
                began = time.perf_counter()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        return (time.perf_counter() - began) / STEPS

    return {"group": lambda: step_s(None), "gloo": lambda: step_s(gloo)}


def block_s(reduce: Callable[[], Any], repeats: int) -> float:
    """Return the mean seconds of a call over a block of calls."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(repeats):
        reduce()
    return (time.perf_counter() - began) / repeats


def slowest(times: dict[str, float]) -> dict[str, float]:
    """Return the slowest rank's times. Collective."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, times)
    return {way: max(mine[way] for mine in everyone) for way in times}


def rank_main(seconds: float, seed: int, output: Path) -> None:
    """Run rounds over all sizes on one rank until the time is over. Rank 0 writes the times."""
    take_resources(read_own_world(), threads=1)
    dist.init_process_group("mpi4py", init_method="mpi4py://")
    gloo = dist.new_group(backend="gloo")
    from mpi4py import MPI

    raw = MPI.COMM_WORLD.Dup()
    rng = random.Random(seed)
    times: Times = {key: [] for key in [*map(str, SIZES), "resnet18"]}
    repeats = {}
    for size in SIZES:  # warm up, and find how often fits in a block
        first = {way: block_s(reduce, 3) for way, reduce in ways_to_reduce(size, raw, gloo).items()}
        repeats[size] = {
            way: max(1, min(1000, int(BLOCK_S / took))) for way, took in slowest(first).items()
        }
    began = time.monotonic()
    while True:
        for size in SIZES:
            ways = ways_to_reduce(size, raw, gloo)
            order = rng.sample(sorted(ways), k=len(ways))
            times[str(size)].append(
                slowest({way: block_s(ways[way], repeats[size][way]) for way in order})
            )
        training = ways_to_train(gloo)
        times["resnet18"].append(
            slowest({way: training[way]() for way in rng.sample(sorted(training), k=2)})
        )
        if slowest({"elapsed": time.monotonic() - began})["elapsed"] > seconds:
            break
    if dist.get_rank() == 0:
        output.write_text(json.dumps(times))
    raw.Free()
    dist.destroy_process_group()


def launch(ranks: int, seconds: float, seed: int) -> Times:
    """Start ``mpirun`` once and return its times."""
    as_root = (
        {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if os.geteuid() == 0
        else {}
    )
    local = {"OMPI_MCA_oob_tcp_if_include": "lo", "OMPI_MCA_btl_tcp_if_include": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "times.json"
        command = [
            "mpirun",
            "-np",
            str(ranks),
            "--oversubscribe",
            "--bind-to",
            "none",
            sys.executable,
            __file__,
        ]
        told = ["--seconds", str(seconds), "--rank", str(seed), str(output)]
        environment = os.environ | {"PATH": search_path()} | as_root | local
        done = subprocess.run(
            [*command, *told], check=False, env=environment, capture_output=True, text=True
        )
        if done.returncode or not output.exists():
            sys.exit(
                f"the ranks ended with code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            )
        found: Times = json.loads(output.read_text())
        return found


def ratio(launches: list[Times], key: str, way: str) -> str:
    """Write an implementation's time over the group's, with its interval."""
    tables = [
        equal_work([times["group"] for times in launch[key]], [times[way] for times in launch[key]])
        for launch in launches
    ]
    found = ratio_interval(tables, confidence=0.95)
    assert found is not None
    interval = f"({found.ci_low:.3f} to {found.ci_high:.3f})" if found.bounds else "(one launch)"
    return f"{found.value:6.3f} {interval}"


def added_us(launches: list[Times], key: str) -> str:
    """Write how many microseconds the group adds to raw MPI: the median of all pairs, with an
    interval by order statistics.
    """
    pairs = sorted(
        (times["group"] - times["raw"]) * 1e6 for launch in launches for times in launch[key]
    )
    low, high = stats.binom.interval(0.95, len(pairs), 0.5)
    return f"{np.median(pairs):8.1f} ({pairs[int(low)]:.1f} to {pairs[min(int(high), len(pairs) - 1)]:.1f})"


def median_us(launches: list[Times], key: str, way: str) -> float:
    """Return the median over all rounds in microseconds."""
    return float(np.median([times[way] for launch in launches for times in launch[key]]) * 1e6)


def main() -> None:
    """Launch the ranks and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40, help="of rounds in each launch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", nargs=2, metavar=("SEED", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank_main(given.seconds, int(given.rank[0]), Path(given.rank[1]))
        return
    launches = [launch(given.ranks, given.seconds, seed) for seed in range(given.launches)]
    print(
        f"all_reduce of float32, {given.ranks} ranks on one host, {given.launches} launches, {len(launches[0]['1024'])} rounds each"
    )
    print(
        f"{'bytes':>9} {'raw us':>9} {'group us':>9} {'gloo us':>9}  {'group adds us':<28}{'raw / group':<26}gloo / group"
    )
    for key in map(str, SIZES):
        medians = " ".join(
            f"{median_us(launches, key, way):9.1f}" for way in ("raw", "group", "gloo")
        )
        print(
            f"{key:>9} {medians}  {added_us(launches, key):<28}{ratio(launches, key, 'raw'):<26}{ratio(launches, key, 'gloo')}"
        )
    medians = ", ".join(
        f"{way} {median_us(launches, 'resnet18', way) / 1e3:.1f} ms" for way in ("group", "gloo")
    )
    print(f"ResNet-18 step: {medians}; gloo / group = {ratio(launches, 'resnet18', 'gloo')}")


if __name__ == "__main__":
    main()
