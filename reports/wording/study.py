"""The sentences of a study: who is fastest where, where a verdict flips, how each arm scales, what the links cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from measurement.plan import Plan
from reports.quantities import milliseconds
from reports.schema import ArmSummary
from reports.study_schema import StudyPoint
from reports.wording import control_failed, first_line

NO_TIMING = "without timing"
DECIDED = ("faster", "slower")


def is_about_links(points: Sequence[StudyPoint]) -> bool:
    """Whether nothing but the rate of the links differs between the points."""
    places = {(point.world_size, point.hosts, point.local_batch_size) for point in points}
    return len(places) == 1 and len({point.link_rate for point in points}) > 1


def along(points: Sequence[StudyPoint]) -> list[StudyPoint]:
    """The order in which they are told: from the fastest link to the slowest, else the plan's."""
    return sorted(points, key=lambda point: -point.rate_bits_per_s) if is_about_links(points) else list(points)


def label(points: Sequence[StudyPoint], point: StudyPoint) -> str:
    """What a point is called in a sentence or on an axis."""
    return (point.link_rate or "links as they are") if is_about_links(points) else point.name


def headline(points: Sequence[StudyPoint], plan: Plan) -> str:
    """Who is fastest where, and between which points that changes; without candidates at all points, how the first arm scales."""
    partly = {arm.name for point in points for arm in point.arms if arm.status == "not at this point"}
    told = [(label(points, point), winner(point, plan, without=partly)) for point in along(points)]
    known = [(where, who) for where, who in told if who is not None]
    if not known:
        scaled = [sentence for name in plan.arms if (sentence := scaling_sentence(points, name))]
        return scaled[0] if scaled else "Nothing could be compared at any point"
    names = dict.fromkeys(who for _, who in known)
    if len(names) == 1:
        return _sentence(f"{_lead(known[0][1], plan)} at {_list([where for where, _ in known])}")
    parts = [f"{_lead(name, plan)} at {_list([where for where, who in known if who == name])}" for name in names]
    changes = [f"{a} and {b}" for (a, before), (b, after) in pairwise(known) if before != after]
    return _sentence(f"{'; '.join(parts)}: the winner changes between {_list(changes, ', and between ')}")


def winner(point: StudyPoint, plan: Plan, *, without: Collection[str] = ()) -> str | None:
    """The candidate that is faster than the baseline by most; the baseline where none is; None without any ratio.

    ``without`` names arms that do not run at every point: they only show what the others scale from.
    """
    ratios = [result for result in point.results if result.role == "candidate" and result.candidate not in without]
    if all(result.throughput_ratio is None for result in ratios):
        return None
    faster = [result for result in ratios if result.verdict == "faster"]
    return max(faster, key=lambda result: result.throughput_ratio or 0.0).candidate if faster else plan.baseline


def _lead(name: str, plan: Plan) -> str:
    return f"no arm is shown to be faster than {name}" if name == plan.baseline else f"{name} is fastest"


def _sentence(text: str) -> str:
    """Its first letter large, unless it is a name's."""
    return text.replace("no arm", "No arm", 1) if text.startswith("no arm") else text


def findings(points: Sequence[StudyPoint], plan: Plan) -> list[str]:
    """One sentence per candidate on its verdicts, then one per arm on how it scales, then on what the links cost it."""
    candidates = [name for name in plan.arms if name != plan.baseline]
    said = [verdicts_sentence(points, name, plan.baseline) for name in candidates]
    said += [sentence for name in plan.arms if (sentence := scaling_sentence(points, name))]
    if is_about_links(points):
        said += [sentence for name in plan.arms if (sentence := exposed_sentence(points, name))]
    return said


def verdicts_sentence(points: Sequence[StudyPoint], name: str, baseline: str) -> str:
    """At which points a candidate is what, and between which two its verdict flips."""
    told = [(label(points, point), _verdict(point, name)) for point in along(points)]
    parts = []
    for verdict in dict.fromkeys(verdict for _, verdict in told):
        where = [place for place, other in told if other == verdict]
        parts.append(f"{verdict} at {_list(where)}")
    return f"{name} against {baseline}: {'; '.join(parts)}{_flips(told)}"


def _verdict(point: StudyPoint, name: str) -> str:
    result = point.result(name)
    if result is not None and result.throughput_ratio is not None:
        return result.verdict
    status = point.arm(name).status
    return NO_TIMING if status == "ok" else status


def _flips(told: Sequence[tuple[str, str]]) -> str:
    """From one decided verdict to the opposite one; what lies between them is not decided."""
    decided = [(place, verdict) for place, verdict in told if verdict in DECIDED]
    places = [f"{first} and {second}" for (first, before), (second, after) in pairwise(decided) if before != after]
    return f"; the verdict flips between {_list(places, ', and between ')}" if places else ""


def scaling_sentence(points: Sequence[StudyPoint], name: str) -> str | None:
    """Speed-up and efficiency at the most ranks that the arm was measured with."""
    most = max(points, key=lambda point: (point.arm(name).speed_up is not None, point.world_size))
    arm = most.arm(name)
    if arm.speed_up is None or arm.scaling_efficiency is None or len({point.world_size for point in points}) == 1:
        return None
    if most.world_size == 1:
        return None
    return (
        f"{name} at {most.name} ({most.world_size} ranks): {arm.speed_up.value:.2f} times the throughput of "
        f"{arm.scaling_baseline}, an efficiency of {arm.scaling_efficiency:.0%}"
    )


def exposed_sentence(points: Sequence[StudyPoint], name: str) -> str | None:
    """Exposed communication from the fastest link to the slowest."""
    found = [(label(points, point), point.arm(name).exposed_comm_s) for point in along(points)]
    figures = [f"{milliseconds(exposed.value)} ms at {where}" for where, exposed in found if exposed is not None]
    return f"Exposed communication of {name}, per step: {', '.join(figures)}" if len(figures) > 1 else None


def warnings(points: Sequence[StudyPoint]) -> list[str]:
    """What a reader must know before believing the figures."""
    said = [f"{point.name}: {first_line(point.cause)}" for point in points if point.cause]
    for point in points:
        failed = [arm for arm in point.arms if arm.status in ("failed", "wrong", "timeout") and arm.errors and not point.cause]
        said += [f"{point.name}: {arm.name} is {arm.status}: {first_line(arm.errors[0].message)}" for arm in failed]
    said += [
        f"{point.name}: the control failed, see its own report"
        for point in points
        if any(result.role == "control" and not result.case and control_failed(result) for result in point.results)
    ]
    return said


def cause_of(arm: ArmSummary) -> str:
    """Why an arm has no figures at a point, in one line."""
    return first_line(arm.errors[0].message) if arm.errors else ""


def _list(words: Sequence[str], last: str = " and ") -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + last + words[-1] if words else ""
