"""The answer in at most twenty words, whatever the arms are; of several points who is fastest
where; and the answer of a comparison with an earlier result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from measurement.plans.plan import Plan
from reports.conclusions.scaling import leaders
from reports.parts_schema import Against, ArmTraining, Change, Convergence, TrainingSummary
from reports.schema import ArmSummary, Comparison, Profile, RatioSummary
from reports.wording.causes import NAMES, brief_reason, verdict_word, withheld_words
from reports.wording.comparison_sentences import (
    FAILURE_WORDS,
    IN_BATCHES,
    case_counts,
    counts_words,
    in_order,
    scaling_sentences,
)
from reports.wording.disturbances import is_wide
from reports.wording.formatting import (
    LARGEST,
    accuracy,
    difference_text,
    listed,
    milliseconds,
    percent,
    rate,
    seconds,
    share,
    size_text,
)

MAX_WORDS = 20
"""The most words of a headline."""
MAX_NAMED = 3
"""Arms, or figures, that a clause names."""
CONVERGENCE: dict[Convergence, str] = {
    "differs": "another accuracy than",
    "same": "the same accuracy as",
    "undecided": "accuracy undecided beside",
}
NO_SPEED = (
    "No verdict on speed: CPUs stand in for GPUs, and whether both train alike is by the CPU's"
    " arithmetic"
)
SPELLINGS = {
    "ddp": "DDP",
    "fsdp2": "FSDP2",
    "horovod": "Horovod",
    "gloo": "Gloo",
    "mpi": "MPI",
    "nccl": "NCCL",
}
"""Libraries and transports as they are written; others as they call themselves."""


def headline(comparison: Comparison) -> str:
    """The answer, without a full stop."""
    if comparison.training:
        clauses = training_clauses(comparison.training) + _speed_clauses(comparison)
    elif comparison.profile:
        clauses = _profile_clauses(comparison.profile, comparison.baseline)
    else:
        clauses = _case_clauses(comparison) if comparison.cases else _clauses(comparison)
    return fitting(
        [inherited_variables_note(comparison.inherited_variables) + clauses[0], *clauses[1:]]
    )


def _speed_clauses(comparison: Comparison) -> list[str]:
    """Which arms that train to the end are faster or slower, whenever they reach a target."""
    timed = [result for result in comparison.candidates if result.throughput_ratio is not None]
    decided = in_order([result for result in timed if result.is_decided], comparison.question)
    names = {arm.name: arm.name for arm in comparison.arms}
    return _decided(decided, names, comparison.baseline, verb="steps") or (
        ["step speed is undecided"] if timed else []
    )


def _profile_clauses(profile: Profile, name: str) -> list[str]:
    """How long the step of a single script takes on its slowest rank, and the phases that take most
    of it.
    """
    slowest = max(profile.ranks, key=lambda rank: rank.step_s)
    most = sorted(slowest.phases_s, key=lambda phase: -slowest.phases_s[phase])
    parts = [f"{share(slowest.phases_s[phase] / slowest.step_s)} {NAMES[phase]}" for phase in most]
    return [f"A step of {name} takes {milliseconds(slowest.step_s)} ms: {', '.join(parts[:3])}"]


def inherited_variables_note(names: Sequence[str]) -> str:
    """What the shell had while arms were timed, such as ``With TORCH_LOGS set: ``; empty where that
    is nothing.
    """
    return f"With {', '.join(names)} set: " if names else ""


def fitting(clauses: Sequence[str]) -> str:
    """As many clauses as ``MAX_WORDS`` hold, and how many more there are; the first always."""
    for last in range(len(clauses), 0, -1):
        left = len(clauses) - last
        rest = "".join(
            clause if clause.startswith(",") else f"; {clause}" for clause in clauses[1:last]
        )
        text = clauses[0] + rest + (f"; {left} more below" if left else "")
        if len(text.split()) <= MAX_WORDS:
            return text
    return clauses[0]


def _clauses(comparison: Comparison) -> list[str]:
    """What is decided first, then what is equivalent, undecided or failed."""
    arms = [arm for arm in comparison.arms if arm.role != "control"]
    bad = [arm for arm in arms if arm.has_failed]
    timed = [
        result
        for result in in_order(comparison.candidates, comparison.question)
        if result.throughput_ratio is not None
    ]
    if not timed:
        clauses = [f"{arm.name} {FAILURE_WORDS[arm.status]}" for arm in bad] or [
            f"nothing was timed that {comparison.baseline} could be compared with"
        ]
        return [f"No comparison: {clauses[0]}", *clauses[1:]]
    if all(result.withheld_by == "cpu" for result in timed):
        return [NO_SPEED, *(f"{arm.name} {FAILURE_WORDS[arm.status]}" for arm in bad)]
    names = labels(arms)
    base = names[comparison.baseline]
    groups: dict[str, list[RatioSummary]] = {}
    for result in timed:
        groups.setdefault("decided" if result.is_decided else verdict_word(result), []).append(
            result
        )
    is_doubtful = any(map(is_wide, comparison.results))
    clauses = _decided(
        groups.get("decided", []), names, base, verb="looks" if is_doubtful else "is"
    )
    against = "" if clauses else f" against {base}"
    leads = {
        "equivalent": f"within {percent(comparison.measurement['noise_threshold'])} of {base}",
        "undecided": f"undecided{against}",
        "no verdict": f"no verdict{against}, since they do other work",
    }
    clauses += [
        f"{lead}: {listed([names[result.candidate] for result in groups[group]])}"
        for group, lead in leads.items()
        if group in groups
    ]
    if len(timed) == 1 and groups.keys() & {"equivalent", "undecided"}:
        clauses = [_undecided_clause(timed[0], names, base, comparison)]
    where = f"{IN_BATCHES[comparison.batches]}: " if comparison.batches else ""
    first = where + (
        clauses[0] if where or groups.get("decided") else clauses[0][0].upper() + clauses[0][1:]
    )
    doubt = (
        ["the control is too wide to confirm it"] if is_doubtful and groups.get("decided") else []
    )
    return [
        first,
        *clauses[1:],
        *doubt,
        *(f"{names[arm.name]} {FAILURE_WORDS[arm.status]}" for arm in bad),
    ]


def labels(arms: Sequence[ArmSummary]) -> dict[str, str]:
    """What each arm is called: ``DDP``, ``Horovod over MPI``; as the plan calls them, where a name
    says anything else.
    """
    if not all(arm.name in (arm.backend, f"{arm.backend}-{arm.transport}") for arm in arms):
        return {arm.name: arm.name for arm in arms}
    backends = [arm.backend for arm in arms]
    over = {
        arm.name: f" over {SPELLINGS.get(arm.transport, arm.transport)}"
        for arm in arms
        if arm.transport and backends.count(arm.backend) > 1
    }
    return {
        arm.name: SPELLINGS.get(arm.backend, arm.backend) + over.get(arm.name, "") for arm in arms
    }


def _decided(
    results: Sequence[RatioSummary], names: Mapping[str, str], base: str, *, verb: str
) -> list[str]:
    """The first in full; of those that follow how much faster or slower they are."""
    clauses: list[str] = []
    for result in results:
        assert result.throughput_ratio is not None
        name, size = names[result.candidate], difference_text(result.throughput_ratio)
        clauses.append(
            f", {name} {size} {result.verdict}"
            if clauses
            else f"{name} {verb} {size} {result.verdict} than {base}"
        )
    return clauses


def _undecided_clause(
    result: RatioSummary, names: Mapping[str, str], base: str, comparison: Comparison
) -> str:
    """The clause for a single candidate without a decision."""
    name = names[result.candidate]
    if result.verdict == "equivalent":
        return (
            f"{name} and {base} are equivalent within"
            f" {percent(comparison.measurement['noise_threshold'])}"
        )
    between = interval_text(result)
    if between and not result.withheld_by:
        return f"Undecided: {name} is {between} than {base}"
    why = withheld_words(result) or brief_reason(result)
    return f"Undecided whether {name} or {base} is faster" + (f": {why}" if why else "")


def interval_text(result: RatioSummary) -> str:
    """The range of a ratio, such as ``between 1.7% slower and 3.0% faster``; empty where the
    interval says nothing.
    """
    if (
        result.ci_low is None
        or result.ci_high is None
        or not 1 / LARGEST < result.ci_low < result.ci_high < LARGEST
    ):
        return ""
    ends = [
        f"{difference_text(bound)} {'slower' if bound < 1 else 'faster'}"
        for bound in (result.ci_low, result.ci_high)
    ]
    return f"between {ends[0]} and {ends[1]}"


def _case_clauses(comparison: Comparison) -> list[str]:
    """In how many cases of a micro-benchmark each candidate is faster."""
    bad = [
        f"{arm.name} {FAILURE_WORDS[arm.status]}"
        for arm in comparison.arms
        if arm.has_failed and arm.role != "control"
    ]
    counts = case_counts(comparison.arms, comparison.results)
    clauses = [
        f"{name} against {comparison.baseline}: {counts_words(outcomes).partition(';')[0]}"
        for name, outcomes in counts.items()
    ]
    return [*_loading_clauses(comparison), *clauses, *bad] or [
        f"No comparison: nothing was timed that {comparison.baseline} could be compared with"
    ]


def _loading_clauses(comparison: Comparison) -> list[str]:
    """The fewest loader workers that load about the most samples; nothing where no loader was
    measured.
    """
    figures = [
        (case, comparison.arm(comparison.baseline).case(case.name).samples_per_s)
        for case in comparison.cases
    ]
    rates = {size_text(case): figure.value for case, figure in figures if figure}
    if not rates:
        return []
    enough = (1 - comparison.measurement["noise_threshold"]) * max(rates.values())
    fewest, loaded = next(entry for entry in rates.items() if entry[1] >= enough)
    return [
        f"{comparison.cases[0].operation}: most is loaded by {fewest}, {rate(loaded)} samples/s"
    ]


def training_clauses(training: TrainingSummary) -> list[str]:
    """Who converges, then who is at the target first: the clauses of a headline."""
    clauses = convergence_clauses(training)
    target = training.settings.target_accuracy
    reached = _by_time(training)
    if target is None or not reached:
        return clauses
    first, *others = reached
    soon = seconds(times_to_target(training)[1][first.name])
    if not others:
        clauses.append(f"{first.name} reaches {percent(target)} in {soon}")
    elif _is_first(first, others, baseline=training.baseline):
        clauses.append(f"{first.name} reaches {percent(target)} first, in {soon}")
    else:
        clauses.append(f"which arm reaches {percent(target)} first is undecided")
    return clauses


def times_to_target(training: TrainingSummary) -> tuple[str, dict[str, float]]:
    """Over seeds, by arm that reaches the target with most of them: the geometric mean, of which
    the verdict's ratios are; the median where an arm misses the target with any seed.
    """
    reached = [arm for arm in training.arms if arm.time_to_accuracy_s is not None]
    means = {arm.name: arm.time_to_train_s.value for arm in reached if arm.time_to_train_s}
    if len(means) == len(reached):
        return "geometric mean", means
    return "median", {arm.name: arm.time_to_accuracy_s or math.inf for arm in reached}


def _by_time(training: TrainingSummary) -> list[ArmTraining]:
    """Arms that reach the target with most seeds, the soonest first."""
    times = times_to_target(training)[1]
    return [training.arm(name) for name in sorted(times, key=lambda name: times[name])]


def _is_first(first: ArmTraining, others: Sequence[ArmTraining], *, baseline: str) -> bool:
    """Whether the interval of an arm's time over the baseline's ends below all others'; the
    baseline's own is 1.
    """
    bounds = [
        (1.0, 1.0) if arm.name == baseline else arm.time_ratio.bounds if arm.time_ratio else None
        for arm in (first, *others)
    ]
    first_bounds, *theirs = bounds
    return first_bounds is not None and all(
        other is not None and first_bounds[1] < other[0] for other in theirs
    )


def convergence_clauses(training: TrainingSummary) -> list[str]:
    """Which arms miss the reference's accuracy, which reach it, and for which that is undecided."""
    reference = training.arm(training.reference)
    beside = f"{reference.name} ({accuracy(reference.final_top1)})"
    if len(training.arms) == 1:
        return [f"{reference.name} trained alone ({accuracy(reference.final_top1)})"]
    clauses = []
    for verdict, lead in CONVERGENCE.items():
        arms = [arm for arm in training.arms if arm.convergence == verdict]
        names = (
            ", ".join(arm.name for arm in arms) if len(arms) <= MAX_NAMED else f"{len(arms)} arms"
        )
        reasons = {arm.note for arm in arms}
        why = f", since {reasons.pop()}" if len(reasons) == 1 and None not in reasons else ""
        clauses += [f"{lead} {beside}: {names}{why}"] if arms else []
    first, *others = clauses or [f"no arm can be compared with {beside}"]
    return [first[0].upper() + first[1:], *others]


