"""The marks of the first screen: reasons to trust the answer, or not to; and what differs, in a few
lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from measurement.conditions.differences import BATCH
from reports.conclusions.ratios import farthest, is_wide
from reports.parts_schema import Equality
from reports.schema import ArmSummary, Comparison, LoadFigures, RatioSummary
from reports.wording.disturbances import (
    by_speed_lines,
    control_sentence,
    core_lines,
    load_sentence,
    reach_words,
    stall_lines,
)
from reports.wording.formatting import count

MAX_FINDINGS = 3
"""Differences that the first screen names."""
QUIET = "quiet machine"
KINDS = {
    (True, True): "Check, other work",
    (True, False): "Check",
    (False, True): "Other work",
    (False, False): "Differs",
}
"""How much a difference matters: whether it is a likely mistake, and whether it changes work."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One reason to trust the answer, or not to."""

    name: str
    word: str
    ok: bool
    """Green, else amber."""
    explanation: str
    """What a click opens, without a full stop at the end."""


def marks(shown: Comparison) -> list[Mark]:
    """Up to three marks, each as it is at the worst point.

    A training has no control: its unit is the seed.
    """
    if shown.is_alone:
        return [_quiet(shown.arms, [])]
    places = {name: place for name, place in shown.places.items() if place.results or not name}
    by_place = [
        [
            *([] if place.training else [_control(place)]),
            _quiet(place.arms, place.results),
            _same_work(place),
        ]
        for place in places.values()
    ]
    return [_worst(row, list(places)) for row in zip(*by_place, strict=True)]


def _worst(marks: Sequence[Mark], points: Sequence[str]) -> Mark:
    """A mark as it is at the worst point."""
    bad = [mark for mark in marks if not mark.ok]
    worst = (bad or marks)[0]
    is_mixed = 0 < len(bad) < len(marks)
    where: dict[str, list[str]] = {}
    for point, mark in zip(points, marks, strict=True):
        where.setdefault(mark.explanation, []).append(point)
    lines = [f"{', '.join(at)}: {text}" if len(where) > 1 else text for text, at in where.items()]
    return replace(
        worst,
        word=worst.word + f" at {len(bad)} of {count(len(marks), 'point')}" * is_mixed,
        explanation=". ".join(lines),
    )


def _control(place: Comparison) -> Mark:
    """Whether the baseline comes out equal to itself, and within which factor; too wide where it
    confirms no claim.
    """
    controls = [result for result in place.results if result.role == "control"]
    with_interval = [control for control in controls if control.ci_low is not None]
    unconfirmed = {result.case for result in place.candidates if result.is_unconfirmed}
    confirmed = {result.case for result in place.candidates if result.is_decided} - unconfirmed
    wide = sum(
        is_wide(control.ratio) and control.case not in confirmed for control in with_interval
    )
    of_cases = f" in {wide} of {len(with_interval)} cases" if len(with_interval) > 1 else ""
    words = {
        "none": not controls,
        "failed": any(control.control_failed for control in controls),
        "failed in a launch": any(arm.role == "control" and arm.has_failed for arm in place.arms),
        "no interval": not with_interval,
        f"too wide{of_cases}": wide > 0,
    }
    bad = next((word for word, holds in words.items() if holds), None)
    widest = max(with_interval, key=lambda control: farthest(control.ratio), default=None)
    return Mark(
        name="control",
        word=bad or (f"equal within {reach_words(widest)}" if widest else ""),
        ok=bad is None,
        explanation=control_sentence(place.results),
    )


def _quiet(arms: Sequence[ArmSummary], results: Sequence[RatioSummary]) -> Mark:
    """Over the blocks of all arms; unsteady where they are undisturbed and a ratio still depends on
    the machine's speed.
    """
    load, moved, waits = load_of(arms), by_speed_lines(results), core_lines(arms)
    if load is None:
        word, sentence, moved = "not known", "Nothing is known of what else ran on the machine", []
    elif loaded := load_sentence(load):
        word, sentence = f"{load.disturbed_share:.0%} of blocks disturbed", loaded
    else:
        word = "unsteady" if moved else "quiet, short of cores" if waits else "quiet"
        sentence = f"Others disturbed {load.disturbed_share:.1%} of the blocks"
    return Mark(
        name=QUIET,
        word=word,
        ok=word.startswith("quiet"),
        explanation=". ".join([sentence, *moved, *waits, *stall_lines(arms)]),
    )


