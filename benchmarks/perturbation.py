"""What does it cost that a comparison also asks why? It should be nothing: neither the counters
that are read, nor the floor.

    python benchmarks/perturbation.py counters --output FOLDER [--launches 6] [--seconds 60]
    python benchmarks/perturbation.py floor --output FOLDER [--launches 12] [--seconds 16]

``counters``: DDP and its control, two ranks. Within each launch one block of every two, drawn at
random, has the kernel's counters read before and after it, the other not: in the ranks (threads,
cores), and, drawn apart from these, in the supervisors, whom the driver asks for the hosts'
counters. Printed for both: throughput of a read block over that of the unread block of the same arm
beside it.

``floor``: Horovod and DDP over Gloo, launches with a floor beside them and launches without in
turn. Printed: the ratio of the arms with a floor over that without.

Each is the mean over launches with its 95% interval. Run it on an otherwise idle machine. An
existing FOLDER is read, or continued.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import yaml

from benchmarks.plugins.unread import coin
from measurement.agent.ringside_agent.supervision.rank_supervisor import COUNTERS
from measurement.plans.plan_file import check_plan
from measurement.records.block import HostCounters
from measurement.records.results import ResultsFolder
from reports import conclude
from reports.conclusions.steps import read_steps, tabulate_blocks
from reports.statistics.student import t_interval
from runners.compare_command import measure
from runners.processes.supervisor_server import SupervisorServer

UNREAD = Path(__file__).parent / "plugins" / "unread.py"
DDP = {"backend": "ddp", "transport": "gloo", "launcher": "torchrun"}
HOROVOD = {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"}


def plan(name: str, arms: dict[str, Any], **measurement: Any) -> dict[str, Any]:
    """Return a plan of these arms."""
    return {
        "name": name,
        "workload": "digits",
        "world_size": 2,
        "baseline": "ddp",
        "arms": arms,
        "measurement": measurement,
    }


def counters(output: Path, *, launches: int, seconds: float) -> None:
    """Toggle the reading of counters block by block, and print what it cost."""
    if not (output / "comparison.json").exists():
        ask_sometimes()
        arm = {**DDP, "backend": f"{UNREAD}:SometimesReadDDP"}
        chosen = plan(
            "counters", {"ddp": arm}, launches=launches, seconds_per_launch=seconds, local_every=0
        )
        measure(check_plan(chosen, source="counters"), ResultsFolder(output), again=[])
    by_ranks, by_supervisors = neighbours(ResultsFolder(output))
    tell("counters read by ranks", by_ranks)
    tell("counters read by supervisors", by_supervisors)


def ask_sometimes() -> None:
    """Have the driver ask for the hosts' counters before and after one block of every two."""
    calls: dict[tuple[str, int], int] = {}
    ask = SupervisorServer.tell

    def asked(
        server: SupervisorServer, arm: str, launch: int, *words: str
    ) -> dict[str, HostCounters]:
        if COUNTERS in words:
            number = calls.setdefault((arm, launch), 0) // 2
            calls[arm, launch] += 1
            words = (
                words
                if coin(f"{arm} {launch}", number)
                else tuple(word for word in words if word != COUNTERS)
            )
        return ask(server, arm, launch, *words)

    SupervisorServer.tell = asked  # type: ignore[method-assign]


def neighbours(folder: ResultsFolder) -> tuple[list[float], list[float]]:
    """Return launch by launch the mean log-ratio of read over unread blocks side by side: of ranks,
    and of supervisors.
    """
    records = folder.records()
    blocks = (
        tabulate_blocks(read_steps(folder, records).valid(records))
        .set_index(["launch", "turn"])
        .sort_index()
    )
    asked = (
        folder.host_use(records).dropna(subset="turn").set_index(["launch", "turn"]).index.unique()
    )
    read = {
        (record.launch, block.turn): block.threads is not None
        for record in records
        for block in record.blocks
    }
    blocks = blocks.assign(by_ranks=pd.Series(read), by_supervisors=blocks.index.isin(asked))
    found = []
    for kind in ("by_ranks", "by_supervisors"):
        logs: dict[Any, list[float]] = {}
        for (launch, _), own in blocks.groupby(["launch", "arm"]):
            rates, kinds = own["throughput_per_s"].tolist(), own[kind].tolist()
            pairs = range(0 if kinds[0] != kinds[1] else 1, len(rates) - 1, 2)
            unlike = [i for i in pairs if kinds[i] != kinds[i + 1]]
            logs.setdefault(launch, []).extend(
                (1 if kinds[i] else -1) * math.log(rates[i] / rates[i + 1]) for i in unlike
            )
        found.append([fmean(values) for values in logs.values()])
    return found[0], found[1]


def floor(output: Path, *, launches: int, seconds: float) -> None:
    """Compare with a floor and without in turn, and print by what the ratios differ."""
    arms = {"ddp": DDP, "horovod": HOROVOD}
    logs = []
    for number in range(launches):
        ratios = {}
        for has_floor in (True, False) if number % 2 else (False, True):
            name = f"{'with' if has_floor else 'without'}-{number:02d}"
            folder = output / name
            if not (folder / "comparison.json").exists():
                path = output / f"{name}.yaml"
                chosen = plan(
                    name,
                    arms,
                    launches=1,
                    seconds_per_launch=seconds,
                    control=False,
                    floor=has_floor,
                )
                path.write_text(yaml.safe_dump({**chosen, "seed": 1 + number}))
                command = [
                    sys.executable,
                    "-m",
                    "runners.cli",
                    "compare",
                    str(path),
                    "-o",
                    str(folder),
                ]
                subprocess.run(command, check=True, capture_output=True)
            (result,) = conclude(ResultsFolder(folder)).results
            assert result.throughput_ratio is not None
            ratios[has_floor] = math.log(result.throughput_ratio)
        logs.append(ratios[True] - ratios[False])
    tell("with a floor beside the arms", logs)


def tell(what: str, logs: Sequence[float]) -> None:
    """Print the mean of log-ratios as a ratio, with its interval."""
    mean = t_interval(logs, confidence=0.95)
    assert mean is not None
    low, high = (
        math.exp(math.nan if bound is None else bound) for bound in (mean.ci_low, mean.ci_high)
    )
    print(
        f"{what}: {math.exp(mean.value):.4f} ({low:.4f} to {high:.4f}), {len(logs)} launches",
        flush=True,
    )


def main() -> None:
    """Measure what is asked for, or read it again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("counters", "floor"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--launches", type=int)
    parser.add_argument("--seconds", type=float)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    if given.what == "counters":
        counters(given.output, launches=given.launches or 6, seconds=given.seconds or 60.0)
    else:
        floor(given.output, launches=given.launches or 12, seconds=given.seconds or 16.0)


if __name__ == "__main__":
    main()
