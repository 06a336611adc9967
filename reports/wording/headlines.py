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
from reports.reasons import REASONS
from reports.schema import ArmSummary, Comparison, Profile, RatioSummary
from reports.wording.causes import NAMES, brief_reason, verdict_word
from reports.wording.comparison_sentences import (
    IN_BATCHES,
    case_counts,
    counts_words,
    in_order,
    scaling_sentences,
    what_failed,
)
from reports.wording.formatting import (
    LARGEST,
    accuracy,
    faster_or_slower,
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
    elif comparison.is_alone:
        clauses = [f"{comparison.baseline} {what_failed(comparison.arms[0])}: nothing was timed"]
    else:
        clauses = _case_clauses(comparison) if comparison.cases else _clauses(comparison)
    return fitting(
        [inherited_variables_note(comparison.inherited_variables) + clauses[0], *clauses[1:]]
    )


def _speed_clauses(comparison: Comparison) -> list[str]:
    """Which arms that train to the end are faster or slower, whenever they reach a target."""
    timed, names = _timed(comparison), {arm.name: arm.name for arm in comparison.arms}
    undecided = ["step speed is undecided"] if timed else []
    return _decided(timed, names, comparison.baseline, verb="steps") or undecided


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
    failed, timed = _failed(comparison), _timed(comparison)
    failures = [f"{arm} {how}" for arm, how in failed.items()]
    if not timed:
        first, *others = failures or [_nothing_timed(comparison)]
        return [f"No comparison: {first}", *others]
    if all(result.withheld_by == "cpu" for result in timed):
        return [NO_SPEED, *failures]
    names = labels([arm for arm in comparison.arms if arm.competes])
    base, threshold = names[comparison.baseline], percent(comparison.measurement["noise_threshold"])
    decided = _decided(timed, names, base, verb="is")
    against = "" if decided else f" against {base}"
    leads = {
        "equivalent": f"within {threshold} of {base}",
        "undecided": f"undecided{against}",
        "no verdict": f"no verdict{against}, since they do other work",
    }
    by_verdict = {
        verdict: [names[result.candidate] for result in timed if verdict_word(result) == verdict]
        for verdict in leads
    }
    doubtful = [names[result.candidate] for result in timed if result.is_unconfirmed]
    which = "it" if len(doubtful) == len(decided) else listed(doubtful)
    doubt = [REASONS["unconfirmed"].brief.format(arm=which)] if doubtful else []
    clauses = [*decided, *doubt] + [
        f"{leads[verdict]}: {listed(arms)}" for verdict, arms in by_verdict.items() if arms
    ]
    if len(timed) == 1:
        clauses = _single_clauses(timed[0], names, base, threshold) or clauses
    if comparison.batches:
        clauses[0] = f"{IN_BATCHES[comparison.batches]}: {clauses[0]}"
    elif not decided:
        clauses[0] = clauses[0][0].upper() + clauses[0][1:]
    return [*clauses, *(f"{names[arm]} {how}" for arm, how in failed.items())]


def _timed(comparison: Comparison) -> list[RatioSummary]:
    """The candidates with a ratio, see ``in_order``."""
    timed = [result for result in comparison.candidates if result.throughput_ratio is not None]
    return in_order(timed, comparison.question)


def _failed(comparison: Comparison) -> dict[str, str]:
    """By arm that failed, what it did."""
    return {
        arm.name: what_failed(arm) for arm in comparison.arms if arm.has_failed and arm.competes
    }


def _nothing_timed(comparison: Comparison) -> str:
    return f"nothing was timed that {comparison.baseline} could be compared with"


def labels(arms: Sequence[ArmSummary]) -> dict[str, str]:
    """What each arm is called: ``DDP``, ``Horovod over MPI``; as the plan calls them, where a name
    says anything else.
    """
    if not all(arm.name in (arm.backend, f"{arm.backend}-{arm.transport}") for arm in arms):
        return {arm.name: arm.name for arm in arms}
    backends = [arm.backend for arm in arms]
    called = {arm.name: SPELLINGS.get(arm.backend, arm.backend) for arm in arms}
    for arm in arms:
        if arm.transport and backends.count(arm.backend) > 1:
            called[arm.name] += f" over {SPELLINGS.get(arm.transport, arm.transport)}"
    return called


def _decided(
    timed: Sequence[RatioSummary], names: Mapping[str, str], base: str, *, verb: str
) -> list[str]:
    """The first that is decided in full; of those that follow how much faster or slower they are,
    with a verb where that is another one. What the control cannot confirm only looks so.
    """
    clauses: list[str] = []
    verb_before = ""
    for result in timed:
        if result.is_decided and result.throughput_ratio is not None:
            name, difference = names[result.candidate], faster_or_slower(result.throughput_ratio)
            its_verb = "looks" if result.is_unconfirmed else verb
            words = [name, difference] if its_verb == verb_before else [name, its_verb, difference]
            text = " ".join(words)
            clauses.append(f", {text}" if clauses else f"{text} than {base}")
            verb_before = its_verb
    return clauses


def _single_clauses(
    result: RatioSummary, names: Mapping[str, str], base: str, threshold: str
) -> list[str]:
    """The clause on an only candidate that is equivalent or undecided, else none."""
    name, between, why = names[result.candidate], interval_text(result), brief_reason(result)
    if result.verdict == "equivalent":
        return [f"{name} and {base} are equivalent within {threshold}"]
    if verdict_word(result) != "undecided":
        return []
    if between and not result.withheld_by:
        return [f"Undecided: {name} is {between} than {base}"]
    return [f"Undecided whether {name} or {base} is faster" + (f": {why}" if why else "")]


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
    return f"between {faster_or_slower(result.ci_low)} and {faster_or_slower(result.ci_high)}"


def _case_clauses(comparison: Comparison) -> list[str]:
    """In how many cases of a micro-benchmark each candidate is faster."""
    counts = case_counts(comparison.arms, comparison.results)
    return [
        *_loading_clauses(comparison),
        *(
            f"{name} against {comparison.baseline}: {counts_words(outcomes).partition(';')[0]}"
            for name, outcomes in counts.items()
        ),
        *(f"{arm} {how}" for arm, how in _failed(comparison).items()),
    ] or [f"No comparison: {_nothing_timed(comparison)}"]


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
    target, times = training.settings.target_accuracy, times_to_target(training)[1]
    if target is None or not times:
        return clauses
    first, *others = (training.arm(name) for name in sorted(times, key=times.__getitem__))
    soon = seconds(times[first.name])
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


def _is_first(first: ArmTraining, others: Sequence[ArmTraining], *, baseline: str) -> bool:
    """Whether the interval of an arm's time over the baseline's ends below all others'; the
    baseline's own is 1.
    """
    ours, *theirs = (
        (1.0, 1.0) if arm.name == baseline else arm.time_ratio.bounds if arm.time_ratio else None
        for arm in (first, *others)
    )
    return ours is not None and all(other and ours[1] < other[0] for other in theirs)


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
    where: dict[str, list[str]] = {}
    for point, who in led:
        where.setdefault(_lead(point, who, plan), []).append(point.name)
    alone = [(point.name, who[0]) for point, who in led if len(who) == 1]
    changes = [f"{a} and {b}" for (a, before), (b, after) in pairwise(alone) if before != after]
    winners = [f"it changes between {listed(changes, ', and between ')}"] if changes else []
    clauses = [f"{lead} at {listed(places)}" for lead, places in where.items()]
    if len("; ".join([*clauses, *winners]).split()) > MAX_WORDS:
        clauses = [f"{lead} at {len(places)}" for lead, places in where.items()]
        clauses[0] += f" of {len(led)} points"
    sentence = fitting([clauses[0], *winners, *clauses[1:]])
    return sentence if sentence.startswith(tuple(plan.arms)) else sentence[0].upper() + sentence[1:]


def _lead(point: Comparison, who: Sequence[str], plan: Plan) -> str:
    """A clause on the arms in the lead at a point: those that none is shown to beat."""
    if len(who) == 1:
        return f"{who[0]} is fastest"
    if plan.baseline not in who:
        return f"{listed(who)} are tied as fastest"
    undecided = {result.candidate for result in point.results if result.verdict == "undecided"}
    return "no arm leads" if undecided.isdisjoint(who) else "undecided"


def against_headline(against: Against, *, now: str) -> str:
    """One sentence on both dates, the worst that changed, and what the baseline did meanwhile."""
    digits = 10 if against.created_at[:10] != now[:10] else 16
    before, after = (at[:digits].replace("T", " ") for at in (against.created_at, now))
    sentence = f"Two dates compared, not two arms ({before} and {after}): {_worst(against)}"
    if of_baseline := against.of_baseline:
        came_out = faster_or_slower(of_baseline.change.value)
        sentence += f"; meanwhile the baseline {against.baseline} itself came out {came_out}"
    return sentence


def _worst(against: Against) -> str:
    least = percent(against.allow_slower)
    worst = [change for change in against.changes if change.verdict == against.verdict]
    more = f" and {len(worst) - MAX_NAMED} more" if len(worst) > MAX_NAMED else ""
    named = worst[:MAX_NAMED]
    changed = ", ".join(
        f"{figure_name(change)} {faster_or_slower(change.change.value)}" for change in named
    )
    match against.verdict:
        case "regressed":
            how = "" if against.beyond else "not shown to be "
            return f"regressed ({how}beyond {least}): {changed}{more}"
        case "improved":
            return f"improved: {changed}{more}"
        case "no regression":
            return f"no regression beyond {least}"
    return f"undecided whether {', '.join(map(figure_name, named))}{more} regressed"


def figure_name(change: Change) -> str:
    """The arm; or its ratio, as ``horovod over ddp``; with the case of a micro-benchmark, and the
    point.
    """
    what = change.arm if change.baseline is None else f"{change.arm} over {change.baseline}"
    where = f" at {change.point}" if change.point else ""
    return (what if change.case is None else f"{what} in {change.case}") + where


def common_slowdown(against: Against) -> list[str]:
    """That all arms got slower together, where they did."""
    throughputs, ratios = (
        {change.verdict for change in against.changes if (change.baseline is None) == is_own}
        for is_own in (True, False)
    )
    is_common = throughputs == {"regressed"} and ratios and "regressed" not in ratios
    sentence = (
        "All arms are slower and their ratios are not: the machine is slower, or something that all"
        " arms share"
    )
    return [sentence] if is_common else []


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
