"""What the lines of scripts tell: which of them take time besides the phases that are timed, and which call collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from measurement.conditions.conditions import Severity
from measurement.conditions.differences import Difference, in_words
from measurement.records.record import LaunchRecord
from measurement.records.script_report import LineUse
from reports.estimate import Estimate
from reports.schema import NamedCause, Phase
from reports.scripts.script_arms import ScriptArm
from reports.wording.formatting import milliseconds

WORTH = 0.05
"""Lines are told of that take this share of a step or more."""
TIMED = ("step.line.", "step.collectives")
"""How fields begin whose differences have milliseconds: they are others in each launch."""
MAX_LINES = 3
"""That differences name of one arm."""


def other_lines(arm: ScriptArm) -> list[LineUse]:
    """Lines of rank 0's step that hold no phase, the longest first: seconds besides exchange, and exchange without a late rank."""
    found = []
    for line in arm.first.lines:
        waited_s = min(one.exchange_s for report in arm.reports for one in report.lines if one.place == line.place)
        if not line.phases:
            found.append(line.model_copy(update={"seconds": line.seconds - line.exchange_s, "exchange_s": waited_s}))
    return sorted(found, key=lambda line: -line.seconds)


def line_causes(records: Iterable[LaunchRecord], *, step_s: float) -> list[NamedCause]:
    """Lines that take time of an arm's step, as causes of a difference in what is neither data, backward nor optimizer.

    ``records``: of one arm; the first with reports counts.
    """
    arm = next((ScriptArm.of(record) for record in records if record.scripts), None)
    parts: list[tuple[LineUse, Phase, float]] = []
    for line in other_lines(arm) if arm else []:
        parts += [(line, "exchange", line.exchange_s), (line, "forward", line.seconds)]
    return [
        NamedCause(name=f"{line.place} ({line.text})", term=phase, per_step_s=Estimate(value=seconds), setting=None)
        for line, phase, seconds in parts
        if seconds >= WORTH * step_s
    ]


def line_differences(arms: Sequence[ScriptArm]) -> list[Difference]:
    """In what the lines of arms differ. ``arms``: the baseline first.

    Named are lines that one arm alone has, where all its lines take longer than the other's; and collectives besides those of
    gradients, where arms call unlike numbers of them in a step.
    """
    known = [arm for arm in arms if arm.first.lines]
    found = [difference for arm in known[1:] for difference in _own_lines(arm, known[0])]
    called = {arm.name: _collectives(arm) for arm in known}
    sums = {arm.name: any("(sum)" in one for one in called[arm.name]) for arm in known if called[arm.name]}
    if len({(one.total(), sums.get(name)) for name, one in called.items()}) > 1:
        label = "collectives of a step besides those of gradients"
        values = {arm.name: _listed(called[arm.name], arm) if called[arm.name] else None for arm in known}
        one_sums = len(set(sums.values())) > 1
        sentence = in_words(label, values) + "; a sum is the mean times the number of ranks" * one_sums
        severity: Severity = "training" if one_sums else "speed"
        found.append(Difference(field="step.collectives", values=values, severity=severity, sentence=sentence))
    return found


def _own_lines(ours: ScriptArm, theirs: ScriptArm) -> Iterator[Difference]:
    """The lines that the arm whose lines take longer has alone, where they are worth it, and are more than a wait for exchange."""
    whole_s = {arm.name: sum(line.seconds for line in other_lines(arm)) for arm in (ours, theirs)}
    more, less = (ours, theirs) if whole_s[ours.name] > whole_s[theirs.name] else (theirs, ours)
    apart_s = whole_s[more.name] - whole_s[less.name]
    texts = {line.text for line in less.first.lines}
    for line in other_lines(more)[:MAX_LINES]:
        waited_s = max(one.exchange_s for report in more.reports for one in report.lines if one.place == line.place)
        if (
            line.text not in texts
            and line.seconds > waited_s
            and min(line.seconds, apart_s) >= WORTH * sum(one.seconds for one in more.first.lines)
        ):
            size = f"{milliseconds(line.seconds)} ms of each of the first steps"
            sentence = f"{size} of {more.name} is {line.place}: {line.text}"
            values = {more.name: f"{milliseconds(line.seconds)} ms: {line.text}", less.name: None}
            yield Difference(field=f"step.line.{line.place}", values=values, severity="speed", sentence=sentence)


def _collectives(arm: ScriptArm) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in arm.first.lines:
        found.update({f"{name} at {line.place}": round(count) for name, count in line.collectives.items()})
    return +found


def _listed(called: Counter[str], arm: ScriptArm) -> str:
    """Such as ``2 all_reduce of 4 B at train.py:48, waited for 3.1 ms in each of the first steps``."""
    seconds = sum(line.exchange_s for line in other_lines(arm) if line.collectives)
    waited = f", waited for {milliseconds(seconds)} ms in each of the first steps" if seconds else ""
    return ", ".join(f"{count} {name}" for name, count in called.items()) + waited