def study_headline(points: Sequence[Comparison], plan: Plan) -> str:
    """Who is fastest where, and between which points that changes.

    Without any candidate to compare: how the first arm scales.
    """
    partly = {
        arm.name for point in points for arm in point.arms if arm.status == "not at this point"
    }
    led = [(point, who) for point in points if (who := leaders(point, without=partly))]
    if not led:
        return next(iter(scaling_sentences(points, plan)), "Nothing could be compared at any point")
    leads = {point.name: _lead(point, who, plan) for point, who in led}
    where = {
        lead: [place for place in leads if leads[place] == lead]
        for lead in dict.fromkeys(leads.values())
    }
    alone = [(point.name, who[0]) for point, who in led if len(who) == 1]
    changes = [f"{a} and {b}" for (a, before), (b, after) in pairwise(alone) if before != after]
    winners = [f"it changes between {listed(changes, ', and between ')}"] if changes else []
    clauses = [f"{lead} at {listed(places)}" for lead, places in where.items()]
    if len("; ".join([*clauses, *winners]).split()) > MAX_WORDS:
        numbers = [f"{len(places)}" for places in where.values()]
        numbers[0] += f" of {len(led)} points"
        clauses = [f"{lead} at {number}" for lead, number in zip(where, numbers, strict=True)]
    sentence = fitting([clauses[0], *winners, *clauses[1:]])
    return sentence if sentence.startswith(tuple(plan.arms)) else sentence[0].upper() + sentence[1:]


