"""Counts how often Ringside is right, in comparisons with a known answer that are run as a user
runs them.

- ``same``: same against same, for DDP and Horovod, about a minute each, and ``defaults`` at the
  settings of plans/local.yaml: an arm against its control and against a copy of itself as a
  candidate. Counted: intervals that cover 1.
- ``five``: DDP, and Horovod, against a backend that spends 5% more on every step (two and a half
  minutes from start to report), and ``two``: DDP against one that spends 2% more (within 5
  minutes), with freed memory kept; ``returned``: as ``two``, with freed memory returned to the
  kernel as by default. Counted: candidates called slower.
- ``stalls``: DDP that sleeps 60 ms after every 50th step; ``rare-stalls``: 0.3 s in one block of
  twenty, beside a baseline that is 3% slower otherwise; ``launches``: 6% more in every fifth
  launch. Counted: intervals that cover the ratio that was planted.
- ``load-none``: the arms of plans/local.yaml on the machine as it is, once; ``load-hog``: the same
  while another process spins on the first core for 10 s of every 30. Counted: verdicts that do not
  contradict the quiet machine's.

    python benchmarks/calibration.py --output FOLDER [--repeats N] [--only NAME]

with NAME the beginning of one of these: same, defaults, five, two, returned, stalls, rare-stalls,
launches, load.

Each count stands with its binomial interval (Clopper and Pearson, 95%). Run it on an otherwise idle
machine. An existing FOLDER is continued.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from scipy import stats

SLOW = Path(__file__).parent / "plugins" / "slow.py"
MINUTE = {"rehearsal": "never", "launches": 3, "seconds_per_launch": 16}
LONG_STEPS = {"local_batch_size": 128}
"""A rank's threads on one core delay each other by milliseconds, which is much of a short step and
little of a long one."""
KEPT = {"freed_memory": "keep"}
"""Otherwise two launches of one arm differ by up to 40% at this batch size, by the pages that each
of their steps faults in."""
LONG_BLOCKS = {"block_s": 0.4}
"""Long enough that the untimed steps before a block are a small part of it."""
TWO_AND_A_HALF_MINUTES = {
    "rehearsal": "never",
    "launches": 5,
    "seconds_per_launch": 12,
    **LONG_BLOCKS,
}
FIVE_MINUTES = {"rehearsal": "never", "launches": 7, "seconds_per_launch": 22, **LONG_BLOCKS}
DDP = {"backend": "ddp", "transport": "gloo", "launcher": "torchrun"}
QUIET_DDP = {**DDP, "options": {"broadcast_buffers": False}}
"""DDP for which 2% more work per step takes 2% longer. With buffers broadcast, ranks also wait for
each other in the forward pass, and they wait less if a step ends later."""
HOROVOD = {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"}
LOCAL = {"ddp": DDP, "horovod-gloo": HOROVOD, "horovod-mpi": {**HOROVOD, "transport": "mpi"}}
DEFAULTS = {
    "local_every": 4,
    **yaml.safe_load((Path(__file__).parent.parent / "plans" / "local.yaml").read_text())[
        "measurement"
    ],
}
HOG = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
while True:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        pass
    time.sleep(20)
"""
RARE_EVERY = 240
"""Steps between two rare stalls: blocks of 10 timed and 2 untimed steps, one in twenty of which is
hit."""
Comparison = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of comparison, and how often it is run."""

    name: str
    arms: dict[str, Any]
    measurement: dict[str, Any]
    repeats: int = 10
    local_batch_size: int = 32
    freed_memory: str = "return"
    truth: Callable[[Comparison], float] | None = None
    """The true ratio of the candidate, from the comparison's own step times; None: 1, or what is
    counted is the verdict."""
    quiet: str = ""
    """The case whose verdicts this one's must not contradict; a hog runs beside this one."""

    @property
    def same(self) -> bool:
        """Return whether all arms are the same."""
        return all(arm == next(iter(self.arms.values())) for arm in self.arms.values())

    def plan(self, number: int) -> dict[str, Any]:
        """Return the plan of one repetition. Each has its own seed, and so its own order of
        blocks.
        """
        return {
            "name": f"{self.name}-{number:02d}",
            "workload": "digits",
            "local_batch_size": self.local_batch_size,
            "world_size": 2,
            "seed": 1 + number,
            "freed_memory": self.freed_memory,
            "baseline": next(iter(self.arms)),
            "arms": self.arms,
            "measurement": {"local_every": 0, **self.measurement},
        }


