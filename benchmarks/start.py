"""How much longer does a launch take to start than the same commands bare?

    python benchmarks/start.py [plans/local.yaml] [--rounds 8] [--output FOLDER]

In each round, in random order: one launch of ``ringside compare``, and the same ranks bare
(``bare_ranks.py``), started the same way and all at once: as many arms, control and no-op backend
included, of as many ranks. Ringside's start lasts until all ranks are connected and have their
model (``start_s`` of its records). A bare start lasts until the last rank has wrapped its model.
Printed: both in seconds, and the geometric mean of their ratios with Student's t interval over
rounds. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from bare_ranks import REPOSITORY, launcher

from measurement.plans.plan import FLOOR
from reports.statistics.student import log_interval
from runners.planning.plan_reading import read_plan

BARE = str(Path(__file__).parent / "bare_ranks.py")
NOBODY: dict[str, Any] = {"backend": "none"}
"""The no-op backend's bare ranks: processes that know nothing of each other."""


def commands_of(given: argparse.Namespace, folder: Path) -> list[list[str]]:
    """Return the bare commands of all arms of a launch."""
    plan, content = read_plan(given.plan), yaml.safe_load(given.plan.read_text())
    ranks, commands = plan.world_size, []
    for name, role in plan.roles().items():
        arm = (
            NOBODY
            if role == "floor"
            else content["arms"][plan.baseline if role == "control" else name]
        )
        started = [[sys.executable]] * ranks if name == FLOOR else [launcher(arm, ranks)]
        commands += [[*one, BARE, str(given.plan), arm["backend"], str(folder)] for one in started]
    return commands


def bare_start_s(given: argparse.Namespace, rng: random.Random) -> float:
    """Start all arms bare, at once. Returns seconds until the last rank was ready."""
    more = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
    }
    if os.geteuid() == 0:
        more |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = commands_of(given, folder)
        rng.shuffle(commands)
        began = time.time()
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started = [
            subprocess.Popen(command, env=os.environ | more, cwd=REPOSITORY, **quiet)
            for command in commands
        ]
        for process in started:
            process.wait(timeout=180)
        ready = [float(path.read_text()) for path in folder.iterdir()]
        plan = read_plan(given.plan)
        if len(ready) != plan.world_size * len(plan.roles()):
            sys.exit(
                f"{len(ready)} bare ranks became ready, {plan.world_size * len(plan.roles())} were started"
            )
        return max(ready) - began


def ringside_start_s(given: argparse.Namespace, number: int) -> float:
    """Have Ringside make one more launch. Returns the seconds of its start."""
    lengths = (f"launches={number + 1}", "rounds=4", "rehearsal=never")
    more = [word for one in lengths for word in ("--set", f"measurement.{one}")]
    folder = given.output / "ringside"
    command = [
        str(Path(sys.executable).parent / "ringside"),
        "compare",
        str(given.plan),
        "-o",
        str(folder),
        *more,
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=REPOSITORY)
    records = [
        json.loads(path.read_text()) for path in folder.glob(f"launch-{number:03d}/*/record.json")
    ]
    if not records or any(record["status"] != "ok" for record in records):
        sys.exit(f"ringside compare ended with code {done.returncode}\n{done.stderr[-2000:]}")
    return float(max(record["start_s"] for record in records))


def main() -> None:
    """Alternate both ways of starting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path, nargs="?", default=REPOSITORY / "plans" / "local.yaml")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument(
        "--output", type=Path, help="folder for Ringside's results. [a temporary one]"
    )
    given = parser.parse_args()
    given.output = given.output or Path(tempfile.mkdtemp(prefix="start-"))
    took: list[tuple[float, float]] = []
    for number in range(given.rounds):
        rng = random.Random(number)
        if rng.random() < 0.5:
            ringside_s, bare_s = ringside_start_s(given, number), bare_start_s(given, rng)
        else:
            bare_s, ringside_s = bare_start_s(given, rng), ringside_start_s(given, number)
        took.append((ringside_s, bare_s))
        print(
            f"round {number + 1}: Ringside {ringside_s:.1f} s, bare {bare_s:.1f} s, ratio {ringside_s / bare_s:.3f}",
            flush=True,
        )
    if len(took) > 1:
        logs = [math.log(ringside_s / bare_s) for ringside_s, bare_s in took]
        ratio = log_interval(math.exp(statistics.fmean(logs)), logs, confidence=0.95)
        bounds = f"({ratio.ci_low:.3f} to {ratio.ci_high:.3f})"
        print(
            f"start of a launch / the same commands bare: {ratio.value:.3f} {bounds}, {len(took)} rounds"
        )


if __name__ == "__main__":
    main()
