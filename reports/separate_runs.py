"""Runs that people started themselves become a comparison: ``ringside report RUN RUN ...``.

One run is one launch. Runs of the same backend, transport, launcher and options are one arm's
launches; runs of several world sizes are its points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from measurement.conditions.differences import by_severity, in_words, is_allowed
from measurement.conditions.same_environment import plan_digest
from measurement.errors import PlanError
from measurement.plans.plan import Point
from measurement.plans.sections import Arm
from measurement.records.record import LaunchRecord
from measurement.records.results import ResultsFolder
from reports import write_files
from reports.compose_comparison import compare, compare_points
from reports.conclusions.steps import Steps, read_steps
from reports.runs import (
    Run,
    asked_differences,
    rank_differences,
    refuse,
    require_equal_conditions,
)
from reports.schema import Comparison


def conclude_runs(
    runs: Sequence[Run], *, name: str, baseline: str | None = None, allowed: Sequence[str] = ()
) -> Comparison:
    """Compare runs.

    ``baseline``: an arm's name, else that of the first run. ``allowed``: fields that may differ,
    with all fields below them.

    Raises:
        PlanError: the runs do not measure the same thing, or there is no such baseline.
    """
    arms = list(dict.fromkeys(run.arm for run in runs))
    baseline = baseline or arms[0]
    if baseline not in arms:
        raise PlanError(
            f"--baseline '{baseline}' is not an arm of these runs; use {' or '.join(arms)}"
        )
    notes = require_equal_conditions(runs, allowed)
    by_size: dict[int, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.plan.world_size):
        by_size.setdefault(run.plan.world_size, []).append(run)
    compare_runs = partial(_comparison, allowed=allowed, notes=notes)
    if len(by_size) == 1 or runs[0].plan.training is not None:
        return compare_runs(runs, name=name, baseline=baseline)
    scaling = _scaling(by_size, allowed)
    comparisons = {}
    for size, same in by_size.items():
        present = {run.arm for run in same}
        is_alone = baseline not in present and len(present) == 1
        comparisons[f"n{size}"] = compare_runs(
            same, name=f"{name}.n{size}", baseline=same[0].arm if is_alone else baseline
        )
    update = {
        "name": name,
        "baseline": baseline,
        "arms": {run.arm: _as_asked(run.record) for run in runs},
        "points": {f"n{size}": Point(world_size=size) for size in by_size},
        "scaling": scaling,
        "world_size": min(by_size),
    }
    plan = by_size[min(by_size)][0].plan.model_copy(update=update)
    return compare_points(plan, comparisons, comparison_id=name)


def write_runs(comparison: Comparison, folder: ResultsFolder) -> None:
    """Write every customary report into a folder, those of points into folders of their own."""
    for point in comparison.points:
        write_files(folder.point(point.name), point, None)
    write_files(folder, comparison, None)


def _comparison(
    runs: Sequence[Run],
    *,
    name: str,
    baseline: str,
    allowed: Sequence[str],
    notes: Sequence[str],
) -> Comparison:
    """Compare runs of one world size that may be compared."""
    by_arm: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.record.started_at):
        by_arm.setdefault(run.arm, []).append(run)
    if baseline not in by_arm:
        raise PlanError(
            f"there is no run of the baseline '{baseline}' with {runs[0].plan.world_size} ranks;"
            " measure one, or choose another --baseline"
        )
    first, least = by_arm[baseline][0], min(run.plan.seed for run in runs)
    length = {"launches": max(map(len, by_arm.values()))}
    update = {
        "name": name,
        "seed": least,
        "baseline": baseline,
        "arms": {arm: _as_asked(same[0].record) for arm, same in by_arm.items()},
        "measurement": first.plan.measurement.model_copy(update=length),
    }
    # that a driver would have run: everything is as in the baseline's first run
    plan = first.plan.model_copy(update=update)
    launches = _launches(by_arm, least=least if plan.training else None)
    records, tables = [], []
    for (arm, launch), run in launches.items():
        place = {
            "comparison_id": name,
            "plan_digest": plan_digest(plan),
            "arm": arm,
            "role": plan.role(arm),
            "launch": launch,
        }
        records.append(run.record.model_copy(update=place))
        tables.append(read_steps(run.folder, [run.record]).as_of(arm=arm, launch=launch))
    firsts = [replace(same[0], name=arm) for arm, same in by_arm.items()]
    rows = by_severity(
        [*asked_differences(firsts, allowed=allowed), *rank_differences(firsts, allowed=allowed)]
    )
    comparison = compare(plan, records, Steps.joined(tables), differences=rows)
    named = {arm: [run.name for run in same] for arm, same in by_arm.items()}
    return comparison.model_copy(update={"runs": named, "warnings": [*comparison.warnings, *notes]})


def _as_asked(record: LaunchRecord) -> Arm:
    """What a plan would say of a run."""
    return Arm(
        backend=record.backend,
        transport=record.transport,
        launcher=record.launcher,
        options=record.options,
    )


def _launches(
    by_arm: Mapping[str, Sequence[Run]], *, least: int | None
) -> dict[tuple[str, int], Run]:
    """Every run by arm and number of launch: of an arm in the order of their start, of trainings by
    seed, which arms share, from the ``least``.
    """
    launches: dict[tuple[str, int], Run] = {}
    for arm, same in by_arm.items():
        for number, run in enumerate(same):
            launch = number if least is None else run.plan.seed - least
            other = launches.setdefault((arm, launch), run)
            if other is not run:
                raise PlanError(
                    f"'{other.name}' and '{run.name}' trained {arm} with the same seed"
                    f" {run.plan.seed}; give each a seed of its own, the same ones in every arm, or"
                    " leave one out"
                )
    return launches


def _scaling(by_size: Mapping[int, Sequence[Run]], allowed: Sequence[str]) -> str:
    """What stays the same from size to size."""
    batches = {size: same[0].plan.local_batch_size for size, same in by_size.items()}
    if len({*batches.values()}) == 1:
        return "weak"
    wholes = {same[0].global_batch for same in by_size.values()}
    if len(wholes) > 1 and not is_allowed({"local_batch_size"}, allowed):
        batch_of_size = {f"runs of {size} ranks": batch for size, batch in batches.items()}
        refuse(
            [
                f"{in_words('local_batch_size', batch_of_size)} (neither the batch of each rank nor"
                " that of all together is the same)"
            ]
        )
    return "strong"
