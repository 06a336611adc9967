"""How long a report of very many ranks takes, and how much memory: makes the raw results, then runs
``ringside report`` on them.

    python benchmarks/report_scale.py FOLDER [--ranks 64 256 1024] [--steps 10000]

Two arms, one launch, steps in blocks of 12, of which every fourth is without exchange. Printed for
each number of ranks: rows, seconds from the command's start to its end, peak resident memory, and
seconds per million rows. Existing results are used again.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow.parquet import ParquetWriter

from measurement.conditions.same_environment import plan_digest
from measurement.plans.plan import Plan
from measurement.plans.sections import Arm, Measurement
from measurement.records.block import PHASES, BlockRecord
from measurement.records.record import LaunchRecord, Manifest, ParityResult, RankReport
from measurement.records.results import ResultsFolder
from measurement.records.step_tables import STEP_COLUMNS

STEPS_PER_BLOCK = 12
LOCAL_EVERY = 4
RANKS_PER_HOST = 8
SHARES = (0.02, 0.3, 0.6, 0.08, 0.0)


def make(root: Path, *, ranks: int, steps: int) -> ResultsFolder:
    """Write a plan, a manifest, two records and their steps."""
    arms = {
        "ddp": Arm(backend="ddp", transport="gloo"),
        "horovod": Arm(backend="horovod", transport="gloo"),
    }
    measurement = Measurement(
        launches=1, control=False, local_every=LOCAL_EVERY, block_steps=STEPS_PER_BLOCK
    )
    plan = Plan(
        name="scale",
        workload="digits",
        world_size=ranks,
        baseline="ddp",
        arms=arms,
        measurement=measurement,
    )
    folder = ResultsFolder(root)
    folder.write_plan(plan)
    folder.write_manifest(
        Manifest(
            comparison_id=root.name,
            plan_digest=plan_digest(plan),
            created_at="2026-01-01T12:00:00+00:00",
            ringside_version="0",
        )
    )
    for number, (name, arm) in enumerate(arms.items()):
        blocks = [
            BlockRecord(
                turn=2 * block + number,
                round=block,
                block=block,
                kind=kind,
                steps=STEPS_PER_BLOCK,
                wall_s=0.3,
            )
            for block in range(steps // STEPS_PER_BLOCK)
            for kind in (["local"] if block % LOCAL_EVERY == LOCAL_EVERY - 1 else ["sync"])
        ]
        record = LaunchRecord(
            comparison_id=root.name,
            plan_digest=plan_digest(plan),
            launch=0,
            arm=name,
            role=plan.role(name),
            backend=arm.backend,
            transport="gloo",
            launcher="torchrun",
            workload="digits",
            world_size=ranks,
            hosts=[host_of(rank) for rank in range(0, ranks, RANKS_PER_HOST)],
            status="ok",
            ranks=[rank_report(rank, ranks) for rank in range(ranks)],
            parity=ParityResult(passed=True),
            blocks=blocks,
        )
        folder.write_record(record)
        write_steps(
            folder.launch_folder(0, name) / "steps.parquet",
            blocks,
            ranks=ranks,
            speed=1.0 + 0.05 * number,
        )
    return folder


def host_of(rank: int) -> str:
    """Return the host that a rank is on."""
    return f"host{rank // RANKS_PER_HOST:04d}"


def rank_report(rank: int, ranks: int) -> RankReport:
    """Report what a rank would of itself."""
    return RankReport(
        rank=rank,
        local_rank=rank % RANKS_PER_HOST,
        node_rank=rank // RANKS_PER_HOST,
        world_size=ranks,
        local_world_size=min(ranks, RANKS_PER_HOST),
        launcher="torchrun",
        host=host_of(rank),
        pid=1000 + rank,
        device="cpu",
        threads=1,
        affinity=[rank % RANKS_PER_HOST],
        seed=1,
        local_batch_size=32,
        micro_steps=1,
        fingerprint={"cpu": "Synthetic CPU", "cores": RANKS_PER_HOST},
    )


def write_steps(path: Path, blocks: list[BlockRecord], *, ranks: int, speed: float) -> None:
    """Write the steps block by block, as a driver's records have them."""
    random = np.random.default_rng(1)
    rank, step = (
        grid.ravel()
        for grid in np.meshgrid(np.arange(ranks), np.arange(STEPS_PER_BLOCK), indexing="ij")
    )
    writer = None
    pending: list[pd.DataFrame] = []
    for block in blocks:
        step_s = (
            0.02
            / speed
            * np.exp(0.05 * random.standard_normal(len(rank)))
            * (0.8 if block.kind == "local" else 1.0)
        )
        place = {
            "turn": block.turn,
            "round": block.round,
            "block": block.block,
            "kind": block.kind,
            "case": None,
        }
        times = {f"{phase}_s": part * step_s for phase, part in zip(PHASES, SHARES, strict=True)}
        pending.append(
            pd.DataFrame(
                {"rank": rank, **place, "step": step, "samples": 32, **times, "step_s": step_s}
            )
        )
        if len(pending) * len(rank) >= 1 << 20 or block is blocks[-1]:
            table = pd.concat(pending, ignore_index=True).astype(STEP_COLUMNS)[list(STEP_COLUMNS)]
            made = pa.Table.from_pandas(table, preserve_index=False)
            writer = writer or ParquetWriter(path, made.schema)
            writer.write_table(made)
            pending = []
    if writer:
        writer.close()


def main() -> None:
    """Make and report, from few ranks to many."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--steps", type=int, default=10_000)
    given = parser.parse_args()
    for ranks in given.ranks:
        root = given.folder / f"{ranks}-ranks"
        if not (root / "plan.yaml").exists():
            make(root, ranks=ranks, steps=given.steps)
        rows = 2 * ranks * (given.steps // STEPS_PER_BLOCK) * STEPS_PER_BLOCK
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "runners.cli", "report", str(root)],
            check=True,
            capture_output=True,
        )
        seconds = time.monotonic() - began
        # the largest child so far, and those before had fewer ranks
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        millions = rows / 1e6
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(
            f"{ranks} ranks: {millions:.1f} million rows, {seconds:.1f} s ({cpu_s:.1f} s of CPU), "
            f"{after.ru_maxrss / 2**20:.2f} GiB; per million rows {seconds / millions:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
