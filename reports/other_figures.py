"""Another tool's figures, from a CSV of arm, run, samples and seconds: compared as runs are that people started themselves.

It is somebody else's clock: nothing is known here of what it timed, of conditions, or of whether the arms train the same.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from measurement.conditions.same_environment import plan_digest
from measurement.errors import PlanError, quoted
from measurement.files import read_text
from measurement.plans.plan import ARM_NAME, Arm, Measurement, Plan
from measurement.records.block_steps import PHASES
from measurement.records.record import STEP_COLUMNS, LaunchRecord
from reports.compose_comparison import compare
from reports.conclusions.steps import Steps
from reports.schema import Comparison
from reports.wording.headlines import headline

COLUMNS = ("arm", "run", "samples", "seconds")
MOST_BYTES = 64 << 20
MOST_SAMPLES = 1 << 53
"""The most of a run: beyond it, floats are no longer exact."""
OTHER = "another tool"
"""In the place of a backend."""

NOT_OF_RUNS: Mapping[str, Any] = {
    "step_shares": None,
    "stalls": None,
    "by_rank": None,
    "parity": None,
    "step_time_s": {},
    "step_time_quantiles_s": [],
    "phases_s": {},
}
"""Fields of ``ArmSummary`` that nobody knows of a run's totals."""

Figures = dict[str, dict[str, tuple[int, float]]]
"""Samples and seconds, by arm and run, in the order of the file."""


def is_figures(given: Path) -> bool:
    """Whether an argument of ``ringside report`` names a CSV."""
    return given.suffix.lower() == ".csv" and not given.is_dir()


def conclude_figures(path: Path, *, name: str, baseline: str | None = None) -> Comparison:
    """Compare another tool's figures, unpaired.

    Args:
        path: a CSV with a header that names ``COLUMNS``; other columns are ignored, and rows of one run are summed.
        name: of the comparison.
        baseline: an arm's name; None: the arm of the first row.

    Raises:
        PlanError: it cannot be read; of a bad cell, with its line; or there is no such baseline.
    """
    figures = read_figures(path)
    chosen = baseline or next(iter(figures))
    if chosen not in figures:
        raise PlanError(f"--baseline '{chosen}' is no arm of '{path}'; use {' or '.join(figures)}")
    plan = _plan(figures, path, name=name, baseline=chosen)
    records = [_record(plan, arm, launch) for arm, runs in figures.items() for launch, _ in enumerate(runs)]
    found = compare(plan, records, _steps(figures))
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")
    known = {"runs": {arm: list(runs) for arm, runs in figures.items()}, "figures_of": str(path), "created_at": written}
    arms = [arm.model_copy(update=NOT_OF_RUNS) for arm in found.arms]
    clock = (
        f"Somebody else's clock: the figures are another tool's ('{path}'). Ringside timed nothing, saw no rank and no conditions, "
        "and checked no gradients"
    )
    said = {"warnings": [clock, *found.warnings], "limit": None}
    found = found.model_copy(update={**known, **said, "arms": arms, "block_table": {}})
    return found.model_copy(update={"headline": headline(found)})


