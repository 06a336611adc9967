"""What the driver itself costs with very many ranks: the real driver and protocol against idle
ranks (plugins/idle_ranks.py).

    python benchmarks/control_plane.py [--ranks 64 256 1024] [--blocks 20] [--steps 12] [--profile
        FILE]

Two arms of so many ranks, one launch, a process for each number. The driver has one core, the ranks
have all others. Printed are CPU seconds of the driver's process and wall seconds, which mean
nothing on a busy machine. They are those of a block and its parts, of the gate, of a record and of
the report. Memory is the peak of what is resident.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measurement.plans.plan import Plan
from measurement.plans.sections import Arm, Measurement
from measurement.records.results import ResultsFolder
from runners.driver import gates, run_comparison
from runners.driver.launch import Launch
from runners.driver.rounds import Rounds
from runners.progress import LaunchProgress
from runners.session.arm_processes import ArmProcesses
from runners.session.arm_session import ArmSession
from runners.session.endpoint import ArmChannel

LAUNCHER = f"{Path(__file__).parent / 'plugins' / 'idle_ranks.py'}:IdleRanks"
PARTS: dict[str, tuple[Any, str]] = {
    "start": (Launch, "_start"),
    "block": (Rounds, "_block"),
    ". stop": (ArmSession, "freeze"),
    ". continue": (ArmSession, "thaw"),
    ". replies": (ArmChannel, "receive"),
    "gate": (gates, "_pass_gate"),
    ". judge": (gates, "judge_gate"),
    "record": (ResultsFolder, "write_launch"),
    "report": (run_comparison, "write_reports"),
    "end": (ArmProcesses, "end"),
}
"""What is timed, by where it is called."""


def whole_of(name: str) -> str:
    """What a part is a part of: itself, a block or the gate."""
    return name if not name.startswith(". ") else "gate" if name == ". judge" else "block"


class Timings:
    """Seconds and calls of each part."""

    def __init__(self) -> None:
        self.cpu_s: dict[str, list[float]] = {name: [] for name in PARTS}
        self.wall_s: dict[str, list[float]] = {name: [] for name in PARTS}
        self._open: list[str] = []

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """A context whose seconds are this part's. A part counts within its whole only."""
        self._open.append(name)
        cpu, wall = time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            self._open.pop()
            if whole_of(name) in (name, *self._open):
                self.cpu_s[name].append(time.process_time() - cpu)
                self.wall_s[name].append(time.perf_counter() - wall)

    def watch(self) -> None:
        """Time every part from now on."""
        for name, (owner, attribute) in PARTS.items():
            setattr(owner, attribute, self._timed(getattr(owner, attribute), name))

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with self.of(name):
                return function(*arguments, **named)

        return call


def plan_of(ranks: int, *, blocks: int, steps: int) -> Plan:
    """A plan whose two arms are idle ranks."""
    arms = {
        name: Arm(backend=name, transport="gloo", launcher=LAUNCHER) for name in ("ddp", "naive")
    }
    measurement = Measurement(
        launches=1,
        rounds=blocks,
        block_steps=steps,
        rehearsal="never",
        control=False,
        floor=False,
        local_every=0,
        start_timeout_s=600.0,
    )
    return Plan(
        name="idle",
        workload="digits",
        world_size=ranks,
        baseline="ddp",
        arms=arms,
        measurement=measurement,
    )


def measure(ranks: int, *, blocks: int, steps: int, profile: Path | None = None) -> dict[str, Any]:
    """Run one comparison; the seconds of its parts and its memory."""
    # a core of its own, as on a host without ranks
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    timings, before = Timings(), peak_mib()
    timings.watch()
    profiler = cProfile.Profile(time.thread_time)
    with (
        tempfile.TemporaryDirectory(prefix="idle-ranks-") as folder,
        LaunchProgress(seconds_per_launch=60.0) as progress,
    ):
        plan = plan_of(ranks, blocks=blocks, steps=steps)
        run = run_comparison.ComparisonRun(
            plan, ResultsFolder(Path(folder) / "results"), progress=progress
        )
        run.prepare()
        comparison = profiler.runcall(run.run) if profile else run.run()
    if profile:
        profiler.dump_stats(profile)
    failed = [f"{arm.name}: {arm.status}" for arm in comparison.arms if arm.status != "ok"]
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")
    return {
        "ranks": ranks,
        "before_mib": before,
        "peak_mib": peak_mib(),
        "cpu_s": timings.cpu_s,
        "wall_s": timings.wall_s,
    }


def peak_mib() -> float:
    """The peak of this process's resident memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(found: list[dict[str, Any]]) -> str:
    """CPU and wall milliseconds of every part, each the mean of its calls; of a block's parts, all
    their calls within one.
    """
    lines = ["| CPU ms (wall ms) | " + " | ".join(f"{one['ranks']} ranks" for one in found) + " |"]
    lines.append("|---" * (len(found) + 1) + "|")
    for name in PARTS:
        cells = [
            f"{_mean_ms(one, 'cpu_s', name):.1f} ({_mean_ms(one, 'wall_s', name):.0f})"
            for one in found
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append(
        "| peak MiB (of imports) | "
        + " | ".join(f"{one['peak_mib']:.0f} ({one['before_mib']:.0f})" for one in found)
        + " |"
    )
    return "\n".join(lines)


def _mean_ms(one: dict[str, Any], clock: str, name: str) -> float:
    return 1e3 * sum(one[clock][name]) / max(len(one[clock][whole_of(name)]), 1)


def main() -> None:
    """Measure each number of ranks in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--blocks", type=int, default=20, help="of each arm")
    parser.add_argument("--steps", type=int, default=12, help="of each block")
    parser.add_argument(
        "--profile",
        type=Path,
        help="where to write cProfile's figures of the driver's thread, of one number of ranks",
    )
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(
            json.dumps(
                measure(
                    given.ranks[0], blocks=given.blocks, steps=given.steps, profile=given.profile
                )
            )
        )
        return
    found = []
    for ranks in given.ranks:
        argv = [
            sys.executable,
            "-P",
            __file__,
            "--alone",
            "--ranks",
            str(ranks),
            "--blocks",
            str(given.blocks),
            "--steps",
        ]
        profile = ["--profile", str(given.profile)] if given.profile else []
        # as the command has it: each wait of half a second would say so
        quiet = os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
        done = subprocess.run(
            [*argv, str(given.steps), *profile], check=True, stdout=subprocess.PIPE, env=quiet
        )
        found.append(json.loads(done.stdout))
    print(table(found))


if __name__ == "__main__":
    main()
