"""Does Ringside tell the truth? Comparisons whose answer is known, run as a user runs them, counted.

- same against same (an arm, its control, its twin as candidate; about a minute), DDP and Horovod: how many intervals cover 1;
- DDP against a backend that spends 5% more on every step, two and a half minutes from start to report, and against one that spends
  2% more, within 5: how many are called slower.

    python benchmarks/calibration.py --output FOLDER [--only same|five|two] [--repeats N]

Run it on a machine that does nothing else. A FOLDER that exists is continued.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SLOW = Path(__file__).parent / "plugins" / "slow.py"
MINUTE = {"launches": 3, "seconds_per_launch": 16}
LONG_STEPS = {"local_batch_size": 128}
"""Where a rank has one core, its threads hold each other up for milliseconds: much of a short step, little of a long one."""
LONG_BLOCKS = {"block_s": 0.4}
"""Of which the untimed steps before them are still a small part."""
TWO_AND_A_HALF_MINUTES = {"launches": 5, "seconds_per_launch": 12, **LONG_BLOCKS}
FIVE_MINUTES = {"launches": 7, "seconds_per_launch": 22, **LONG_BLOCKS}
DDP = {"backend": "ddp", "transport": "gloo", "launcher": "torchrun"}
QUIET_DDP = {**DDP, "options": {"broadcast_buffers": False}}
"""Of which 2% is 2%: stock DDP's ranks also wait for each other's buffers in the forward pass, less where a step ends later."""
HOROVOD = {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of comparison and how often it is run."""

    name: str
    arms: dict[str, Any]
    measurement: dict[str, Any]
    repeats: int = 10
    local_batch_size: int = 32

    @property
    def same(self) -> bool:
        """Whether all arms are one and the same."""
        return all(arm == next(iter(self.arms.values())) for arm in self.arms.values())

    def plan(self, number: int) -> dict[str, Any]:
        """The plan of one repetition; each has its own seed, so its own order of blocks."""
        return {
            "name": f"{self.name}-{number:02d}",
            "workload": "digits",
            "local_batch_size": self.local_batch_size,
            "world_size": 2,
            "seed": 1 + number,
            "baseline": next(iter(self.arms)),
            "arms": self.arms,
            "measurement": {"local_every": 0, **self.measurement},
        }


def cases() -> list[Case]:
    """What is run."""
    return [
        Case(name="same-ddp", arms={"ddp": DDP, "ddp-twin": DDP}, measurement=MINUTE),
        Case(name="same-horovod", arms={"horovod": HOROVOD, "horovod-twin": HOROVOD}, measurement=MINUTE),
        Case(name="five", arms={"ddp": QUIET_DDP, "five-percent": slow(0.05)}, measurement=TWO_AND_A_HALF_MINUTES, **LONG_STEPS),
        Case(name="two", arms={"ddp": QUIET_DDP, "two-percent": slow(0.02)}, measurement=FIVE_MINUTES, **LONG_STEPS),
    ]


def slow(extra: float) -> dict[str, Any]:
    """The same that spends ``extra`` more on every step."""
    return {**QUIET_DDP, "backend": f"{SLOW}:SlowDDP", "options": {**QUIET_DDP["options"], "extra": extra}}


def run(case: Case, number: int, output: Path) -> dict[str, dict[str, Any]]:
    """One comparison by the command line: the entries of comparison.json that count, by candidate, and the minutes it took."""
    plan = output / f"{case.name}-{number:02d}.yaml"
    folder = output / f"{case.name}-{number:02d}"
    done = folder / "calibration.json"
    if not done.exists():
        plan.write_text(yaml.safe_dump(case.plan(number), sort_keys=False))
        began = time.monotonic()
        command = [sys.executable, "-m", "runners.cli", "compare", str(plan), "-o", str(folder)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        minutes = (time.monotonic() - began) / 60
        if not (folder / "comparison.json").exists():
            sys.exit(f"{folder.name}: no comparison, exit code {ended.returncode}\n{ended.stderr[-2000:]}")
        found = json.loads((folder / "comparison.json").read_text())["results"]
        counted = [entry for entry in found if entry["role"] == "candidate" or case.same]
        done.write_text(json.dumps({entry["candidate"]: {**entry, "minutes": minutes} for entry in counted}))
    results: dict[str, dict[str, Any]] = json.loads(done.read_text())
    for name, result in results.items():
        print(
            f"{folder.name} {name}: ratio {result['throughput_ratio']:.4f}, {result['confidence']:.0%} interval "
            f"{result['ci_low']:.4f} to {result['ci_high']:.4f}, {result['verdict']}, "
            f"{result['launches']} launches, {result['pairs']} pairs, {result['minutes']:.1f} min",
            flush=True,
        )
    return results


def conclude(case: Case, results: list[dict[str, dict[str, Any]]]) -> list[str]:
    """The counts the case is about, one line for each candidate."""
    lines = []
    for name in results[0]:
        entries = [result[name] for result in results]
        if case.same:
            good = sum(entry["ci_low"] <= 1 <= entry["ci_high"] for entry in entries)
            lines.append(f"{name}: {good} of {len(entries)} intervals cover 1")
        else:
            good = sum(entry["verdict"] == "slower" for entry in entries)
            lines.append(f"{name}: {good} of {len(entries)} called slower")
    return lines


def main() -> None:
    """Run the cases and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", default="", help="only cases whose name begins so")
    parser.add_argument("--repeats", type=int, help="instead of each case's own")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    counts = []
    for case in cases():
        if case.name.startswith(given.only):
            results = [run(case, number, given.output) for number in range(given.repeats or case.repeats)]
            counts += conclude(case, results)
    print("\n".join(["", *counts]))


if __name__ == "__main__":
    main()
