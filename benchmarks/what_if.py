"""Are the answers to "what if" true? Each is computed from one comparison, and compared with
another that measured the case.

- ``link``: four arms are measured over two hosts at each rate. The answer for links of each faster
  or slower rate is compared with the arm at that rate.
- ``late``: DDP, and DDP of which rank 1 is late. The answer without stragglers, of the late one, and
  of both, to be alike, is compared with plain DDP's ratio.
- ``slow``: DDP, and DDP whose steps compute a tenth more. The answer without library overhead,
  likewise.

    python benchmarks/what_if.py --output FOLDER [--only late slow]
    python -m tests.kit.lab up --hosts 2
    python -m tests.kit.lab run -- python benchmarks/what_if.py --output FOLDER --only link
    python benchmarks/what_if.py --simulate 2000

What came has an error of its own. So a check that fails tells besides whether the two are apart
beyond both intervals. Run it from the repository, on an otherwise idle machine. An existing FOLDER
is continued.

``--simulate`` runs no ranks: buckets become ready during backward, and pass one link in order, both
ways at once or one after the other. It counts how often the bounds hold the step at another rate,
without any noise; the rates are a tenth to ten times the one measured.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from measurement.records.results import ResultsFolder
from reports import conclude
from reports.conclusions.scaling import quotient
from reports.schema import Comparison, Estimate, WhatIfArm
from reports.what_if import ArmTerms, Links, links_of
from runners.results_commands import parse_rate
from tests.kit.lab.links import links_at

DIGITS = {"workload": "digits", "local_batch_size": 128, "freed_memory": "keep", "world_size": 2}
DDP = {
    "backend": "ddp",
    "transport": "gloo",
    "launcher": "torchrun",
    "options": {"broadcast_buffers": False},
}
PLUGINS = Path(__file__).parent / "plugins"
PLANTED: dict[str, dict[str, Any]] = {
    "late": {
        "backend": f"{PLUGINS / 'planted.py'}:LateRankDDP",
        "options": {"broadcast_buffers": False, "late_by": 0.2},
    },
    "slow": {
        "backend": f"{PLUGINS / 'slow.py'}:SlowDDP",
        "options": {"broadcast_buffers": False, "extra": 0.1},
    },
}
SCENARIOS = {"late": "no stragglers", "slow": "no library overhead"}
MEASUREMENT = {
    "rehearsal": "never",
    "launches": 4,
    "seconds_per_launch": 16,
    "block_s": 0.3,
    "local_every": 1,
}
LINK = {
    # 2.9 MB of gradients, and no buffers that DDP would send besides
    "workload": "squeezenet1_1",
    "workload_options": {"image_size": 32, "num_classes": 10},
    "local_batch_size": 8,
    "hosts": "host1:1,host2:1",
    "network_interface": "eth0",
    "world_size": 2,
    "baseline": "ddp-gloo",
    "arms": {
        "ddp-gloo": {"backend": "ddp", "transport": "gloo", "launcher": "torchrun"},
        "ddp-mpi": {"backend": "ddp", "transport": "mpi", "launcher": "mpirun"},
        "horovod-gloo": {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"},
        "horovod-mpi": {"backend": "horovod", "transport": "mpi", "launcher": "horovodrun"},
    },
    "measurement": {"launches": 4, "seconds_per_launch": 18, "local_every": 2},
}
RATES: dict[str, int | None] = {
    "unshaped": None,
    "1gbit": parse_rate("1gbit"),
    "300mbit": parse_rate("300mbit"),
}


@dataclass(frozen=True, kw_only=True)
class Check:
    """An answer and what came, both times as measured."""

    name: str
    answer: Estimate
    came: Estimate

    @property
    def holds(self) -> bool:
        """Whether the answer's interval holds what came."""
        return (
            self.answer.bounds is not None
            and self.answer.bounds[0] <= self.came.value <= self.answer.bounds[1]
        )

    @property
    def is_contradicted(self) -> bool:
        """Whether the two are farther apart than both intervals let expect."""
        return quotient(self.answer, self.came).excludes(1.0)


