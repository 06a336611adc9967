"""What scripts do differently, most important first: porting mistakes, other work, other settings,
and lines that take time or call collectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from measurement.conditions import (
    SPEED_ENDS,
    Condition,
    condition_of,
    conditions,
    faults_clause,
)
from measurement.conditions.differences import (
    Difference,
    arm_differences,
    by_severity,
    differing,
    in_words,
    is_allowed,
    is_by_rank,
    own_work,
    shown,
)
from measurement.records.record import LaunchRecord, LineUse
from reports.parts_schema import Estimate
from reports.schema import NamedCause, Phase
from reports.scripts.porting_mistakes import FINDERS, Pair, PortingMistake
from reports.scripts.script_arms import OF_LOADER, SEEN, ScriptArm
from reports.wording.formatting import milliseconds

PARTS = ("accumulation", "rank_local_batch", "loader.batch_size", "loader.length")
"""Settings that are no other work where as many samples make a step, in another number of
passes."""
MIN_LINE_SHARE = 0.05
"""Lines are reported that take this share of a step or more."""
MAX_LINES = 3
"""That differences name of one arm."""


def script_differences(
    records: Sequence[LaunchRecord], *, allow: Collection[str] = ()
) -> list[Difference]:
    """In what the scripts of one launch differ, most important first.

    ``allow``: differences in work that do not withhold the verdict: names of fields, or ``all``.
    """
    compared = [
        record for record in records if record.scripts and record.role in ("baseline", "candidate")
    ]
    compared.sort(key=lambda record: record.role != "baseline")
    if len(compared) < 2 or compared[0].role != "baseline":
        return []
    baseline, *candidates = arms = [ScriptArm.of(record) for record in compared]
    pairs = [Pair(candidate=candidate, baseline=baseline) for candidate in candidates]
    mistakes = [mistake for pair in pairs for finder in FINDERS for mistake in finder(pair)]
    by_field: dict[str, Difference] = {}
    for mistake in mistakes:
        by_field[mistake.field] = _both(by_field.get(mistake.field), mistake)
    covered = {
        start: mistake.field for mistake in mistakes for start in (mistake.field, *mistake.covers)
    }
    rest = _settings(arms, covered=covered, own_fields=own_work(compared))
    of_ranks = [
        row for row in arm_differences(compared, allow=allow) if condition_of(row.field).scripts
    ]
    rows = [*by_field.values(), *(row for row in rest if row.field not in by_field)]
    for number, row in enumerate(rows):
        cause = next(
            (covered[start] for start in covered if row.field.startswith(start)), row.field
        )
        allows = is_allowed({row.field, cause}, allow, changes_work=row.changes_work)
        rows[number] = row.model_copy(update={"allowed": row.allowed or allows})
    return by_severity([*rows, *line_differences(arms), *of_ranks])


def _both(before: Difference | None, mistake: PortingMistake) -> Difference:
    """Mistakes of two candidates in the same field together."""
    if before is None:
        return mistake
    both = {
        "values": {**mistake.values, **before.values},
        "sentence": f"{before.sentence}; {mistake.sentence}",
        "changes_work": mistake.changes_work or before.changes_work,
    }
    return mistake.model_copy(update=both)


def _settings(
    arms: Sequence[ScriptArm], *, covered: Collection[str], own_fields: Collection[str]
) -> list[Difference]:
    """Every setting in which arms differ, the most informative first; a note where a mistake says
    it already.
    """
    rows = []
    for name, values in differing({arm.name: arm.fields for arm in arms}).items():
        condition = condition_of(name, of_scripts=True)
        if _is_idle(name, arms) or len({shown(value) for value in values.values()}) == 1:
            continue
        is_half_known = None in values.values()
        defaults = [arm.first.defaults[name] for arm in arms if name in arm.first.defaults]
        by_itself = f"; by itself the library has {shown(defaults[0])}" if defaults else ""
        is_default = condition.of_library and is_half_known and not defaults
        changes_work = (
            condition.matters == "work" and not is_half_known and not _is_as_much(name, arms)
        )
        severity = condition.matters
        if is_default or name.startswith(tuple(covered)) or _is_without_effect(name, arms):
            severity = "note"
        elif severity == "work" and not changes_work:
            severity = "training"
        elif severity == "training" and name.endswith(SPEED_ENDS):
            severity = "speed"
        sentence = _sentence(name, condition, values, arms)
        rows.append(
            Difference(
                field=name,
                values=values,
                severity=severity,
                changes_work=changes_work,
                allowed=is_default or bool(condition.follows & set(own_fields)),
                is_default=is_default,
                is_asked=name == "library",  # each command chooses its own
                sentence=sentence + faults_clause(name, values) + by_itself,
            )
        )
    order = conditions()
    return sorted(rows, key=lambda row: order.index(condition_of(row.field, of_scripts=True)))


def _is_idle(name: str, arms: Sequence[ScriptArm]) -> bool:
    """Whether a setting belongs to something that some arm does not use, or was not seen to, which
    has a line of its own.
    """
    whole = name.partition(".")[0]
    if name.startswith(OF_LOADER) and name != SEEN:
        return not all(SEEN in arm.fields for arm in arms)
    if (whole == "step" or (whole == "sampler" and name != "sampler.class")) and any(
        arm.fields.get(name) is None for arm in arms
    ):
        return True  # it was not seen, which is not "none", or a sampler has no such setting
    return name in ("autocast.dtype", "scaler.scale") and not all(
        arm.fields.get(f"{whole}.enabled") for arm in arms
    )


def _is_without_effect(name: str, arms: Sequence[ScriptArm]) -> bool:
    """Whether a variable controls what no arm uses, or what is equal in all arms."""
    if name == "environment.OMP_NUM_THREADS":
        threads = {arm.number("threads.torch") for arm in arms}
        return len(threads) == 1 and None not in threads
    if name == "ddp.broadcast_buffers":  # Horovod never does
        return all(
            arm.fields.get("library") == "horovod" or arm.fields.get(name) is False for arm in arms
        )
    return name.startswith("environment.NCCL_") and all(
        arm.fields.get("transport") not in ("nccl", None) for arm in arms
    )


def _is_as_much(name: str, arms: Sequence[ScriptArm]) -> bool:
    """Whether a setting leaves the work as it is: a step has as many samples in other passes, or a
    rank as many batches.
    """
    counts: set[float | None] = {None}
    if name in PARTS and len({arm.passes for arm in arms}) > 1:
        counts = {arm.samples for arm in arms}
    elif name == "loader.samples":
        counts = {arm.number("loader.length") for arm in arms}
    return len(counts) == 1 and None not in counts


def _sentence(
    name: str, condition: Condition, values: Mapping[str, Any], arms: Sequence[ScriptArm]
) -> str:
    """Such as ``threads of a rank: 1 in new, 2 in old (torchrun sets OMP_NUM_THREADS=1)``."""
    variable = name.removeprefix("environment.")
    none = "not seen on every rank" if name == SEEN else "not set"
    sentence = in_words(condition.label or variable, values, none=none)
    if name in ("threads.torch", "environment.OMP_NUM_THREADS") and any(
        str(arm.fields.get("environment.OMP_NUM_THREADS")) == str(values[arm.name]) == "1"
        for arm in arms
    ):
        return f"{sentence} (torchrun sets OMP_NUM_THREADS=1)"
    if name.startswith("seed.") and not any(is_by_rank(value) for value in values.values()):
        return f"{sentence}: they draw other weights, orders and dropout"
    return sentence


def line_differences(arms: Sequence[ScriptArm]) -> list[Difference]:
    """In what the lines of arms differ. ``arms``: the baseline first.

    Named are lines that one arm alone has, where all its lines take longer than the other's; and
    collectives besides those of gradients, where arms call unlike numbers of them in a step.
    """
    traced = [arm for arm in arms if arm.first.lines]
    rows = [difference for arm in traced[1:] for difference in _own_lines(arm, traced[0])]
    called = {arm.name: _collectives(arm) for arm in traced}
    totals = {calls.total() for calls in called.values()}
    sums = {any("(sum)" in call for call in calls) for calls in called.values() if calls}
    if len(totals) > 1 or len(sums) > 1:
        values = {arm.name: _listed(called[arm.name], arm) for arm in traced}
        rows.append(
            Difference(
                field="step.collectives",
                values=values,
                severity="training" if len(sums) > 1 else "speed",
                sentence=in_words("collectives of a step besides those of gradients", values),
            )
        )
    return rows


def _own_lines(ours: ScriptArm, theirs: ScriptArm) -> Iterator[Difference]:
    """The lines that the arm whose lines take longer has alone, where they are worth it, and are
    more than a wait for exchange.
    """
    whole_s = {arm.name: sum(line.seconds for line in other_lines(arm)) for arm in (ours, theirs)}
    more, less = (ours, theirs) if whole_s[ours.name] > whole_s[theirs.name] else (theirs, ours)
    apart_s = whole_s[more.name] - whole_s[less.name]
    texts = {line.text for line in less.first.lines}
    least_s = MIN_LINE_SHARE * sum(line.seconds for line in more.first.lines)
    for line in other_lines(more)[:MAX_LINES]:
        is_own = line.text not in texts and line.seconds > max(_exchange_s(more, line))
        if is_own and min(line.seconds, apart_s) >= least_s:
            size = f"{milliseconds(line.seconds)} ms"
            yield Difference(
                field=f"step.line.{line.place}",
                values={more.name: f"{size}: {line.text}", less.name: None},
                severity="speed",
                sentence=(
                    f"{size} of each of the first steps of {more.name} is {line.place}: {line.text}"
                ),
            )


def _collectives(arm: ScriptArm) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in arm.first.lines:
        counts.update(
            {f"{name} at {line.place}": round(count) for name, count in line.collectives.items()}
        )
    return +counts


def _listed(called: Counter[str], arm: ScriptArm) -> str | None:
    """Such as ``2 all_reduce of 4 B at train.py:48, waited for 3.1 ms in each of the first
    steps``; None without any.
    """
    if not called:
        return None
    seconds = sum(line.exchange_s for line in other_lines(arm) if line.collectives)
    waited = (
        f", waited for {milliseconds(seconds)} ms in each of the first steps" if seconds else ""
    )
    return ", ".join(f"{count} {name}" for name, count in called.items()) + waited


def line_causes(records: Iterable[LaunchRecord], *, step_s: float) -> list[NamedCause]:
    """Lines that take time of an arm's step, as causes of a difference in what is neither data,
    backward nor optimizer.

    ``records``: of one arm; the first with reports counts.
    """
    arm = next((ScriptArm.of(record) for record in records if record.scripts), None)
    causes = []
    for line in other_lines(arm) if arm else []:
        parts: dict[Phase, float] = {"exchange": line.exchange_s, "forward": line.seconds}
        causes += [
            NamedCause(
                name=f"{line.place} ({line.text})",
                term=phase,
                per_step_s=Estimate(value=seconds),
                setting=None,
            )
            for phase, seconds in parts.items()
            if seconds >= MIN_LINE_SHARE * step_s
        ]
    return causes


def other_lines(arm: ScriptArm) -> list[LineUse]:
    """Lines of rank 0's step that hold no phase, the longest first: seconds besides exchange, and
    exchange without a late rank.
    """
    others = [
        line.model_copy(
            update={
                "seconds": line.seconds - line.exchange_s,
                "exchange_s": min(_exchange_s(arm, line)),
            }
        )
        for line in arm.first.lines
        if not line.phases
    ]
    return sorted(others, key=lambda line: -line.seconds)


def _exchange_s(arm: ScriptArm, line: LineUse) -> list[float]:
    """What each rank waits for exchange in a line."""
    lines = [same for report in arm.reports for same in report.lines]
    return [same.exchange_s for same in lines if same.place == line.place]
