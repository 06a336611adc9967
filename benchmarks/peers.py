"""Ringside beside what people use instead: how often each tells two equal commands apart, and how
often it finds 5%.

Each way has the same minutes for two commands, and all of them are asked in turn, each time
beginning with another:

- ``own``: the benchmark's own figure, one long run of each: "Total img/sec on 2 CPU(s): 24.3
  +-0.9". A reader calls the two different where these do not overlap. Horovod's
  pytorch_synthetic_benchmark.py prints 1.96 standard deviations of its iterations.
- ``hyperfine``: ten runs of each command. Its "1.05 ± 0.02 times faster" is read as a difference
  where the ± leaves 1 out. Left out where it is not installed.
- ``welch``: five launches of each, alternating, of which each gives the benchmark's figure; Welch's
  t over their logarithms, 95%.
- ``ringside``: ``ringside ab COMMAND COMMAND --minutes M``. A difference is a verdict of faster or
  slower.

Counted are false differences where both commands are the same, and differences found where each
step of the second takes 5% longer (plugins/slowed.py), each with its binomial interval (Clopper and
Pearson, 95%); and the mean half-width of the ratio.

    python benchmarks/peers.py --script PATH --output FOLDER [--minutes 5] [--repeats 20] [--flags
        FLAGS] [--launch COMMAND]

SCRIPT is Horovod's examples/pytorch/pytorch_synthetic_benchmark.py, or one that takes --num-iters
and prints such a figure last. Run it on an otherwise idle machine: it takes 2 × 4 × minutes ×
repeats. An existing FOLDER is continued.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

BIN = Path(sys.executable).parent
SLOWED = Path(__file__).parent / "plugins" / "slowed.py"
FIGURE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:\+-|±)\s*(\d+(?:\.\d+)?|nan)")
PLANTED = {"same": 0.0, "planted": 0.05}
RUNS, LAUNCHES, LONG, FEWEST = 10, 5, 10**6, 3


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is asked, and for how long."""

    script: Path
    flags: str
    launch: str
    output: Path
    minutes: float

    def command(self, share: float, iterations: int) -> str:
        """The command line of one run."""
        words = [
            *shlex.split(self.launch),
            str(SLOWED),
            str(share),
            str(self.script),
            *shlex.split(self.flags),
        ]
        return shlex.join([*words, "--num-iters", str(iterations)])

    def run(self, share: float, iterations: int) -> tuple[float, float]:
        """Run the command; its figure, and what it says is its error."""
        done = told(shlex.split(self.command(share, iterations)))
        found = FIGURE.findall(done.stdout)
        if done.returncode or not found:
            sys.exit(
                f"{self.command(share, iterations)} ended with code {done.returncode} and no figure:\n{done.stderr[-2000:]}"
            )
        return float(found[-1][0]), float(found[-1][1])

    def iterations(self, seconds: float) -> int:
        """How many fill so much time, starts included; found once by two short runs."""
        path = self.output / "iterations.json"
        if not path.exists():
            took = {
                number: seconds_of(lambda number=number: self.run(0.0, number)) for number in (2, 8)
            }
            each = max((took[8] - took[2]) / 6, 1e-3)
            path.write_text(json.dumps({"each_s": each, "start_s": took[2] - 2 * each}))
        known = json.loads(path.read_text())
        return max(int((seconds - known["start_s"]) / known["each_s"]), FEWEST)


def seconds_of(run: Callable[[], Any]) -> float:
    """Wall time of a call."""
    began = time.monotonic()
    run()
    return time.monotonic() - began


