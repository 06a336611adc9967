"""What the confirmation of a search says: its pairs of arms, the headline, and what must be said of lossy settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from measurement.plans.plan import Plan
from reports.conclusions.blocks import total_tables
from reports.conclusions.verdict import decide
from reports.estimate import Estimate
from reports.schema import Comparison
from reports.statistics.intervals import ratio_intervals
from reports.tuning.tuning_schema import DEFAULT, MATCHED, TUNED, PairQuestion, TunedArm, TunedPair
from reports.wording.formatting import about, apart

Names = Mapping[str, Mapping[str, str]]
"""By arm, those of the confirmation that are its tuned, default and matched ones; of two that are alike the same."""


def tuned_pairs(plan: Plan, comparison: Comparison, names: Names, *, baseline: str) -> list[TunedPair]:
    """The pairs that matter, with intervals that hold for all of them at once.

    ``baseline``: the arm, of those in ``names``, that the others are held against.
    """
    wanted, measure = list(_pairs(names, baseline)), plan.measurement
    controls = [[plan.control_name, plan.baseline]] if measure.control else []
    tables = total_tables(plan, pd.DataFrame(comparison.block_table), [*([a, b] for _, a, b in wanted), *controls])
    intervals = ratio_intervals(tables, confidence=measure.confidence, family=len(wanted))
    control = intervals[-1] if controls else None
    found = []
    for (question, ours, theirs), one in zip(wanted, intervals, strict=False):
        if one is not None:
            verdict = decide(one, threshold=measure.noise_threshold, control=control)
            told = comparison.result(ours) if theirs == comparison.baseline else None
            ratio = Estimate(value=one.value, ci_low=one.ci_low, ci_high=one.ci_high)
            made = TunedPair(question=question, candidate=ours, baseline=theirs, ratio=ratio, verdict=verdict)
            found.append(made.model_copy(update={"verdict": "undecided"}) if told and told.withheld_by else made)
    return found


def _pairs(names: Names, baseline: str) -> Iterator[tuple[PairQuestion, str, str]]:
    """Question, arm, and the one that it is held against; an arm is not compared with itself."""
    theirs = names[baseline]
    for question in (TUNED, DEFAULT, MATCHED):
        for name, ours in names.items():
            if name != baseline and question in ours:
                yield question, ours[question], theirs[question]
    for own in names.values():
        if own[TUNED] != own[DEFAULT]:
            yield "gain", own[TUNED], own[DEFAULT]


def headline(arms: Sequence[TunedArm], pairs: Sequence[TunedPair]) -> str:
    """The answer: who is faster when all are tuned, and who was before; of one arm, what it gained."""
    across = [pair for pair in pairs if pair.question in (TUNED, DEFAULT)]
    if len(across) > 1 and all(pair.verdict == "undecided" for pair in across):
        return f"Tuned or at defaults, no arm is told apart from {across[0].baseline.rpartition('-')[0]}"
    answers = [f"{pair.question}: {pair_words(pair)}" for pair in across] or [pair_words(pair) for pair in pairs]
    told = "; ".join(answers) or f"nothing was found that beats {arms[0].name} as it is"
    return told[0].upper() + told[1:]


def pair_words(pair: TunedPair) -> str:
    """A pair as a sentence without its full stop."""
    if pair.verdict == "undecided":
        return f"{pair.candidate} and {pair.baseline} are not told apart"
    if pair.verdict == "equivalent":
        return f"{pair.candidate} and {pair.baseline} are equivalent"
    return f"{pair.candidate} is {apart(pair.ratio.value)} {pair.verdict} than {pair.baseline}"


def settle(arms: Sequence[TunedArm], pairs: Sequence[TunedPair]) -> tuple[list[TunedPair], list[str]]:
    """Withhold verdicts between tuned arms that more trials may turn; returns all pairs, and what must be said of those."""
    left = {f"{arm.name}-{TUNED}": arm.left_to_find for arm in arms}
    found, told = [], []
    for pair in pairs:
        behind = pair.baseline if pair.ratio.value > 1 else pair.candidate
        gap = min(pair.ratio.value, 1 / pair.ratio.value)
        if pair.question == TUNED and pair.verdict in ("faster", "slower") and may_turn(gap, left[behind]):
            may = about(left[behind].ci_high or 1.0)
            told.append(f"{behind} is {apart(gap)} slower so far, and more trials may find it up to {may}: no verdict without them")
            found.append(pair.model_copy(update={"verdict": "undecided"}))
        else:
            found.append(pair)
    return found, told


def may_turn(ratio: float, left: Estimate) -> bool:
    """Whether what is left to find of an arm may make up for a ratio below 1 to another."""
    return ratio * (left.ci_high or 1.0) > 1


def lossy_warnings(arms: Sequence[TunedArm]) -> list[str]:
    """What must be said where tuned arms send less than the gradients, and others do not."""
    lossy = {arm.name: arm.lossy for arm in arms if arm.lossy}
    told = [f"{name}-{TUNED} loses bits ({', '.join(options)}): it may train otherwise" for name, options in lossy.items()]
    exact = [arm.name for arm in arms if not arm.lossy]
    both = f"lossy against lossless: {', '.join(lossy)} compress gradients, {', '.join(exact)} do not"
    return [*told, both] if lossy and exact else told
