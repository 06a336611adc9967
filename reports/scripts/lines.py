"""The lines of scripts: which take time outside of the timed phases, and which call collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from measurement.conditions.differences import Difference, in_words
from measurement.records.record import LaunchRecord, LineUse
from reports.parts_schema import Estimate
from reports.schema import NamedCause, Phase
from reports.scripts.script_arms import ScriptArm
from reports.wording.formatting import milliseconds

MIN_LINE_SHARE = 0.05
"""Lines are reported that take this share of a step or more."""
MAX_LINES = 3
"""That differences name of one arm."""


def other_lines(arm: ScriptArm) -> list[LineUse]:
    """Lines of rank 0's step that hold no phase, the longest first: seconds besides exchange, and
    exchange without a late rank.
    """
    others = []
    for line in arm.first.lines:
        waited_s = min(
            same.exchange_s
            for report in arm.reports
            for same in report.lines
            if same.place == line.place
        )
        if not line.phases:
            others.append(
                line.model_copy(
                    update={"seconds": line.seconds - line.exchange_s, "exchange_s": waited_s}
                )
            )
    return sorted(others, key=lambda line: -line.seconds)


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
        label = "collectives of a step besides those of gradients"
        values = {
            arm.name: _listed(called[arm.name], arm) if called[arm.name] else None for arm in traced
        }
        rows.append(
            Difference(
                field="step.collectives",
                values=values,
                severity="training" if len(sums) > 1 else "speed",
                sentence=in_words(label, values),
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
    for line in other_lines(more)[:MAX_LINES]:
        waited_s = max(
            same.exchange_s
            for report in more.reports
            for same in report.lines
            if same.place == line.place
        )
        if (
            line.text not in texts
            and line.seconds > waited_s
            and min(line.seconds, apart_s)
            >= MIN_LINE_SHARE * sum(other.seconds for other in more.first.lines)
        ):
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


def _listed(called: Counter[str], arm: ScriptArm) -> str:
    """Such as ``2 all_reduce of 4 B at train.py:48, waited for 3.1 ms in each of the first
    steps``.
    """
    seconds = sum(line.exchange_s for line in other_lines(arm) if line.collectives)
    waited = (
        f", waited for {milliseconds(seconds)} ms in each of the first steps" if seconds else ""
    )
    return ", ".join(f"{count} {name}" for name, count in called.items()) + waited
