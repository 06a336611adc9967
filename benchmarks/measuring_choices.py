"""Measures what each choice of the measuring method is worth: same against same, with one choice
changed at a time.

Variants take turns. Printed for each variant:
- the standard deviation of pairs;
- the standard error after a minute of blocks (pair deviation over the root of the pairs in a
  minute), also as a ratio to the default's in the same round;
- how far from 1 each launch's ratio is, an error that more blocks in the same launch would not
  reduce.

    python benchmarks/measuring_choices.py --output FOLDER [--rounds N] [--only NAME ...]

Run it on an otherwise idle machine. An existing FOLDER is continued.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from measurement.records.results import ResultsFolder
from reports import conclude

DDP = {"backend": "ddp", "transport": "gloo", "launcher": "torchrun"}
MEASUREMENT = {"rehearsal": "never", "launches": 2, "seconds_per_launch": 20, "local_every": 0}
LARGE_BATCH = {"local_batch_size": 128, "measurement": {"block_s": 0.4}}
CHOICES: dict[str, dict[str, Any]] = {
    "default": {},
    "blocks-0.05s": {"measurement": {"block_s": 0.05}},
    "blocks-0.5s": {"measurement": {"block_s": 0.5}},
    "free-placement": {"affinity": "none"},
    "kept-memory": {"freed_memory": "keep"},
    "large-batch": LARGE_BATCH,
    "large-batch-kept-memory": {**LARGE_BATCH, "freed_memory": "keep"},
}


def plan(name: str, number: int) -> dict[str, Any]:
    """Return the plan of one variant in one round. A round's variants share their seed."""
    changes = CHOICES[name]
    return {
        "name": f"{name}-{number:02d}",
        "workload": "digits",
        "world_size": 2,
        "seed": 1 + number,
        "baseline": "ddp",
        "arms": {"ddp": DDP},
        **changes,
        "measurement": MEASUREMENT | changes.get("measurement", {}),
    }


def run(name: str, number: int, output: Path) -> tuple[float, float, float]:
    """Run one variant.

    Return pair deviation, standard error after a minute, and RMS of launch medians, all of
    log-ratios.
    """
    path, folder = output / f"{name}-{number:02d}.yaml", output / f"{name}-{number:02d}"
    if not (folder / "comparison.json").exists():
        path.write_text(yaml.safe_dump(plan(name, number), sort_keys=False))
        command = [sys.executable, "-m", "runners.cli", "compare", str(path), "-o", str(folder)]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    found = conclude(ResultsFolder(folder))
    (control,) = found.results
    blocks = pd.DataFrame(found.block_table)
    speeds = blocks.pivot_table(index=["launch", "round"], columns="arm", values="throughput_per_s")
    ratios = np.log(speeds[control.candidate] / speeds[control.baseline]).dropna()
    middles = ratios.groupby("launch").median()
    centred = ratios - middles.reindex(ratios.index, level="launch")
    deviation = 1.4826 * float(np.median(np.abs(centred)))
    apart = float(np.sqrt(np.mean(np.square(middles))))
    return deviation, deviation / np.sqrt(len(ratios) / found.measured_minutes), apart


def main() -> None:
    """Run the rounds and print a line for each variant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=list(CHOICES), choices=list(CHOICES))
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(["default", *given.only]))
    table = np.array(
        [[run(name, number, given.output) for name in names] for number in range(given.rounds)]
    )
    relative = table[:, :, 1] / table[:, :1, 1]
    for place, name in enumerate(names):
        mean = np.exp(np.log(relative[:, place]).mean())
        print(
            f"{name}: pair deviation {table[:, place, 0].mean():.3f}, standard error after a minute "
            f"{table[:, place, 1].mean():.4f}, {mean:.2f} x the default's "
            f"({', '.join(f'{one:.2f}' for one in relative[:, place])}), "
            f"launches {np.sqrt(np.square(table[:, place, 2]).mean()):.2%} from 1"
        )


if __name__ == "__main__":
    main()