def read_figures(path: Path) -> Figures:
    """Read a CSV, see ``conclude_figures``."""
    try:
        text = read_text(path, most=MOST_BYTES)
    except FileNotFoundError as error:
        raise PlanError(f"'{path}' does not exist; give a CSV with the columns {', '.join(COLUMNS)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"'{path}' cannot be read: {error}") from error
    found: Figures = {}
    for line, cells in _rows(path, text):
        samples, seconds = _figures_of_row(path, line, cells)
        before, longer = found.setdefault(cells["arm"], {}).get(cells["run"], (0, 0.0))
        found[cells["arm"]][cells["run"]] = (before + samples, longer + seconds)
    if not found:
        raise PlanError(f"'{path}' has no rows below its header; give a row for each run, of arm, run, samples and seconds")
    for arm, runs in found.items():
        for run, totals in runs.items():
            if not all(totals) or totals[0] > MOST_SAMPLES:
                raise PlanError(
                    f"'{path}': run {quoted(run)} of arm '{arm}' has {quoted(totals[0])} samples in {totals[1]:g} seconds; give "
                    f"both, and at most {MOST_SAMPLES} samples, or leave it out"
                )
    return found


def _figures_of_row(path: Path, line: int, cells: Mapping[str, str]) -> tuple[int, float]:
    if not ARM_NAME.fullmatch(cells["arm"]):
        raise _bad(path, line, f"arm {quoted(cells['arm'])} may hold only letters, digits and . _ + -, at most 100 of them")
    if not cells["run"]:
        raise _bad(path, line, "run is empty; give each run a name or a number")
    samples, seconds = (_number(cells[column], column, path, line) for column in ("samples", "seconds"))
    if samples != int(samples):
        raise _bad(path, line, f"samples is {quoted(cells['samples'])}; give a whole number")
    return int(samples), seconds


def _rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Each row's cells by column, with its line; rows that are empty are left out."""
    reader = csv.reader(text.splitlines(), strict=True)
    places: dict[str, int] | None = None
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if places is None:
                places = _header(path, reader.line_num, cells)
                continue
            if len(cells) <= max(places.values()):
                raise _bad(path, reader.line_num, f"it has {len(cells)} columns; the header has more")
            yield reader.line_num, {column: cells[place] for column, place in places.items()}
    except csv.Error as error:
        raise _bad(path, reader.line_num, f"it is no CSV ({error})") from error
    if places is None:
        raise PlanError(f"'{path}' is empty; give a CSV with a header that names the columns {', '.join(COLUMNS)}")


def _header(path: Path, line: int, cells: list[str]) -> dict[str, int]:
    names = [cell.lower() for cell in cells]
    missing = [column for column in COLUMNS if names.count(column) != 1]
    if missing:
        raise _bad(
            path, line, f"the header has {quoted(','.join(cells))}; it must name each of {', '.join(COLUMNS)} once, by commas"
        )
    return {column: names.index(column) for column in COLUMNS}


def _number(text: str, column: str, path: Path, line: int) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise _bad(path, line, f"{column} is {quoted(text)}; give a number that is not below 0")
    return number


def _bad(path: Path, line: int, what: str) -> PlanError:
    return PlanError(f"'{path}', line {line}: {what}")


def _plan(figures: Figures, path: Path, *, name: str, baseline: str) -> Plan:
    launches = max(map(len, figures.values()))
    measurement = Measurement(mode="separate", control=False, floor=False, local_every=0, freeze=False, launches=launches)
    arms = {arm: Arm(backend=OTHER) for arm in figures}
    return Plan(name=name, workload=path.name, world_size=1, baseline=baseline, arms=arms, measurement=measurement)


def _record(plan: Plan, arm: str, launch: int) -> LaunchRecord:
    place: Mapping[str, Any] = {"comparison_id": plan.name, "plan_digest": plan_digest(plan), "launch": launch, "arm": arm}
    what: Mapping[str, Any] = {"backend": OTHER, "transport": "", "launcher": "", "workload": plan.workload, "world_size": 1}
    return LaunchRecord(**place, **what, role=plan.role(arm), status="ok", started_at="")


def _steps(figures: Figures) -> Steps:
    """A run as one step of one block. The phases are not known, and stand under one."""
    import pandas as pd

    unknown = {f"{phase}_s": 0.0 for phase in PHASES}
    rows = [
        {"launch": launch, "arm": arm, "turn": launch, "round": 0, "block": 0, "kind": "sync", "case": None, "rank": 0, "step": 0}
        | {"samples": samples, "step_s": seconds, **unknown, "forward_s": seconds}
        for arm, runs in figures.items()
        for launch, (samples, seconds) in enumerate(runs.values())
    ]
    return Steps.of(pd.DataFrame(rows, columns=["launch", "arm", *STEP_COLUMNS]))
