"""The sentences of a report: the answer first, and what weakens it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from measurement.plan import Plan
from reports.cells import VERDICTS, tally, tally_words
from reports.quantities import interval, percent, ratio
from reports.schema import ArmSummary, RatioSummary
from reports.statistics import ONE_LAUNCH, ONE_PAIR

MAX_NAMED = 3
"""Cells that a sentence names."""


def findings(results: Sequence[RatioSummary], arms: Sequence[ArmSummary], plan: Plan) -> list[str]:
    """One sentence per candidate, the fastest first, those without timing last."""
    candidates = [result for result in results if result.role == "candidate"]
    if any(result.case for result in results):
        return _findings_of_cells(candidates, arms, plan)
    ordered = sorted(candidates, key=lambda result: -(result.throughput_ratio or 0.0))
    by_name = {arm.name: arm for arm in arms}
    return [finding(result, by_name[result.candidate], by_name[plan.baseline], plan) for result in ordered]


def _findings_of_cells(results: Sequence[RatioSummary], arms: Sequence[ArmSummary], plan: Plan) -> list[str]:
    """One sentence per candidate, the one that is faster in most cells first, those without timing last."""
    by_name = {arm.name: arm for arm in arms}
    counts = {name: tally(arm, results) for name, arm in by_name.items() if plan.role(name) == "candidate"}
    timed = [name for name in counts if any(counts[name][verdict] for verdict in VERDICTS)]
    timed.sort(key=lambda name: counts[name]["slower"] - counts[name]["faster"])
    rest = [name for name in counts if name not in timed]
    return [
        *(f"{name} against {plan.baseline}: {tally_words(counts[name])}" for name in timed),
        *(_no_timing(by_name[plan.baseline if by_name[name].blocks else name], name, plan.baseline) for name in rest),
    ]


def finding(result: RatioSummary, arm: ArmSummary, baseline: ArmSummary, plan: Plan) -> str:
    """What is known of one candidate, in one sentence."""
    ours, theirs = result.candidate, result.baseline
    if result.throughput_ratio is None:
        return _no_timing(arm if arm.throughput_per_s is None else baseline, ours, theirs)
    figures = f"({interval_words(result)})"
    apart = f"{abs(result.throughput_ratio - 1):.1%}"
    match result.verdict:
        case "faster" | "slower":
            return f"{ours} is {apart} {result.verdict} than {theirs} {figures}"
        case "equivalent":
            return f"{ours} and {theirs} are equivalent within {percent(plan.measurement.noise_threshold)} {figures}"
    return f"Undecided whether {ours} or {theirs} is faster {figures}{_what_next(result)}"


def interval_words(result: RatioSummary) -> str:
    """Ratio, interval, launches and pairs of a result."""
    if result.throughput_ratio is None:
        return "no timing"
    parts = [f"ratio {ratio(result.throughput_ratio)}"]
    if result.ci_low is not None and result.ci_high is not None:
        parts.append(f"{percent(result.confidence)} interval {interval(result)}")
    return ", ".join([*parts, _count(result.launches, "launch", "launches"), _count(result.pairs, "pair", "pairs")])


def _what_next(result: RatioSummary) -> str:
    if result.more_minutes is not None:
        return f"; about {minutes_words(result.more_minutes)} more of measuring should decide"
    if result.note:
        return f"; {result.note}"
    return "; it lies so near the threshold that not even a day of measuring would decide" if result.ci_low else ""


def minutes_words(minutes: float) -> str:
    """A duration, rounded up to what one would wait."""
    if minutes >= 90:
        return f"{math.ceil(minutes / 60)} hours"
    return _count(max(1, math.ceil(minutes)), "minute", "minutes")


def _no_timing(arm: ArmSummary, ours: str, theirs: str) -> str:
    message = next((error.message for error in arm.errors), "")
    reason = f"{arm.name} is {arm.status}" + (f": {first_line(message)}" if message else "")
    return f"No comparison of {ours} with {theirs}: {reason}"


def first_line(text: str, *, limit: int = 160) -> str:
    """The first line of a message, cut where it is too long for a sentence."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= limit else line[: limit - 1] + "…"