def _lead(point: Comparison, who: Sequence[str], plan: Plan) -> str:
    """A clause on the arms in the lead at a point: those that none is shown to beat."""
    if len(who) == 1:
        return f"{who[0]} is fastest"
    if plan.baseline not in who:
        return f"{listed(who)} are tied as fastest"
    is_open = any(
        (result := point.result(name)) is not None and result.verdict == "undecided" for name in who
    )
    return "undecided" if is_open else "no arm leads"


def against_headline(against: Against, *, now: str) -> str:
    """One sentence on both dates, the worst that changed, and what the baseline did meanwhile."""
    digits = 10 if against.created_at[:10] != now[:10] else 16
    before, after = (at[:digits].replace("T", " ") for at in (against.created_at, now))
    baseline = against.of_baseline
    meanwhile = (
        f"; meanwhile the baseline {against.baseline} itself came out {change_text(baseline)}"
        if baseline
        else ""
    )
    return f"Two dates compared, not two arms ({before} and {after}): {_worst(against)}{meanwhile}"


def _worst(against: Against) -> str:
    least = percent(against.allow_slower)
    worst = [change for change in against.changes if change.verdict == against.verdict]
    more = f" and {len(worst) - MAX_NAMED} more" if len(worst) > MAX_NAMED else ""
    changed = (
        ", ".join(f"{figure_name(change)} {change_text(change)}" for change in worst[:MAX_NAMED])
        + more
    )
    match against.verdict:
        case "regressed":
            return (
                f"regressed ({'' if against.beyond else 'not shown to be '}beyond {least}):"
                f" {changed}"
            )
        case "improved":
            return f"improved: {changed}"
        case "no regression":
            return f"no regression beyond {least}"
    return f"undecided whether {', '.join(map(figure_name, worst[:MAX_NAMED]))}{more} regressed"


