"""Is a short block like a long training? Trains every arm of a plan alone and uninterrupted, and
compares with Ringside's ratio.

    python benchmarks/long_training.py plans/local.yaml [--pairs 50] [--seconds 20] [--beside
        RESULTS_FOLDER] [--output FILE]
    python benchmarks/long_training.py plans/local.yaml --in-turn RESULTS_FOLDER [--pairs 40]
        [--output FILE]

Each launch trains one arm by the bare loop below, which imports nothing of ``runners/`` or
``backends/``: built once, never stopped, never rebuilt, nothing else running. Steps before
``--skip`` seconds do not count. Launches of all arms alternate in random order, so that a pair of
them is close in time. Printed for each arm: the geometric mean over pairs of its total throughput
over the baseline's, with Student's t interval over pairs; with ``--beside`` also Ringside's ratio
from ``comparison.json``, how far the two are apart, with an interval, and the smallest bias that
this could have seen (the half-width of that interval). With ``--output`` each round's throughputs
are kept, a line of JSON each, and an existing FILE is continued.

With ``--in-turn`` every round also has one launch of ``ringside compare`` on the same plan, before
or after the long trainings. A machine's speed, and with it the ratio of two libraries, wanders over
hours; so taken, it wanders for both alike. Then the two are compared with each other round by
round: the geometric mean of Ringside's ratio of totals in a launch over the long trainings' ratio.

For DDP over Gloo under torchrun, and Horovod over Gloo and MPI under horovodrun, with each one's
options as they are by default.
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
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from bare_ranks import REPOSITORY, build_workload, join_ddp, join_horovod, launcher
from scipy import stats

STEPS_BETWEEN_LOOKS = 20
"""Ranks look together, by a small all_reduce, whether the time is over."""
CONFIDENCE = 0.95


def train(backend: str, plan: dict[str, Any], seconds: float, skip: float, output: Path) -> None:
    """Train on one rank until the time is over.

    Rank 0 writes samples per second of all ranks together.
    """
    variables = os.environ
    rank = int(
        variables.get(
            "RANK", variables.get("HOROVOD_RANK", variables.get("OMPI_COMM_WORLD_RANK", "0"))
        )
    )
    local = int(
        variables.get(
            "LOCAL_RANK",
            variables.get("HOROVOD_LOCAL_RANK", variables.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")),
        )
    )
    ranks = int(plan["world_size"])
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // ranks
    if share:
        os.sched_setaffinity(0, cores[local * share : (local + 1) * share])
    torch.set_num_threads(max(1, share))
    workload = build_workload(plan)
    torch.manual_seed(workload.seed)
    model = workload.build_model()
    step, agree = (join_ddp if backend == "ddp" else join_horovod)(workload, model)
    batches = workload.batches(rank=rank, world_size=ranks, device=torch.device("cpu"))
    began, samples, counted_from = time.perf_counter(), 0, 0.0
    for number, batch in enumerate(batches):
        samples += step(batch)
        if number % STEPS_BETWEEN_LOOKS == STEPS_BETWEEN_LOOKS - 1:
            elapsed = agree(time.perf_counter() - began)
            if not counted_from and elapsed > skip:
                counted_from, samples = time.perf_counter(), 0
            elif elapsed > skip + seconds:
                break
    took = time.perf_counter() - counted_from
    if rank == 0:
        output.write_text(json.dumps(samples * ranks / took))
    os._exit(0)  # libraries' teardowns are not what is measured


def measure(name: str, arm: dict[str, Any], given: argparse.Namespace, ranks: int) -> float:
    """Start one launch of an arm and return its throughput."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "throughput.json"
        told = [
            __file__,
            str(given.plan),
            "--seconds",
            str(given.seconds),
            "--skip",
            str(given.skip),
        ]
        command = [*launcher(arm, ranks), *told, "--rank", arm["backend"], str(output)]
        more = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
        }
        if os.geteuid() == 0:
            more |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        done = subprocess.run(
            command,
            check=False,
            env=os.environ | more,
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
        )
        if not output.exists():
            sys.exit(
                f"{name}: the ranks ended with code {done.returncode} and no result\n{done.stderr[-3000:]}"
            )
        return float(json.loads(output.read_text()))


def report(name: str, logs: list[float], beside: dict[str, Any] | None) -> str:
    """Write one arm's ratio in long trainings, and Ringside's beside it."""
    mean, error = float(np.mean(logs)), float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1)) * error
    low, high = math.exp(mean - half), math.exp(mean + half)
    said = (
        f"{name}: long training {math.exp(mean):.4f} ({low:.4f} to {high:.4f}), {len(logs)} pairs"
    )
    if beside is None:
        return said
    theirs = math.log(beside["throughput_ratio"])
    their_half = math.log(beside["ci_high"] / beside["ci_low"]) / 2
    both = math.hypot(half, their_half)
    apart = theirs - mean
    verdict = "they agree" if abs(apart) <= both else "they DISAGREE"
    return (
        f"{said}; Ringside {math.exp(theirs):.4f} ({beside['ci_low']:.4f} to {beside['ci_high']:.4f}); apart "
        f"{math.expm1(apart):+.2%} (±{both:.2%}): {verdict}, and a bias of {both:.1%} or more would have been seen"
    )


