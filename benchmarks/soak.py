"""Does anything grow, fail or stay behind when Ringside runs for long, or with many ranks or arms?
Real comparisons.

    python benchmarks/soak.py comparisons --output FOLDER [--number 100]
    python benchmarks/soak.py launches --output FOLDER [--number 200]
    python benchmarks/soak.py ranks --output FOLDER [--number 24]
    python benchmarks/soak.py arms --output FOLDER [--number 8]

``comparisons``: short ones of DDP and Horovod in a row; each must end with exit code 0, every arm
ok, no process left. ``launches``: one comparison of so many launches; its driver's resident memory,
threads, open files and files in the temporary folder are read from outside four times a second.
Printed: the medians over each tenth of the time. ``ranks``: DDP and Horovod with so many ranks
each. ``arms``: so many arms of two ranks at once.

The exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import yaml

from measurement.records.results import ResultsFolder
from tests.kit.faults import MARK, processes_of

ARMS = {
    "ddp": {"backend": "ddp", "transport": "gloo", "launcher": "spawn"},
    "horovod": {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"},
}
EVERY_S = 0.25
LEAVES_S = 10.0
FIGURES = ("memory_mb", "threads", "open_files", "temporary_files")


def plan(arms: dict[str, Any], *, world_size: int = 2, **measurement: Any) -> dict[str, Any]:
    """Return a plan of the shortest launches."""
    measurement = {
        "rehearsal": "never",
        "launches": 1,
        "rounds": 2,
        "block_steps": 2,
        "local_every": 0,
        "control": False,
        "floor": False,
    } | measurement
    return {
        "name": "soak",
        "workload": "digits",
        "local_batch_size": 8,
        "world_size": world_size,
        "threads": 1,
        "baseline": next(iter(arms)),
        "arms": arms,
        "measurement": measurement,
    }


def run(
    wanted: dict[str, Any], folder: Path, *, watched: list[dict[str, float]] | None = None
) -> list[str]:
    """Run a comparison as a user does, and return what was wrong with it.

    Args:
        wanted: the plan.
        folder: of the plan and the results.
        watched: gets the driver's figures, a row every quarter of a second.
    """
    folder.mkdir(parents=True)
    (folder / "plan.yaml").write_text(yaml.safe_dump(wanted, sort_keys=False))
    mark = secrets.token_hex(8)
    command = [
        sys.executable,
        "-m",
        "runners.cli",
        "compare",
        str(folder / "plan.yaml"),
        "-o",
        str(folder / "out"),
    ]
    with (
        (folder / "driver.log").open("wb") as output,
        tempfile.TemporaryDirectory(prefix="rs") as temporary,
        subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env=os.environ | {MARK: mark, "TMPDIR": temporary},
        ) as driver,
    ):
        while driver.poll() is None:
            if watched is not None:
                watched.append(_figures(psutil.Process(driver.pid), Path(temporary)))
            time.sleep(EVERY_S)
    faults = (
        [f"exit code {driver.returncode}: {(folder / 'driver.log').read_text()[-500:]}"]
        if driver.returncode
        else []
    )
    records = ResultsFolder(folder / "out").records()
    faults += [
        f"launch {one.launch}: {one.arm} {one.status}: {one.error}"
        for one in records
        if one.status != "ok"
    ]
    expected = wanted["measurement"]["launches"] * len(wanted["arms"])
    faults += [] if len(records) == expected else [f"{len(records)} records, not {expected}"]
    _, left = psutil.wait_procs(processes_of(mark), timeout=LEAVES_S)
    return faults + [f"process {process.pid} is left" for process in left]


def _figures(driver: psutil.Process, temporary: Path) -> dict[str, float]:
    try:
        with driver.oneshot():
            found = (
                driver.memory_info().rss / 1e6,
                driver.num_threads(),
                driver.num_fds(),
                sum(1 for _ in temporary.rglob("*")),
            )
    except psutil.NoSuchProcess:
        found = (float("nan"),) * len(FIGURES)
    return dict(zip(FIGURES, found, strict=True))


def comparisons(output: Path, number: int) -> list[str]:
    """So many in a row."""
    faults, seconds = [], []
    for index in range(number):
        began = time.monotonic()
        faults += [
            f"comparison {index}: {fault}" for fault in run(plan(ARMS), output / f"{index:03d}")
        ]
        seconds.append(time.monotonic() - began)
    print(
        f"{number} comparisons, median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s"
    )
    return faults


def launches(output: Path, number: int) -> list[str]:
    """One comparison of so many, and its driver's figures as time goes by."""
    watched: list[dict[str, float]] = []
    faults = run(plan(ARMS, launches=number), output / "launches", watched=watched)
    figures = pd.DataFrame(watched).dropna()
    tenths = (figures.index * 10 // len(watched)).to_numpy()
    print(figures.groupby(tenths).median().round(1).to_string())
    return faults


def ranks(output: Path, number: int) -> list[str]:
    """As many ranks in each of two arms, far more than cores."""
    return run(
        plan(ARMS, world_size=number, start_timeout_s=600, block_timeout_s=300), output / "ranks"
    )


def arms(output: Path, number: int) -> list[str]:
    """As many arms at once."""
    kinds = list(ARMS.values())
    return run(
        plan({f"arm-{index}": kinds[index % 2] for index in range(number)}, start_timeout_s=600),
        output / "arms",
    )


PARTS = {
    "comparisons": (comparisons, 100),
    "launches": (launches, 200),
    "ranks": (ranks, 24),
    "arms": (arms, 8),
}


def main() -> int:
    """Run the part that is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--number", type=int, help="of comparisons, launches, ranks or arms")
    chosen = parser.parse_args()
    act, usual = PARTS[chosen.part]
    began = time.monotonic()
    faults = act(chosen.output, chosen.number or usual)
    print(
        "\n".join(faults) or f"{chosen.part}: nothing failed, nothing is left",
        f"({time.monotonic() - began:.0f} s)",
    )
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
