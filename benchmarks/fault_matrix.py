"""Whatever goes wrong, at whatever stage: does the comparison end, name the cause, keep what was
measured and leave nothing?

    python benchmarks/fault_matrix.py [--cells N] [--seed S] [--only FAULT ...] [--stage STAGE ...]
        [--kind KIND ...]
    python benchmarks/fault_matrix.py --lab ...

Runs the cells of ``tests/kit/faults.py``, which says what they are and how they are judged: all of
them, or N drawn by a seed, first one of each fault. Prints each cell as it was judged, then a
table: tried -> held, by fault and stage. Run it from the repository. Without root a full disk and a
read-only folder are left out. ``--lab`` runs the cells of ``lost_hosts.py`` in their place, in labs
that it makes and removes: ssh is lost, a host is gone.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import lost_hosts
from tests.kit import faults
from tests.kit.faults import KINDS, STAGES, Cell, Trial

FAULTS = (*faults.FAULTS, *lost_hosts.FAULTS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, help="so many of them [all]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--stage", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--lab", action="store_true", help="the faults that need two hosts")
    parser.add_argument(
        "--together", type=int, default=4, help="cells of arms that share a comparison [4]"
    )
    parser.add_argument(
        "--output", type=Path, help="keep the comparisons here [a temporary folder]"
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the comparison that runs, too
    listed = lost_hosts.feasible(given.kind) if given.lab else faults.feasible(given.kind)
    wanted = [cell for cell in listed if cell.fault in given.only and cell.stage in given.stage]
    if not given.lab and not faults.can_mount():
        print("left out, since only root may mount: disk-full, read-only")
        wanted = [cell for cell in wanted if cell.fault not in faults.NEED_MOUNTS]
    chosen = draw(wanted, number=given.cells, seed=given.seed)
    with tempfile.TemporaryDirectory() as folder:
        broken = run(
            chosen, given.output or Path(folder), together=1 if given.lab else given.together
        )
    print_table(chosen, broken)
    sys.exit(1 if broken else 0)


def draw(cells: Sequence[Cell], *, number: int | None, seed: int) -> list[Cell]:
    """So many of the cells, by a seed: first one of each fault, then of each fault and stage, then
    any. None: all of them.
    """
    order = random.Random(seed).sample(cells, k=len(cells))
    of_faults = {cell.fault: cell for cell in reversed(order)}
    of_stages = {(cell.fault, cell.stage): cell for cell in reversed(order)}
    return list(dict.fromkeys([*of_faults.values(), *of_stages.values(), *order]))[:number]


def trials(cells: Sequence[Cell], *, together: int) -> list[list[Cell]]:
    """Which cells share a comparison.

    Those that hang at the start make the time-out of the start count, and keep to themselves.
    """
    alone = [[cell] for cell in cells if cell.is_alone]
    shared = [cell for cell in cells if not cell.is_alone]
    kinds = [
        [cell for cell in shared if cell.group == group]
        for group in sorted({cell.group for cell in shared})
    ]
    groups = [many[at : at + together] for many in kinds for at in range(0, len(many), together)]
    return groups + alone


def run(cells: Sequence[Cell], folder: Path, *, together: int) -> dict[Cell, list[str]]:
    """Run them and say how each was judged; returns those that did not hold."""
    broken: dict[Cell, list[str]] = {}
    for number, group in enumerate(trials(cells, together=together)):
        trial = _plant(group, folder / f"trial-{number:03d}")
        broken |= trial.broken
        for cell in group:
            told = "; ".join(trial.broken.get(cell, ["held"]))
            print(f"{trial.folder.name} {trial.seconds:5.1f} s  {cell}: {told}", flush=True)
    return broken


def _plant(cells: Sequence[Cell], folder: Path) -> Trial:
    return (
        lost_hosts.plant(cells[0], folder)
        if cells[0].fault in lost_hosts.FAULTS
        else faults.plant(cells, folder)
    )


def print_table(cells: Sequence[Cell], broken: Mapping[Cell, list[str]]) -> None:
    """Tried -> held, of each fault at each stage."""
    print(f"\n{'':15}" + "".join(f"{stage:>10}" for stage in (*STAGES, "all")))
    for fault in FAULTS:
        found = [cell for cell in cells if cell.fault == fault]
        if found:
            at = [*([cell for cell in found if cell.stage == stage] for stage in STAGES), found]
            print(f"{fault:15}" + "".join(f"{_count(some, broken):>10}" for some in at))
    print(f"{'all':15}" + " " * 10 * len(STAGES) + f"{_count(cells, broken):>10}")


def _count(cells: Sequence[Cell], broken: Mapping[Cell, list[str]]) -> str:
    return f"{len(cells)} -> {sum(cell not in broken for cell in cells)}" if cells else ""


if __name__ == "__main__":
    main()