def told(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program; what it prints."""
    return subprocess.run(argv, check=False, env=environment(), capture_output=True, text=True)


def environment() -> dict[str, str]:
    """This one, with the programs of our Python first and a thread for each rank, as torchrun sets
    it.
    """
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "COLUMNS": "200",
    }
    return {"OMP_NUM_THREADS": "1", **os.environ, **allowed, "PATH": f"{BIN}:{os.environ['PATH']}"}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one way says of the two commands."""

    differs: bool
    half_width: float
    """Of the ratio, relative."""
    ratio: float
    """Of the second's speed to the first's."""


def own(setting: Setting, share: float, _: Path) -> Answer:
    iterations = setting.iterations(30 * setting.minutes)
    (a, error_a), (b, error_b) = setting.run(0.0, iterations), setting.run(share, iterations)
    return Answer(
        differs=abs(a - b) > error_a + error_b, half_width=error_a / a + error_b / b, ratio=b / a
    )


def hyperfine(setting: Setting, share: float, place: Path) -> Answer:
    iterations, found = (
        setting.iterations(30 * setting.minutes / RUNS),
        place.with_suffix(".hyperfine.json"),
    )
    commands = [setting.command(one, iterations) for one in (0.0, share)]
    subprocess.run(
        ["hyperfine", "--runs", str(RUNS), "--export-json", str(found), *commands],
        env=environment(),
        check=True,
    )
    a, b = json.loads(found.read_text())["results"]
    ratio, error = (
        a["mean"] / b["mean"],
        math.hypot(a["stddev"] / a["mean"], b["stddev"] / b["mean"]),
    )
    return Answer(
        differs=abs(max(ratio, 1 / ratio) - 1) > max(ratio, 1 / ratio) * error,
        half_width=error,
        ratio=ratio,
    )


def welch(setting: Setting, share: float, _: Path) -> Answer:
    iterations = setting.iterations(30 * setting.minutes / LAUNCHES)
    logs = np.log(
        [[setting.run(one, iterations)[0] for one in (0.0, share)] for _ in range(LAUNCHES)]
    )
    found = stats.ttest_ind(logs[:, 1], logs[:, 0], equal_var=False).confidence_interval(0.95)
    half = (found.high - found.low) / 2
    return Answer(
        differs=not found.low <= 0 <= found.high,
        half_width=math.expm1(half),
        ratio=math.exp(found.low + half),
    )


def ringside(setting: Setting, share: float, place: Path) -> Answer:
    commands = [setting.command(one, LONG) for one in (0.0, share)]
    asked = ["--minutes", str(setting.minutes), "--name-a", "a", "--name-b", "b", "-o", str(place)]
    done = told([str(BIN / "ringside"), "ab", *commands, *asked])
    stored = place / "comparison.json"
    if not stored.exists():
        sys.exit(f"ringside ab ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    (found,) = [
        one for one in json.loads(stored.read_text())["results"] if one["role"] == "candidate"
    ]
    half = (
        math.expm1(math.log(found["ci_high"] / found["ci_low"]) / 2)
        if found["ci_low"]
        else math.inf
    )
    return Answer(
        differs=found["verdict"] in ("faster", "slower"),
        half_width=half,
        ratio=found["throughput_ratio"],
    )


WAYS: Mapping[str, Callable[[Setting, float, Path], Answer]] = {
    one.__name__: one for one in (own, hyperfine, welch, ringside)
}


def asked(setting: Setting, way: str, truth: str, repetition: int) -> dict[str, Any]:
    """An answer with its minutes, from a file where it is known."""
    place = setting.output / f"{truth}-{repetition:02d}-{way}"
    path = place.with_suffix(".json")
    if not path.exists():
        began = time.monotonic()
        answer = WAYS[way](setting, PLANTED[truth], place)
        path.write_text(json.dumps({**vars(answer), "minutes": (time.monotonic() - began) / 60}))
    found: dict[str, Any] = json.loads(path.read_text())
    said = "different" if found["differs"] else "no difference"
    print(
        f"{place.name}: {said}, {found['ratio']:.3f} ±{found['half_width']:.1%}, {found['minutes']:.1f} min",
        flush=True,
    )
    return found


def counted(answers: list[dict[str, Any]]) -> str:
    """How many say that there is a difference, with the binomial interval."""
    number = sum(one["differs"] for one in answers)
    low, high = stats.binomtest(number, len(answers)).proportion_ci(0.95, method="exact")
    return f"{number} of {len(answers)} ({low:.0%} to {high:.0%})"


def main() -> None:
    """Ask all ways in turn, then print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0, help="of each way, for both commands")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument(
        "--flags",
        default="--no-cuda --model shufflenet_v2_x0_5 --batch-size 2",
        help="of the script",
    )
    parser.add_argument(
        "--launch",
        default="horovodrun --gloo -np 2 -H localhost:2 python",
        help="what starts its ranks",
    )
    parser.add_argument(
        "--only", nargs="*", choices=WAYS, default=list(WAYS), help="these ways alone"
    )
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    setting = Setting(
        script=given.script.resolve(),
        flags=given.flags,
        launch=given.launch,
        output=given.output.resolve(),
        minutes=given.minutes,
    )
    ways = [
        way
        for way in given.only
        if way != "hyperfine" or shutil.which("hyperfine", path=environment()["PATH"])
    ]
    if "hyperfine" in given.only and "hyperfine" not in ways:
        print("hyperfine is not installed, and is left out")
    found: dict[tuple[str, str], list[dict[str, Any]]] = {
        (way, truth): [] for way in ways for truth in PLANTED
    }
    for repetition in range(given.repeats):
        for truth in PLANTED:
            first = repetition % len(ways)
            for way in [*ways[first:], *ways[:first]]:
                found[way, truth].append(asked(setting, way, truth, repetition))
    print("\n| way | false differences | 5% found | half-width | minutes |\n|---|---|---|---|---|")
    for way in ways:
        same, planted = (found[way, truth] for truth in PLANTED)
        half, minutes = (
            float(np.mean([one[name] for one in [*same, *planted]]))
            for name in ("half_width", "minutes")
        )
        print(f"| {way} | {counted(same)} | {counted(planted)} | ±{half:.1%} | {minutes:.1f} |")


if __name__ == "__main__":
    main()
