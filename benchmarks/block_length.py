"""Does the answer depend on how long a block is? Long blocks of a plan, cut up afterwards.

    python benchmarks/block_length.py plans/local.yaml --output FOLDER [--launches 8] [--rounds 4]
        [--block-s 8]

Every step is timed. Printed for each arm is how much longer than its mean step those take with
which a block begins, after its ranks were stopped. Then its throughput over the baseline's, mean
over launches with its 95% interval, as blocks of 0.15 to 8 s would have given it: the first steps
of the long ones, without those that a comparison does not time. Beside each stands by how much it
is above that of all steps, with the interval of this difference within launches.

Run it on an otherwise idle machine. An existing FOLDER is read, or continued.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from measurement.plans.sections import Measurement
from measurement.records.results import ResultsFolder
from reports.conclusions.steps import read_steps
from reports.statistics.student import t_interval

BLOCKS_S = (0.15, 0.5, 1.0, 2.0, 4.0, 8.0)
AFTER_A_STOP = ((1, 1), (2, 2), (3, 6), (7, 15), (16, None))
WARMUP_STEPS = Measurement().warmup_steps


def measure(plan: Path, output: Path, *, launches: int, rounds: int, block_s: float) -> None:
    """Compare with blocks of so many seconds, without what tells why."""
    wanted = yaml.safe_load(plan.read_text())
    length = {
        "rehearsal": "never",
        "launches": launches,
        "rounds": rounds,
        "block_s": block_s,
        "block_timeout_s": 120 + 10 * block_s,
        "warmup_steps": 0,
    }
    wanted["measurement"] = {**length, "control": False, "floor": False, "local_every": 0}
    path = output.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(wanted))
    subprocess.run(
        [sys.executable, "-m", "runners.cli", "compare", str(path), "-o", str(output)],
        check=True,
        stdout=sys.stderr,
    )


def step_times(output: Path) -> pd.DataFrame:
    """Return the slowest rank's seconds of each step, by launch, arm, turn and the step's number in
    its block, from 0.
    """
    folder = ResultsFolder(output)
    records = folder.records()
    slowest: pd.DataFrame = read_steps(folder, records).valid(records).where(kind="sync").slowest
    return slowest


def log_speeds(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the logarithm of steps per second: a row for each launch, a column for each arm."""
    return -np.log(steps.groupby(["launch", "arm"])["step_s"].mean().unstack("arm"))


def first_seconds(steps: pd.DataFrame, seconds: float) -> pd.DataFrame:
    """Return the first steps of each block: as many, the same in all arms, as take about this
    time.
    """
    return steps[steps["step"] < max(1, round(seconds / steps["step_s"].mean()))]


def tell(what: str, some: pd.DataFrame, every: pd.DataFrame, baseline: str) -> None:
    """Print the ratios of some steps, and by how much they are above those of all."""
    speeds, usual = log_speeds(some), log_speeds(every)
    for arm in speeds.columns.drop(baseline):
        ratio, whole = speeds[arm] - speeds[baseline], usual[arm] - usual[baseline]
        print(
            f"{what:22} {arm:16} {_percent(ratio)}   above all steps' by {_percent(ratio - whole, less=1)}"
        )


def tell_blocks(steps: pd.DataFrame, baseline: str, longest_s: float) -> None:
    """Print what blocks of each length would have given."""
    for seconds in BLOCKS_S:
        if seconds < longest_s:
            tell(f"blocks of {seconds:g} s", first_seconds(steps, seconds), steps, baseline)


def tell_after_a_stop(steps: pd.DataFrame) -> None:
    """Print how much longer than an arm's mean step those of a block are that come so soon."""
    for first, last in AFTER_A_STOP:
        some = steps[steps["step"].between(first - 1, np.inf if last is None else last - 1)]
        longer = log_speeds(steps) - log_speeds(some)
        for arm in longer.columns:
            print(f"{_numbers(first, last):22} {arm:16} {_percent(longer[arm], less=1)} longer")


def _numbers(first: int, last: int | None) -> str:
    if first == last:
        return f"step {first}"
    return f"steps {first} to {last}" if last else f"steps {first} and later"


def _percent(logs: Sequence[float] | pd.Series, *, less: float = 0) -> str:
    mean = t_interval(logs, confidence=0.95)
    assert mean is not None
    low, high = (
        np.exp(np.nan if bound is None else bound) - less for bound in (mean.ci_low, mean.ci_high)
    )
    return f"{np.exp(mean.value) - less:8.2%} ({low:.2%} to {high:.2%})"


def main() -> None:
    """Measure unless that is done, and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--launches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--block-s", type=float, default=BLOCKS_S[-1])
    given = parser.parse_args()
    measure(
        given.plan,
        given.output,
        launches=given.launches,
        rounds=given.rounds,
        block_s=given.block_s,
    )
    steps, baseline = (
        step_times(given.output),
        str(yaml.safe_load(given.plan.read_text())["baseline"]),
    )
    tell_after_a_stop(steps)
    warm = steps[steps["step"] >= WARMUP_STEPS]
    tell_blocks(warm.assign(step=warm["step"] - WARMUP_STEPS), baseline, given.block_s)


if __name__ == "__main__":
    main()
