"""What a reader sees first, as data: who wins, whether to trust it, why, what was compared, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from measurement.conditions.differences import BATCH, Difference
from reports.conclusions.disturbances import is_quiet
from reports.conclusions.step_terms import bottleneck_of
from reports.conclusions.summaries import VERDICTS, count_verdicts
from reports.schema import ArmSummary, Comparison, LoadFigures, Phase, Profile, RatioSummary
from reports.wording.causes import short_cause
from reports.wording.comparison_sentences import (
    WIDE,
    by_speed_lines,
    control_sentence,
    counts_words,
    first_line,
    in_order,
)
from reports.wording.disturbances import load_lines, load_sentence, stall_lines
from reports.wording.formatting import (
    apart,
    bounds_text,
    count,
    gibibytes,
    listed,
    milliseconds,
    percent_apart,
    plain,
    range_apart,
    share,
)
from reports.wording.headlines import BAD, PHASE_WORDS
from reports.wording.reasons import brief_reason, next_step, verdict_word
from reports.wording.training_sentences import NO_CONTROL

MAX_CAUSE = 12
"""The most words that a cause has."""
MAX_LINES = 8
"""Candidates that a format shows; it says how many more there are."""
MAX_CULPRITS = 3
"""Differences that the first screen names."""
QUIET = "quiet machine"
PAIRED = "not needed, arms share seeds"
WRONG = "failed the check of its values before it was timed"
CONVERGES = {"same": "same accuracy as", "differs": "another accuracy than", "undecided": "accuracy undecided beside"}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One line of the first screen."""

    arm: str
    point: str = ""
    """Empty where there are none."""
    verdict: str
    """faster, slower, equivalent, undecided, no verdict, or why there is no timing: failed, wrong, timeout, no timing. Of a
    micro-benchmark also mixed."""
    percent: str = ""
    """How far its throughput is from the baseline's, such as ``-7.2%``; empty without a ratio."""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    """The interval; null where the data cannot carry one."""
    cause: str = ""
    """At most ``MAX_CAUSE`` words; empty where none is known."""

    @property
    def interval(self) -> str:
        """Both bounds, such as ``0.921 to 0.937``; empty without them."""
        return bounds_text(self.low, self.high, none="")

    @property
    def percents(self) -> str:
        """Both bounds in the unit of ``percent``, such as ``-7.9% to -6.3%``; empty without them."""
        return "" if self.ratio is None or self.low is None or self.high is None else range_apart(self.ratio, self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One reason to trust the answer, or not to."""

    name: str
    word: str
    ok: bool
    """Green, else amber."""
    explanation: str
    """What a click opens, without a full stop at the end."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Where the step of one rank goes."""

    label: str
    parts: Sequence[tuple[Phase, float]]
    """Phases in their order, each with its share of the slowest rank's step."""
    text: str
    """Milliseconds of its step, and the shares of its phases."""


@dataclass(frozen=True, kw_only=True)
class FirstScreen:
    """The answer. No text ends with a full stop, and all of it is plain text that a format has to escape."""

    headline: str
    """At most 20 words."""
    candidates: Sequence[Candidate]
    marks: Sequence[Mark]
    """Control, quiet machine, same work."""
    compared: str
    alike: Sequence[str] = ()
    """Whether scripts train the same, the first thing that they do differently, and how much settings explain that were tried; of
    workloads what the arms are that have options."""
    next_step: str | None = None
    bars: Sequence[Bar] = ()
    """One for each rank of a single script; none where arms are compared."""


def first_screen(shown: Comparison) -> FirstScreen:
    """The first screen of a comparison of any kind."""
    compared = _at_points(shown) if shown.points else _in_one_place(shown)
    return FirstScreen(headline=shown.headline, marks=_marks(shown), next_step=_next_step(shown), **compared)


def _in_one_place(comparison: Comparison) -> dict[str, Any]:
    """Fields of ``FirstScreen``: a line for each candidate, and what was compared."""
    results = {result.candidate: result for result in comparison.results if result.case is None}
    arms = {arm.name: arm for arm in comparison.arms if arm.role == "candidate"}
    ordered = [result.candidate for result in in_order(comparison.candidates, comparison.question)]
    names = dict.fromkeys([*ordered, *arms])
    if comparison.cases:
        candidates = [_by_case(arms[name], comparison) for name in names]
    else:
        candidates = [_candidate(arms[name], results.get(name), cause=_known_cause(name, comparison)) for name in names]
    if comparison.profile:
        return _alone(comparison, comparison.profile)
    differs = any(not one.is_note for one in comparison.differences)  # in more than comes with a library
    culprit = culprit_lines(comparison)[:1] if differs else []
    tried = [one.sentence for one in comparison.explanations]
    alike = [comparison.equality.sentence, *culprit, *tried] if comparison.equality else _with_options(comparison.arms)
    return {"candidates": candidates, "compared": _compared(comparison), "alike": alike}


def _with_options(arms: Sequence[ArmSummary]) -> list[str]:
    """What an arm is whose options the plan sets."""
    return [
        f"{arm.name}: {arm.backend} with {', '.join(f'{name}: {plain(value)}' for name, value in arm.options.items())}"
        for arm in arms
        if arm.options and arm.role != "control"
    ]


def _alone(comparison: Comparison, profile: Profile) -> dict[str, Any]:
    """Fields of ``FirstScreen``: where the step of a single script goes, how it spreads, and what need not be."""
    longest = max(rank.step_s for rank in profile.ranks)
    bars = []
    for rank in profile.ranks:
        phases = {phase: seconds for phase, seconds in rank.phases_s.items() if seconds}
        shares = ", ".join(f"{PHASE_WORDS[phase]} {share(seconds / rank.step_s)}" for phase, seconds in phases.items())
        label = f"rank {rank.rank}" + (f" on {rank.host}" if len(comparison.hosts) > 1 else "")
        parts = [(phase, seconds / longest) for phase, seconds in phases.items()]
        bars.append(Bar(label=label, parts=parts, text=f"{milliseconds(rank.step_s)} ms: {shares}"))
    arm = comparison.arms[0]
    spread = [f"steps from {milliseconds(arm.step_time_s['p5'])} to {milliseconds(arm.step_time_s['p95'])} ms (5% to 95%)"]
    memory = arm.resources.memory_bytes if arm.resources else None
    memory_text = [f"at most {gibibytes(round(memory.value))} GiB a rank"] if memory else []
    return {
        "candidates": [],
        "compared": ", ".join([_compared(comparison), *spread, *memory_text]),
        "alike": profile.findings[:MAX_CULPRITS],
        "bars": bars,
    }


def _at_points(study: Comparison) -> dict[str, Any]:
    """Fields of ``FirstScreen``: a line for each candidate at each point, and what was compared."""
    candidates = [
        _candidate(arm, point.result(name), point=point.name)
        for name in study.arm_names
        for point in study.points
        if (arm := point.arm(name)).role == "candidate" and arm.status != "not at this point"
    ]
    span = " to ".join(dict.fromkeys(f"{end(point.world_size for point in study.points)}" for end in (min, max)))
    compared = f"{study.workload}, {count(len(study.points), 'point')}, {span} ranks, {study.scaling} scaling"
    return {"candidates": candidates, "compared": compared}


def _candidate(arm: ArmSummary, result: RatioSummary | None, *, point: str = "", cause: str = "") -> Candidate:
    if result is None or result.throughput_ratio is None:
        verdict = arm.status if arm.status != "ok" else "no timing"
        message = first_line(arm.errors[0].message) if arm.errors and arm.status != "wrong" else ""
        return Candidate(arm=arm.name, point=point, verdict=verdict, cause=cause or cut(message or WRONG * (verdict == "wrong")))
    if result.withheld_by == "cpu":
        return Candidate(arm=arm.name, point=point, verdict=verdict_word(result), cause=brief_reason(result))
    return Candidate(
        arm=arm.name,
        point=point,
        verdict=verdict_word(result),
        percent=percent_apart(result.throughput_ratio),
        ratio=result.throughput_ratio,
        low=result.ci_low,
        high=result.ci_high,
        cause=cut(cause or brief_reason(result) or short_cause(result) or ("cause not known" if result.is_decided else "")),
    )


def cut(text: str) -> str:
    """The text, ended where it has more words."""
    found = text.split()
    return text if len(found) <= MAX_CAUSE else " ".join(found[:MAX_CAUSE]) + " …"


def _convergence(name: str, comparison: Comparison) -> str:
    """How an arm that trained to the end converged; empty of others."""
    training = comparison.training
    if training is None or not any(arm.name == name for arm in training.arms):
        return ""
    verdict = training.arm(name).convergence
    return f"{CONVERGES[verdict]} {training.reference}" if verdict else "the others' accuracy is compared with its"


def _known_cause(name: str, comparison: Comparison) -> str:
    """How it converged; or the setting that was tried and explains most of its difference; empty where neither is known."""
    tried = {", ".join(one.settings): one.share for one in comparison.explanations if one.candidate == name}
    known = {said: found.value for said, found in tried.items() if found and found.bounds and found.bounds[0] > 0}
    if not known or not any(one.candidate == name and one.is_decided for one in comparison.results):
        return _convergence(name, comparison)
    most = max(known, key=lambda said: known[said])
    return f"{most} explains {share(known[most])} of it"


def _by_case(arm: ArmSummary, comparison: Comparison) -> Candidate:
    """The verdict that all cases of a micro-benchmark share, and how many have which."""
    counts = count_verdicts(arm, comparison.results)
    verdicts = [verdict for verdict in VERDICTS if counts[verdict]]
    if not verdicts:
        return _candidate(arm, None)
    return Candidate(
        arm=arm.name, verdict=verdicts[0] if len(verdicts) == 1 else "mixed", cause=counts_words(counts).partition(";")[0]
    )


def _marks(shown: Comparison) -> list[Mark]:
    """The three marks, each as it is at the worst point."""
    if shown.profile:  # nothing is compared
        return [_quiet(shown.arms, [])]
    places = {name: place for name, place in shown.places.items() if place.results or not name}
    by_place = [(_control(place), _quiet(place.arms, place.results), _same_work(place)) for place in places.values()]
    return [_worst(marks, list(places)) for marks in zip(*by_place, strict=True)]


def _control(place: Comparison) -> Mark:
    results, by_seed = place.results, place.training is not None
    controls = [result for result in results if result.role == "control"]
    known = [control for control in controls if control.ci_low is not None]
    wide = any(control.case is None and (control.ci_high or 0) > WIDE * (control.ci_low or 0) for control in known)
    words = {
        PAIRED: by_seed,
        "none": not controls,
        "failed": any(control.control_failed for control in controls),
        "no interval": not known,
        "too wide": wide,
    }
    bad = next((word for word, holds in words.items() if holds), None)
    reach = max([abs(math.log(bound)) for control in known for bound in (control.ci_low, control.ci_high) if bound], default=0.0)
    return Mark(
        name="control",
        word=bad or f"equal within {apart(math.exp(reach))}",
        ok=bad in (None, PAIRED),
        explanation=NO_CONTROL if by_seed else control_sentence(results),
    )


def _quiet(arms: Sequence[ArmSummary], results: Sequence[RatioSummary]) -> Mark:
    """Over the blocks of all arms; unsteady where nobody disturbs them, and yet a ratio moves with the machine's speed."""
    load, moved = _load(arms), by_speed_lines(results)
    if load is None:
        word, lines = "not known", ["Nothing is known of what else ran on the machine"]
    else:
        word = f"{load.disturbed_share:.0%} disturbed" if not is_quiet(load) else "unsteady" if moved else "quiet"
        lines = [load_sentence(load) or f"Others disturbed {load.disturbed_share:.0%} of the blocks", *load_lines(arms), *moved]
    return Mark(name=QUIET, word=word, ok=word == "quiet", explanation=". ".join([*lines, *stall_lines(arms)]))


def _load(arms: Sequence[ArmSummary]) -> LoadFigures | None:
    """Over the blocks of all arms; None where nothing is known."""
    known = [arm.load for arm in arms if arm.load and arm.load.blocks]
    blocks = sum(load.blocks for load in known)
    names = ("foreign_share", "steal_share", "disturbed_share")
    shares = {name: sum(getattr(one, name) * one.blocks for one in known) / blocks for name in names if blocks}
    return LoadFigures(blocks=blocks, **shares) if known else None


def _same_work(place: Comparison) -> Mark:
    """Whether all arms train the same: gradients or, of scripts, all that was seen of them. The worst finding is shown."""
    arms, equality = place.arms, place.equality
    differences, lines = place.differences, first_lines(place)
    wrong = [arm.name for arm in arms if arm.status == "wrong" or (arm.parity and not arm.parity.passed)]
    is_unlike = any(one.withholds for one in differences)
    without = [result for result in place.results if not result.is_comparable]
    unlike = [result.candidate for result in without if is_unlike or result.withheld_by != "cpu"]
    timed = [arm for arm in arms if arm.launches] or arms
    unchecked = [arm.name for arm in timed if arm.parity is None] if equality is None else []
    batches = next((one for one in differences if place.batches and one.field == BATCH), None)
    sizes = listed([*dict.fromkeys(f"{size}" for size in batches.values.values())]) if batches else ""
    own = [batches.sentence] if batches else []
    shown = [one for one in differences if not (one.is_note or one.withholds or one is batches)]
    unasked = [one.field for one in shown if one.changes_work or not one.allowed]
    differ = count(len(unasked), "unrequested difference")
    unequal = equality.unequal if equality else []
    unknown = [arm for arm in unequal if equality and equality.start[arm].verdict == "not compared"]
    found = [
        ("wrong", wrong, "The check of gradients failed in"),
        ("other work", unlike, "Other work than the baseline's is done by"),
        ("not the same", [arm for arm in unequal if arm not in unknown], "Not shown to train alike"),
        ("not known", unknown, "Nothing of them could be compared"),
        ("not checked", unchecked, "Gradients were not checked of"),
        (f"other work: local batch {sizes}", own, "Gradients were checked in one batch, and each arm was timed in its own"),
        (differ, unasked, "Different, though neither the plan nor a library asks for it"),
    ]
    word = next((word for word, names, _ in found if names), "same")
    said = [f"{lead}: {', '.join(dict.fromkeys(names))}" for _, names, lead in found if names]
    if equality is None and not said:
        of_ranks = " of as many ranks" if len({arm.world_size for arm in arms}) > 1 else ""
        said = [f"The same samples gave the same gradients in all arms{of_ranks}, before they were timed"]
    return Mark(name="same work", word=word, ok=word == "same", explanation=". ".join([*lines, *said]))


def _compared(comparison: Comparison) -> str:
    """Workload, ranks, hosts, batch and what was measured."""
    hosts = len(comparison.hosts)
    launches = max((one.launches for one in comparison.results or comparison.arms), default=0)
    training = comparison.training
    drawn = f"{comparison.drawn_hosts} of " if comparison.drawn_hosts else ""
    ranks = _ranks(comparison.world_size, hosts, comparison.device, drawn=drawn)
    parts = ["scripts", *[ranks] * bool(hosts)] if comparison.are_scripts else [comparison.workload, ranks]
    if comparison.cases:
        parts.append(count(len(comparison.cases), "case"))
    else:
        sizes = sorted({arm.local_batch_size or comparison.local_batch_size for arm in comparison.arms} - {0})
        batches = listed([f"{size:,}" for size in sizes])
        parts += [f"batch{'es of' if len(sizes) > 1 else ''} {batches} per rank"] if sizes else []
    if training:
        parts += [count(training.settings.epochs, "epoch"), count(max(arm.seeds for arm in training.arms), "seed")]
    elif launches:
        parts.append(count(launches, "run of each", "runs of each") if comparison.runs else count(launches, "launch", "launches"))
    parts += [f"{comparison.measured_minutes:.2g} min measured"] if comparison.measured_minutes else []
    return ", ".join(parts)


def _ranks(ranks: int, hosts: int, device: str, *, drawn: str) -> str:
    kind = "CPU" if device == "cpu" else "GPU"  # of which the device is the name
    return f"{count(ranks, 'rank')} on {drawn}{count(hosts, 'host')} ({kind})" if hosts else count(ranks, "rank")


def _next_step(shown: Comparison) -> str | None:
    """What to do about what is worst; None where there is nothing."""
    bad = [(arm, name) for name, place in shown.places.items() for arm in place.arms if arm.has_failed and arm.role != "control"]
    if bad:
        arm, point = bad[0]
        where, see = (f" at {point}", "") if point else ("", ", see 'What failed?'")
        return f"Fix {arm.name}{where} and run again: it {BAD[arm.status]}{see}"
    if shown.profile:
        tried = [f"{name} {value}" for name, value in shown.profile.to_try.items()]
        return f"See what {listed(tried)} would win: ringside run --explain" if tried else None
    shares = [arm.step_shares for arm in shown.arms if arm.step_shares and arm.competes]
    starved = bool(shares) and all(bottleneck_of(own) == "input" for own in shares)
    if shown.equality and shown.equality.first_difference_step:
        return "Have both train alike first: see 'What differed?'"
    loads = [load for place in shown.places.values() if (load := _load(place.arms))]
    results = [result for place in shown.places.values() for result in place.candidates]
    found = next_step(results, shown.arms_anywhere, is_disturbed=not all(map(is_quiet, loads)))
    is_open = shown.training or (shown.equality and shown.equality.unequal)
    if found or starved or is_open or len(shown.fastest) != 1:
        return found or ("Give the loaders more workers: the input limits every arm" if starved else None)
    if any(_control(place).word == "too wide" for place in shown.places.values()):
        return f"Measure longer before you use {shown.fastest[0]}: the control's interval is too wide to confirm it"
    fields = {row.field for row in shown.differences if None not in row.values.values()}
    if shown.equality and not shown.explanations and {"library", "transport"} <= fields:
        return "Run both with the same transport to separate library from transport"
    batch = ", and set its learning rate for its batch," if shown.batches else ""
    return f"Use {shown.fastest[0]}{batch} for this model on {'this machine' if len(shown.hosts) < 2 else 'these hosts'}"


def _worst(marks: Sequence[Mark], points: Sequence[str]) -> Mark:
    """A mark as it is at the worst point."""
    worst = next((mark for mark in marks if not mark.ok), marks[0])
    bad = sum(not mark.ok for mark in marks)
    word = f"{worst.word} at {bad} of {count(len(marks), 'point')}" if 0 < bad < len(marks) else worst.word
    where: dict[str, list[str]] = {}
    for point, mark in zip(points, marks, strict=True):
        where.setdefault(mark.explanation, []).append(point)
    said = ". ".join(f"{', '.join(at)}: {text}" if len(where) > 1 else text for text, at in where.items())
    return Mark(name=worst.name, word=word, ok=worst.ok, explanation=said)


def first_lines(comparison: Comparison) -> list[str]:
    """One line each: equality, ranks, loss, the first culprits, and how many more there are. None without scripts."""
    equality = comparison.equality
    if equality is None:
        return []
    culprits = culprit_lines(comparison)
    ranks = [said for said in equality.ranks.values() if not any(said in line for line in culprits)]
    candidates = [arm.name for arm in comparison.arms if arm.role == "candidate"]
    losses = [loss.sentence for arm, loss in equality.loss.items() if loss.sentence and arm in candidates]
    return [equality.sentence, *ranks, *losses, *culprits]


def culprit_lines(comparison: Comparison) -> list[str]:
    """The most important differences, and how many there are besides."""
    found = comparison.differences
    if not found:
        return ["No setting differs that the agent sees"]
    lines = [f"{_kind(one)}: {one.sentence}" for one in found if not one.is_note][:MAX_CULPRITS]
    more = len(found) - len(lines)
    if not lines:
        return [f"{more} settings differ that come with the library: see the table"]
    return [*lines, f"and {more} more {'difference' if more == 1 else 'differences'}: see the table"] if more else lines


def _kind(one: Difference) -> str:
    """How much it matters, in a word or two."""
    work = "other work" if one.changes_work else ""
    if one.severity == "mistake":
        return f"Check, {work}" if work else "Check"
    return work.capitalize() or "Differs"