def figure_name(change: Change) -> str:
    """The arm; or its ratio, as ``horovod over ddp``; with the case of a micro-benchmark, and the
    point.
    """
    what = change.arm if change.baseline is None else f"{change.arm} over {change.baseline}"
    where = f" at {change.point}" if change.point else ""
    return (what if change.case is None else f"{what} in {change.case}") + where


def change_text(change: Change) -> str:
    """Such as ``5.2% slower``."""
    return (
        f"{difference_text(change.change.value)}"
        f" {'slower' if change.change.value < 1 else 'faster'}"
    )


def common_slowdown(against: Against) -> list[str]:
    """That all arms got slower together, where they did."""
    throughputs, ratios = (
        {change.verdict for change in against.changes if (change.baseline is None) == is_own}
        for is_own in (True, False)
    )
    if throughputs != {"regressed"} or not ratios or "regressed" in ratios:
        return []
    return [
        "All arms are slower and their ratios are not: the machine is slower, or something that all"
        " arms share"
    ]


def remedy(*, has_changed: bool) -> str:
    """How to tell a change of the code from one of the machine."""
    if has_changed:
        return (
            "To leave the dates out, measure both states in turn: ringside ab with --commit-a or"
            " --python-a, or an arm with 'commit:' or 'python:' of the old state"
        )
    return (
        "Nothing that Ringside records differs but the date; measure once more to see whether it"
        " stays"
    )