def load_of(arms: Sequence[ArmSummary]) -> LoadFigures | None:
    """Over the blocks of all arms; None where nothing is known."""
    loads = [arm.load for arm in arms if arm.load and arm.load.blocks]
    if not loads:
        return None
    blocks = sum(load.blocks for load in loads)
    names = ("foreign_share", "steal_share", "least_share", "disturbed_share")
    shares = {
        name: sum(getattr(load, name) * load.blocks for load in loads) / blocks for name in names
    }
    return LoadFigures(blocks=blocks, **shares)


def _same_work(place: Comparison) -> Mark:
    """Whether all arms train the same: gradients or, of scripts, all that was seen of them.

    The worst finding is shown.
    """
    arms, equality, differences = place.arms, place.equality, place.differences
    wrong = [
        arm.name for arm in arms if arm.status == "wrong" or (arm.parity and not arm.parity.passed)
    ]
    is_unlike = any(difference.withholds for difference in differences)
    unlike = [
        result.candidate
        for result in place.results
        if not result.is_comparable and (is_unlike or result.withheld_by != "cpu")
    ]
    timed = [arm for arm in arms if arm.launches] or arms
    unchecked = [
        arm.name
        for arm in timed
        if equality is None
        and (arm.parity is None or (arm.parity.gradient_error is None and not place.cases))
    ]
    own_batches = [row.sentence for row in differences if place.batches and row.field == BATCH]
    unasked = [
        row.field
        for row in differences
        if not (row.is_note or row.withholds or row.sentence in own_batches)
        and (row.changes_work or not row.allowed)
    ]
    starts = [(arm, equality.start[arm].verdict) for arm in equality.unequal] if equality else []
    unknown = [arm for arm, start in starts if start == "not compared"]
    unequal = [arm for arm, start in starts if start != "not compared"]
    checks = [
        ("wrong", wrong, "The check of gradients failed in"),
        ("other work", unlike, "Other work than the baseline's is done by"),
        ("not the same", unequal, "Not shown to train alike"),
        ("not known", unknown, "Nothing of them could be compared"),
        ("not checked", unchecked, "Gradients were not checked of"),
        (
            "other batches",
            own_batches,
            "Gradients were checked in one batch, and each arm was timed in its own",
        ),
        (
            count(len(unasked), "unrequested difference"),
            unasked,
            "Unrequested",
        ),
    ]
    bad = next((word for word, names, _ in checks if names), None)
    besides = [row for row in differences if row.allowed and row.severity == "training"]
    word = "same"
    if besides:
        only = besides[0].field.removeprefix("backend.")
        word += f" but for {only if len(besides) == 1 else count(len(besides), 'setting')}"
    reasons = [f"{lead}: {', '.join(dict.fromkeys(names))}" for _, names, lead in checks if names]
    if equality:
        lines = [*_equality_lines(place, equality), *reasons]
    else:
        of_ranks = " with equally many ranks" if len({arm.world_size for arm in arms}) > 1 else ""
        same = f"The same samples gave the same gradients in all arms{of_ranks}"
        lines = [
            *(reasons or [f"{same}, before they were timed"]),
            *(f"Not in this check: {row.sentence}" for row in besides),
        ]
    return Mark(name="same work", word=bad or word, ok=bad is None, explanation=". ".join(lines))


def _equality_lines(comparison: Comparison, equality: Equality) -> list[str]:
    """One line each: equality, ranks, loss, the first differences, and how many more there are."""
    differences = difference_lines(comparison)
    ranks = [
        sentence
        for sentence in equality.ranks.values()
        if not any(sentence in line for line in differences)
    ]
    losses = [
        loss.sentence
        for arm, loss in equality.loss.items()
        if loss.sentence and comparison.arm(arm).role == "candidate"
    ]
    return [equality.sentence, *ranks, *losses, *differences]


def difference_lines(comparison: Comparison) -> list[str]:
    """The most important differences, and how many more there are."""
    differences = comparison.differences
    if not differences:
        return ["No setting differs that the agent sees"]
    lines = [
        f"{KINDS[row.severity == 'mistake', row.changes_work]}: {row.sentence}"
        for row in differences
        if not row.is_note
    ][:MAX_FINDINGS]
    more = len(differences) - len(lines)
    if not lines:
        return [f"{more} settings differ that come with the library: see the table"]
    verb = "is" if more == 1 else "are"
    return [*lines, *[f"{count(more, 'more difference')} {verb} in the table"] * bool(more)]
