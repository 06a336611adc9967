"""What does it cost a block that the kernel's counters are read before and after it? It should be nothing.

    python benchmarks/sampling.py --output FOLDER [--launches 6] [--seconds 60]

DDP and its control, two ranks. Within each launch one block of every two, drawn at random, has its counters read, the other not:
in the ranks (threads, cores), and, drawn apart from these, in the supervisors, whom the driver asks for the hosts' counters.
Printed for both: throughput of a read block over that of the unread block of the same arm beside it, the mean over launches with
its 95% interval.
Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from benchmarks.plugins.unread import coin
from measurement.host_use import HostCounters
from measurement.plan_file import check_plan
from measurement.results import ResultsFolder
from reports.conclusions.blocks import tabulate_blocks
from reports.conclusions.steps import read_steps
from reports.statistics.means import mean_interval
from runners.cli import run_comparison
from runners.processes.supervisor_server import SupervisorServer

UNREAD = Path(__file__).parent / "plugins" / "unread.py"


def ask_sometimes() -> None:
    """Have the driver ask for the hosts' counters before and after one block of every two."""
    calls: dict[tuple[str, int], int] = {}
    ask = SupervisorServer.counters

    def counters(server: SupervisorServer, arm: str, launch: int) -> dict[str, HostCounters]:
        number = calls.setdefault((arm, launch), 0) // 2
        calls[arm, launch] += 1
        return ask(server, arm, launch) if coin(f"{arm} {launch}", number) else {}

    SupervisorServer.counters = counters  # type: ignore[method-assign]


def plan(launches: int, seconds: float) -> dict[str, Any]:
    """Return a plan of one arm and its control, all of whose blocks have exchange."""
    measurement = {"launches": launches, "seconds_per_launch": seconds, "local_every": 0}
    arm = {"backend": f"{UNREAD}:SometimesReadDDP", "transport": "gloo", "launcher": "torchrun"}
    return {"name": "sampling", "workload": "digits", "world_size": 2, "baseline": "ddp", "arms": {"ddp": arm}} | {
        "measurement": measurement
    }


def neighbours(folder: ResultsFolder) -> tuple[list[float], list[float]]:
    """Return launch by launch the mean log-ratio of read over unread blocks side by side: of ranks, and of supervisors."""
    records = folder.records()
    blocks = tabulate_blocks(read_steps(folder, records).that_count(records)).set_index(["launch", "turn"]).sort_index()
    asked = folder.host_use(records).dropna(subset="turn").set_index(["launch", "turn"]).index.unique()
    read = {(record.launch, block.turn): block.threads is not None for record in records for block in record.blocks}
    blocks = blocks.assign(by_ranks=pd.Series(read), by_supervisors=blocks.index.isin(asked))
    found = []
    for kind in ("by_ranks", "by_supervisors"):
        logs: dict[Any, list[float]] = {}
        for (launch, _), own in blocks.groupby(["launch", "arm"]):
            rates, kinds = own["throughput_per_s"].tolist(), own[kind].tolist()
            pairs = range(0 if kinds[0] != kinds[1] else 1, len(rates) - 1, 2)
            unlike = [i for i in pairs if kinds[i] != kinds[i + 1]]
            logs.setdefault(launch, []).extend((1 if kinds[i] else -1) * math.log(rates[i] / rates[i + 1]) for i in unlike)
        found.append([fmean(values) for values in logs.values()])
    return found[0], found[1]


def main() -> None:
    """Run it, or read it again, and print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--launches", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    if not (given.output / "comparison.json").exists():
        ask_sometimes()
        chosen = check_plan(plan(given.launches, given.seconds), source="sampling")
        run_comparison(chosen, ResultsFolder(given.output), path=Path(__file__))
    for name, launches in zip(("ranks", "supervisors"), neighbours(ResultsFolder(given.output)), strict=True):
        mean = mean_interval(launches, confidence=0.95)
        low, high = (math.exp(bound or math.nan) for bound in (mean.ci_low, mean.ci_high))
        print(f"read by {name}: {math.exp(mean.value):.4f} ({low:.4f} to {high:.4f}), {len(launches)} launches")


if __name__ == "__main__":
    main()