def ringside_launch(given: argparse.Namespace, number: int) -> dict[str, float]:
    """Have Ringside measure one more launch of the plan; returns each arm's ratio of totals to the
    baseline (and its control).
    """
    ringside = Path(sys.executable).parent / "ringside"
    length = [f"launches={number + 1}", "seconds_per_launch=22"]
    more = [word for one in length for word in ("--set", f"measurement.{one}")]
    command = [str(ringside), "compare", str(given.plan), "-o", str(given.in_turn), *more]
    # 1: an arm failed; its launch is missing then
    subprocess.run(command, check=False, capture_output=True, cwd=REPOSITORY)
    baseline, speeds = yaml.safe_load(given.plan.read_text())["baseline"], {}
    for table in sorted((given.in_turn / f"launch-{number:03d}").glob("*/steps.parquet")):
        steps = pd.read_parquet(table)
        sync = steps[steps["kind"] == "sync"]
        if len(sync):
            blocks = sync.groupby(["block", "rank"])["step_s"].sum().groupby("block").max()
            speeds[table.parent.name] = float(sync["samples"].sum() / blocks.sum())
    copies = [speeds.pop(name) for name in (baseline, f"{baseline}-control") if name in speeds]
    usual = math.exp(float(np.mean(np.log(copies))))
    return {name: speed / usual for name, speed in speeds.items()}


def report_in_turn(name: str, long: list[float], short: list[float]) -> str:
    """Write how far Ringside's ratios are from those of long trainings, round by round;
    logarithms.
    """
    apart = np.subtract(short, long)
    half = (
        float(stats.t.ppf((1 + CONFIDENCE) / 2, len(apart) - 1))
        * float(np.std(apart, ddof=1))
        / math.sqrt(len(apart))
    )
    mean = float(np.mean(apart))
    verdict = "they agree" if abs(mean) <= half else "they DISAGREE"
    return (
        f"{name}: long trainings {math.exp(np.mean(long)):.4f}, Ringside in turn {math.exp(np.mean(short)):.4f}, {len(apart)} "
        f"rounds; apart {math.expm1(mean):+.2%} (±{half:.2%}): {verdict}, and a bias of {half:.1%} or more would have been seen"
    )


def main() -> None:
    """Alternate launches of all arms and print the ratios as they come in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument(
        "--seconds", type=float, default=20, help="of steps that count, in each launch"
    )
    parser.add_argument("--skip", type=float, default=3, help="seconds before them")
    parser.add_argument(
        "--beside", type=Path, help="results folder of 'ringside compare' on the same plan"
    )
    parser.add_argument(
        "--in-turn",
        type=Path,
        help="results folder for launches of 'ringside compare' in turn with the trainings",
    )
    parser.add_argument("--output", type=Path, help="file to keep each round's throughputs in")
    parser.add_argument("--rank", nargs=2, metavar=("BACKEND", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    plan = yaml.safe_load(given.plan.read_text())
    if given.rank:
        train(given.rank[0], plan, given.seconds, given.skip, Path(given.rank[1]))
    beside = {}
    if given.beside:
        found = json.loads((given.beside / "comparison.json").read_text())
        beside = {result["candidate"]: result for result in found["results"]}
    baseline, arms = plan["baseline"], plan["arms"]
    rounds = (
        [json.loads(line) for line in given.output.read_text().splitlines()]
        if given.output and given.output.exists()
        else []
    )
    for number in range(len(rounds), given.pairs):
        chance = random.Random(number)
        order = chance.sample(sorted(arms), k=len(arms))
        comes_first = chance.random() < 0.5
        before = ringside_launch(given, number) if given.in_turn and comes_first else {}
        speeds = {name: measure(name, arms[name], given, plan["world_size"]) for name in order}
        ratios = before or (ringside_launch(given, number) if given.in_turn else {})
        shown = [*(f"{name} {speed:,.0f}/s" for name, speed in speeds.items())]
        shown += [f"Ringside {name} {ratio:.3f}" for name, ratio in ratios.items()]
        print(f"round {number + 1}: {', '.join(shown)}", flush=True)
        speeds |= {f"ringside {name}": ratio for name, ratio in ratios.items()}
        rounds.append(speeds)
        if given.output:
            with given.output.open("a") as kept:
                kept.write(json.dumps(speeds) + "\n")
    for name in arms:
        if name != baseline and len(rounds) > 1:
            print(
                report(
                    name,
                    [math.log(speeds[name] / speeds[baseline]) for speeds in rounds],
                    beside.get(name),
                )
            )
            both = [speeds for speeds in rounds if f"ringside {name}" in speeds]
            if len(both) > 1:
                long = [math.log(speeds[name] / speeds[baseline]) for speeds in both]
                print(
                    report_in_turn(
                        name, long, [math.log(speeds[f"ringside {name}"]) for speeds in both]
                    )
                )


if __name__ == "__main__":
    main()