def cases() -> list[Case]:
    """List the cases to run."""
    return [
        Case(name="same-ddp", arms={"ddp": DDP, "ddp-twin": DDP}, measurement=MINUTE),
        Case(
            name="same-horovod",
            arms={"horovod": HOROVOD, "horovod-twin": HOROVOD},
            measurement=MINUTE,
        ),
        Case(name="defaults-ddp", arms={"ddp": DDP, "ddp-twin": DDP}, measurement=DEFAULTS),
        Case(
            name="defaults-horovod",
            arms={"horovod": HOROVOD, "horovod-twin": HOROVOD},
            measurement=DEFAULTS,
        ),
        Case(
            name="five",
            arms={"ddp": QUIET_DDP, "five-percent": plug_in("SlowDDP", extra=0.05)},
            measurement=TWO_AND_A_HALF_MINUTES,
            **LONG_STEPS,
            **KEPT,
        ),
        Case(
            name="five-horovod",
            arms={"horovod": HOROVOD, "five-percent": plug_in("SlowHorovod", extra=0.05)},
            measurement=TWO_AND_A_HALF_MINUTES,
            **LONG_STEPS,
            **KEPT,
        ),
        Case(
            name="two",
            arms={"ddp": QUIET_DDP, "two-percent": plug_in("SlowDDP", extra=0.02)},
            measurement=FIVE_MINUTES,
            **LONG_STEPS,
            **KEPT,
        ),
        Case(
            name="returned",
            arms={"ddp": QUIET_DDP, "two-percent": plug_in("SlowDDP", extra=0.02)},
            measurement=FIVE_MINUTES,
            **LONG_STEPS,
        ),
        Case(
            name="stalls",
            arms={"ddp": QUIET_DDP, "stalling": plug_in("StallingDDP", every=50, stall_s=0.06)},
            measurement=FIVE_MINUTES,
            truth=lambda found: with_stalls(found, 0.06 / 50),
        ),
        Case(
            name="rare-stalls",
            arms={
                "ddp": plug_in("SlowDDP", extra=0.03),
                "stalling": plug_in("StallingDDP", every=RARE_EVERY, stall_s=0.3),
            },
            measurement={**FIVE_MINUTES, "block_steps": 10},
            truth=lambda found: 1.03 * with_stalls(found, 0.3 / RARE_EVERY, faster=1.03),
        ),
        Case(
            name="launches",
            arms={
                "ddp": QUIET_DDP,
                "at-times": plug_in("SlowDDP", extra=0.06, share_of_launches=0.2),
            },
            measurement=FIVE_MINUTES,
            truth=lambda _: 1.06**-0.2,
            **LONG_STEPS,
        ),
        Case(name="load-none", arms=LOCAL, measurement=DEFAULTS, repeats=1),
        Case(name="load-hog", arms=LOCAL, measurement=DEFAULTS, repeats=6, quiet="load-none"),
    ]


@contextlib.contextmanager
def hog(*, runs: bool) -> Iterator[None]:
    """Let a process spin on the first core for 10 s of every 30."""
    first = min(os.sched_getaffinity(0))
    with (
        subprocess.Popen([sys.executable, "-c", HOG, str(first)])
        if runs
        else contextlib.nullcontext() as process
    ):
        try:
            yield
        finally:
            if process:
                process.kill()


def plug_in(name: str, **options: float) -> dict[str, Any]:
    """Return an arm like QUIET_DDP, or like HOROVOD, by a backend of plugins/slow.py."""
    like = HOROVOD if name == "SlowHorovod" else QUIET_DDP
    return {**like, "backend": f"{SLOW}:{name}", "options": {**like.get("options", {}), **options}}