def control_sentence(results: Sequence[RatioSummary], plan: Plan) -> str:
    """What the comparison of the baseline with itself says."""
    control = next((result for result in results if result.role == "control"), None)
    if control is None:
        return "No control was run: nothing checks that equal arms come out equal"
    if control.case:
        return _control_of_cells([result for result in results if result.role == "control"], plan)
    if control.ci_low is None or control.ci_high is None:
        return f"The control gives no interval ({interval_words(control)}): nothing checks that equal arms come out equal"
    figures = interval_words(control)
    if control_failed(control):
        reach = max(abs(math.log(control.ci_low)), abs(math.log(control.ci_high)))
        return (
            f"The control failed: {plan.baseline} against itself differs ({figures}), "
            f"so no difference below {math.expm1(reach):.1%} is claimed"
        )
    return f"Control: {plan.baseline} against itself comes out equal ({figures})"


def _control_of_cells(controls: Sequence[RatioSummary], plan: Plan) -> str:
    """In how many cells the baseline comes out equal to itself, and in which not."""
    known = [control for control in controls if control.ci_low is not None]
    if not known:
        return "The control gives no interval: nothing checks that equal arms come out equal"
    failed = [f"{control.case} {ratio(control.throughput_ratio)}" for control in known if control_failed(control)]
    chance = percent(round(1 - plan.measurement.confidence, 6))
    if failed:
        named = ", ".join(failed[:MAX_NAMED]) + (", ..." if len(failed) > MAX_NAMED else "")
        return (
            f"The control failed in {len(failed)} of {len(known)} cells ({named}; {chance} of them are expected to, by chance), "
            "where no smaller difference is claimed"
        )
    return f"Control: {plan.baseline} against itself comes out equal in all {len(known)} cells"


def control_failed(control: RatioSummary) -> bool:
    """Whether the control's interval excludes 1."""
    return control.ci_low is not None and control.ci_high is not None and not control.ci_low <= 1 <= control.ci_high


def headline(said: Sequence[str], control: str, results: Sequence[RatioSummary]) -> str:
    """The first line of every report: the control where it failed, then the best candidate's finding."""
    best = said[0] if said else control
    failed = any(result.role == "control" and control_failed(result) for result in results)
    return f"{control}. {best}" if failed and best != control else best


def warnings(plan: Plan, arms: Sequence[ArmSummary], results: Sequence[RatioSummary]) -> list[str]:
    """What a reader must know before believing the figures."""
    found = [f"{arm.name} was interrupted; what it had measured counts" for arm in arms if not arm.complete]
    for arm in arms:
        if arm.status not in ("ok", "not measured") and arm.launches:
            lost = len({error.launch for error in arm.errors})
            found.append(f"{arm.name} is {arm.status} in {_count(lost, 'launch', 'launches')}; the others count")
    far_out = [result for result in results if _is_far_out(result, plan.measurement.noise_threshold)]
    if any(result.case for result in far_out):
        found.append(f"In {len(far_out)} of {len(results)} ratios a few blocks are far out: see mean_ratio in comparison.json")
    else:
        found += [
            f"{result.candidate}: the mean of all pairs is {result.mean_ratio:.3f}, the trimmed one {result.throughput_ratio:.3f}; "
            "a few blocks are far out, see the pairs"
            for result in far_out
        ]
    cautions = dict.fromkeys(result.note for result in results if result.note in (ONE_LAUNCH, ONE_PAIR))
    return [*found, *(caution for caution in cautions if caution)]


def _is_far_out(result: RatioSummary, threshold: float) -> bool:
    """The mean of all pairs is elsewhere than the trimmed one."""
    trimmed, mean = result.throughput_ratio, result.mean_ratio
    return bool(trimmed and mean and abs(math.log(mean / trimmed)) > threshold)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