def compare(name: str, plan: dict[str, Any], output: Path) -> ResultsFolder:
    """Run a plan, or find what came of it."""
    folder = output / name
    if not (folder / "comparison.json").exists():
        path = output / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"name": name, "seed": 1, **plan}, sort_keys=False))
        command = [sys.executable, "-m", "runners.cli", "compare", str(path), "-o", str(folder)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        if not (folder / "comparison.json").exists():
            sys.exit(f"{name}: no comparison, exit code {ended.returncode}\n{ended.stderr[-2000:]}")
    return ResultsFolder(folder)


def answer(found: Comparison, scenario: str, arm: str) -> WhatIfArm:
    """Return what is said of an arm."""
    (one,) = (one for one in found.what_if if one.scenario == scenario)
    return next(told for told in one.arms if told.arm == arm)


def apart(found: Comparison, other: Comparison, arm: str) -> Estimate:
    """Return the throughput of an arm in a comparison over that in another, which share no
    launch.
    """
    one, two = (each.arm(arm).throughput_per_s for each in (found, other))
    assert one is not None
    assert two is not None
    return quotient(one, two)


def planted(name: str, output: Path) -> Iterator[Check]:
    """Take a planted cause away, and the same of the arm without it."""
    arms = {"plain": DDP, "planted": DDP | PLANTED[name]}
    plan = DIGITS | {"baseline": "plain", "arms": arms}
    found = conclude(compare(name, {**plan, "measurement": MEASUREMENT}, output))
    ours, alike = (answer(found, SCENARIOS[name], arm).gain for arm in ("planted", "plain"))
    assert ours is not None
    assert alike is not None
    result = next(one for one in found.results if one.candidate == "planted")
    slower = Estimate(
        value=result.throughput_ratio or math.nan, ci_low=result.ci_low, ci_high=result.ci_high
    )
    yield Check(
        name=name,
        answer=ours.times(1 / alike.value),
        came=quotient(Estimate(value=1.0, ci_low=1.0, ci_high=1.0), slower),
    )


def link(output: Path) -> Iterator[Check]:
    """Answer for each rate from each other one."""
    shaped, found = [rate for rate in RATES.values() if rate], {}
    for name, rate in RATES.items():
        with links_at(rate):
            found[name] = conclude(
                compare(name, LINK, output), links=Links(rates=shaped, measured=rate)
            )
    for measured in RATES:
        for other, rate in RATES.items():
            if other == measured or rate is None:
                continue
            for arm in LINK["arms"]:
                gain = answer(found[measured], links_of(rate).name, arm).gain
                if gain:
                    came = apart(found[other], found[measured], arm)
                    yield Check(name=f"{measured} to {other}, {arm}", answer=gain, came=came)


CHECKS: dict[str, Callable[[Path], Iterator[Check]]] = {
    "late": lambda output: planted("late", output),
    "slow": lambda output: planted("slow", output),
    "link": link,
}


def step_of(random: np.random.Generator) -> Callable[[float], tuple[float, dict[str, float]]]:
    """Draw a model; return what gives a step's seconds over a link of a number of bits a second,
    and what would be measured.
    """
    count = int(random.integers(1, 9))
    forward, backward, optimizer = (
        random.uniform(0.2, 1),
        random.uniform(0.5, 2),
        random.uniform(0, 0.2),
    )
    bits, latency = random.dirichlet(np.ones(count)), random.exponential(0.02, count)
    ways = int(random.integers(1, 3))
    ready = forward + backward * np.sort(random.uniform(0, 1, count))
    ready[-1] = forward + backward

    def step(rate: float) -> tuple[float, dict[str, float]]:
        free = 0.0
        for at, size, late in zip(ready, bits, latency, strict=True):
            free = max(free, at) + late + ways * size / rate
        whole, alone = max(free, forward + backward) + optimizer, forward + backward + optimizer
        return whole, {
            "step": whole,
            "exposed_exchange": whole - alone,
            "quiet": forward + optimizer,
        }

    return step


def simulate(number: int) -> None:
    """Print how often the bounds hold the step at another rate, and how wide they are."""
    inside, widths = [], []
    for seed in range(number):
        random = np.random.default_rng(seed)
        step, rate = step_of(random), float(10 ** random.uniform(-1, 1.5))
        other = rate * float(10 ** random.uniform(-1, 1))
        _, told = step(rate)
        scale = 10**9  # rates are whole bits
        terms = pd.DataFrame({name: [told[name]] for name in ("step", "exposed_exchange")})
        one = ArmTerms(
            terms=terms,
            quiet_s=pd.Series([told["quiet"]]),
            link_bits=float(scale),
            link_rate=round(rate * scale),
            throughput=1.0,
        )
        bounds = links_of(round(other * scale)).steps(one)
        assert not isinstance(bounds, str)
        low, high = (float(bound.iloc[0]) for bound in bounds)
        came, _ = step(other)
        inside.append(low * (1 - 1e-5) <= came <= high * (1 + 1e-5))
        widths.append(high / low - 1)
    print(
        f"simulated: {sum(inside)} of {number} within, bounds {np.mean(widths):.1%} apart (median {np.median(widths):.1%})"
    )


def run(names: Sequence[str], output: Path) -> None:
    """Run the checks and count those that hold."""
    output.mkdir(parents=True, exist_ok=True)
    found = []
    for name in names:
        for one in CHECKS[name](output):
            said = (
                ""
                if one.holds
                else " OUT"
                if one.is_contradicted
                else " out, but not beyond the error of both"
            )
            came = f"{one.came.value:.3f} ({_bounds_text(one.came)})"
            print(f"{one.name:<40}{_bounds_text(one.answer)}, came {came}{said}", flush=True)
            found.append(one)
    within, contradicted = (
        sum(getattr(one, name) for one in found) for name in ("holds", "is_contradicted")
    )
    print(
        f"{within} of {len(found)} within, {contradicted} farther apart than both intervals let expect"
    )


def _bounds_text(estimate: Estimate) -> str:
    return " to ".join(f"{bound:.3f}" for bound in estimate.bounds or (math.nan, math.nan))


def main() -> None:
    """Run the checks, or the simulation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--only", nargs="+", choices=CHECKS, default=[name for name in CHECKS if name != "link"]
    )
    parser.add_argument("--simulate", type=int, metavar="N")
    given = parser.parse_args()
    if given.simulate:
        simulate(given.simulate)
    elif given.output:
        run(given.only, given.output)
    else:
        parser.error("give --output FOLDER, or --simulate N")


if __name__ == "__main__":
    main()