def with_stalls(found: Comparison, seconds: float, *, faster: float = 1.0) -> float:
    """Return the ratio of an arm that stalls for so many seconds a step, by the planted schedule
    and the baseline's mean step.
    """
    baseline = next(arm for arm in found["arms"] if arm["role"] == "baseline")
    step_s = found["global_batch_size"] / baseline["throughput_per_s"]["value"] / faster
    return step_s / (step_s + seconds)


def run(case: Case, number: int, output: Path) -> dict[str, dict[str, Any]]:
    """Run one comparison by the command line.

    Return the entries of comparison.json that count, by candidate, with minutes.
    """
    plan = output / f"{case.name}-{number:02d}.yaml"
    folder = output / f"{case.name}-{number:02d}"
    done = folder / "calibration.json"
    if not done.exists():
        plan.write_text(yaml.safe_dump(case.plan(number), sort_keys=False))
        began = time.monotonic()
        command = [sys.executable, "-m", "runners.cli", "compare", str(plan), "-o", str(folder)]
        with hog(runs=bool(case.quiet)):
            ended = subprocess.run(command, check=False, capture_output=True, text=True)
        minutes = (time.monotonic() - began) / 60
        if not (folder / "comparison.json").exists():
            sys.exit(
                f"{folder.name}: no comparison, exit code {ended.returncode}\n{ended.stderr[-2000:]}"
            )
        found = json.loads((folder / "comparison.json").read_text())
        truth = case.truth(found) if case.truth else 1.0
        counted = [entry for entry in found["results"] if entry["role"] == "candidate" or case.same]
        done.write_text(
            json.dumps(
                {
                    entry["candidate"]: {**entry, "minutes": minutes, "truth": truth}
                    for entry in counted
                }
            )
        )
    results: dict[str, dict[str, Any]] = json.loads(done.read_text())
    for name, result in results.items():
        print(
            f"{folder.name} {name}: ratio {result['throughput_ratio']:.4f}, {result['confidence']:.0%} interval "
            f"{result['ci_low']:.4f} to {result['ci_high']:.4f}, {result['verdict']}, "
            f"{result['launches']} launches, {result['pairs']} pairs, {result['minutes']:.1f} min"
            + (f", truth {result['truth']:.4f}" if case.truth else ""),
            flush=True,
        )
    return results


def conclude(
    case: Case, results: list[dict[str, dict[str, Any]]], quiet: dict[str, dict[str, Any]]
) -> list[str]:
    """Write a case's counts, one line for each candidate.

    ``quiet``: the entries of the case's quiet one.
    """
    lines = []
    for name in results[0]:
        entries = [result[name] for result in results]
        if case.quiet:
            good = sum(
                entry["verdict"] in ("undecided", quiet[name]["verdict"]) for entry in entries
            )
            what = f"do not contradict '{quiet[name]['verdict']}'"
        elif case.same or case.truth:
            good = sum(entry["ci_low"] <= entry["truth"] <= entry["ci_high"] for entry in entries)
            what = "intervals cover the truth"
        else:
            good = sum(entry["verdict"] == "slower" for entry in entries)
            what = "called slower"
        bounds = stats.binomtest(good, len(entries)).proportion_ci(method="exact")
        verdicts = ", ".join(sorted({entry["verdict"] for entry in entries}))
        lines.append(
            f"{case.name} {name}: {good} of {len(entries)} {what} ({bounds.low:.0%} to {bounds.high:.0%}); verdicts: {verdicts}"
        )
    return lines


def main() -> None:
    """Run the cases and print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", default="", help="only cases whose name begins so")
    parser.add_argument("--repeats", type=int, help="instead of each case's own")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    counts, found = [], {}
    for case in cases():
        if case.name.startswith(given.only):
            number = case.repeats if case.repeats == 1 else given.repeats or case.repeats
            found[case.name] = [run(case, repetition, given.output) for repetition in range(number)]
            counts += conclude(case, found[case.name], found[case.quiet][0] if case.quiet else {})
    print("\n".join(["", *counts]))


if __name__ == "__main__":
    main()
