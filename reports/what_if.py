"""What if one cause of lost time were gone, or the links were others: how fast each arm would be,
and which would be fastest.

Every answer is made of an arm's terms (``reports.conclusions.step_terms``), launch by launch. Where
these leave a step between two bounds, as they do of what exchange hides behind computing, the
interval holds both. Questions that they cannot answer stay open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from reports.conclusions.steps import means_by_rank
from reports.conclusions.summaries import Evidence
from reports.schema import ArmSummary, Estimate, Term, WhatIf, WhatIfArm
from reports.statistics.student import log_interval, t_interval

WAYS = 2.0
"""A link that carries the two ways one after the other is busy so many times as long."""
Bounds = tuple[pd.Series, pd.Series]
"""Seconds of a step by launch, at least and at most; equal where the terms determine it."""


@dataclass(frozen=True, kw_only=True)
class ArmTerms:
    """What an arm's launches say of it."""

    terms: pd.DataFrame
    """``reports.conclusions.step_terms.terms_by_launch``."""
    quiet_s: pd.Series
    """By launch, what a step takes besides backward: the link is idle then."""
    link_bits: float
    """What a step sends over the busiest link, the busier way; 0 where none were counted."""
    link_rate: int | None
    """Bits per second of the links while they were measured; None: not known."""
    throughput: float
    """As measured, samples a second."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """Links to answer for, in bits per second."""

    rates: Sequence[int] = ()
    measured: int | None = None
    """Rate of those over which the comparison was measured; None: not known."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What would be otherwise."""

    name: str
    assumes: str
    steps: Callable[[ArmTerms], Bounds | str]
    """A step's bounds, or why there is no answer."""


def what_if(
    evidence: Evidence, arms: Sequence[ArmSummary], *, links: Links | None = None
) -> list[WhatIf]:
    """Answer for every arm that has terms, the control left out; nothing where none has.

    Args:
        evidence: of the comparison.
        arms: of the comparison.
        links: to answer for, beside the scenarios that every report has.
    """
    asked = links or Links()
    terms_by_arm = {
        arm.name: terms
        for arm in arms
        if arm.competes and (terms := _arm_terms(evidence, arm, asked.measured))
    }
    if not terms_by_arm:
        return []
    return [
        _in_scenario(scenario, terms_by_arm, confidence=evidence.confidence)
        for scenario in (*SCENARIOS, *map(links_of, asked.rates))
    ]


def _arm_terms(evidence: Evidence, arm: ArmSummary, link_rate: int | None) -> ArmTerms | None:
    terms = evidence.terms.by_launch.get(arm.name)
    if terms is None or not len(terms) or arm.throughput_per_s is None:
        return None
    local = evidence.steps.where(arm=arm.name, kind="local").rank_blocks
    besides = means_by_rank(local, ["data_wait_s", "forward_s", "optimizer_s"]).values()
    return ArmTerms(
        terms=terms,
        quiet_s=pd.DataFrame([by_rank.mean(axis="columns") for by_rank in besides]).sum(),
        link_bits=8
        * max((max(link.sent_bytes, link.received_bytes) for link in arm.links), default=0.0),
        link_rate=link_rate,
        throughput=arm.throughput_per_s.value,
    )


def _in_scenario(
    scenario: Scenario, terms_by_arm: Mapping[str, ArmTerms], *, confidence: float
) -> WhatIf:
    arms, steps = [], {}
    for name, terms in terms_by_arm.items():
        bounds = scenario.steps(terms)
        if not isinstance(bounds, str) and not (bounds[0] > 0).all():
            bounds = "its terms exceed its step in a launch"
        if isinstance(bounds, str):
            arms.append(WhatIfArm(arm=name, unknown=bounds))
        else:
            steps[name] = bounds
            arms.append(_figures(name, terms, bounds, confidence=confidence))
    fastest = _fastest(steps, confidence=confidence)
    return WhatIf(scenario=scenario.name, assumes=scenario.assumes, arms=arms, fastest=fastest)


def _figures(name: str, terms: ArmTerms, bounds: Bounds, *, confidence: float) -> WhatIfArm:
    """Throughput, and how many times it is what was measured."""
    ends: list[tuple[Estimate, Estimate]] = []
    for step in bounds:
        gains = _log(terms.terms["step"] / step)
        gain = math.exp(gains.mean())
        rate = log_interval(terms.throughput * gain, _log(1 / step), confidence=confidence)
        ends.append((rate, log_interval(gain, gains, confidence=confidence)))
    throughput, times = (
        Estimate(value=math.sqrt(fast.value * slow.value), ci_low=slow.ci_low, ci_high=fast.ci_high)
        for fast, slow in zip(*ends, strict=True)
    )
    return WhatIfArm(arm=name, throughput_per_s=throughput, gain=times)


def _log(values: pd.Series) -> pd.Series:
    return values.map(math.log)


def _fastest(steps: Mapping[str, Bounds], *, confidence: float) -> list[str]:
    """The arms than which none is shown to be faster, the leader's intervals against all others
    held at once; none of one arm.
    """
    if len(steps) < 2:
        return []
    leader = min(steps, key=lambda name: float(sum(_log(step).mean() for step in steps[name])))
    each = 1 - (1 - confidence) / (len(steps) - 1)
    longest = _log(steps[leader][1])
    fastest = [leader]
    for name, (shortest, _) in steps.items():
        lead = t_interval((_log(shortest) - longest).dropna(), confidence=each)
        is_beaten = lead is not None and lead.ci_low is not None and lead.ci_low > 0
        if name != leader and not is_beaten:
            fastest.append(name)
    return fastest


def _without(term: Term, arm: ArmTerms) -> Bounds | str:
    """The step less a term; a term that is below 0 on average gains nothing."""
    lost, exposed = arm.terms[term], arm.terms["exposed_exchange"]
    if term != "exposed_exchange" and exposed.mean() < 0:
        lost = lost + exposed  # steps with exchange have less of what is lost in those without
    if lost.isna().any():
        return "there is no floor to tell it from computing"
    step = arm.terms["step"] - (lost - min(lost.mean(), 0.0))
    return step, step


def _with_link(rate: int, arm: ArmTerms) -> Bounds | str:
    """Send the bytes at another rate.

    The bounds hold all of backward hiding them and no more of them hidden than now. They hold both
    ways used at once, and one after the other, as Open MPI does over TCP: twice as long, or on a
    link of known rate as long as a step leaves time for.
    """
    if not arm.link_bits:
        return "no bytes of its exchange were counted between hosts"
    step, alone = arm.terms["step"], arm.terms["step"] - arm.terms["exposed_exchange"]
    now_s, then_s = arm.link_bits / arm.link_rate if arm.link_rate else 0.0, arm.link_bits / rate
    quiet_s = arm.quiet_s.reindex(step.index)
    ways = ((step - quiet_s) / now_s).clip(1, WAYS) if now_s else WAYS
    if arm.link_rate and rate > arm.link_rate:
        in_tail_s = (now_s - (alone - quiet_s)).clip(lower=0)  # what backward cannot have hidden
        longest = (step - in_tail_s * (1 - arm.link_rate / rate)).clip(lower=alone)
        return (step - ways * (now_s - then_s)).clip(lower=alone).clip(upper=longest), longest
    shortest = step.clip(lower=quiet_s + then_s)
    return shortest, (step + ways * (then_s - now_s)).clip(lower=shortest)


def links_of(rate: int) -> Scenario:
    """The scenario of links of another rate."""
    return Scenario(
        name=f"links of {rate / 1e9:g} Gbit/s",
        assumes="the bytes of a step stay, latency stays; links whose rate is not known are faster;"
        " bounds hold both ways at once and one after the other, all of backward hiding it and no"
        " more of it hidden",
        steps=partial(_with_link, rate),
    )


SCENARIOS = (
    Scenario(
        name="a free network",
        assumes="no exchange at all, neither on links nor on cores; steps as measured without it",
        steps=partial(_without, "exposed_exchange"),
    ),
    Scenario(
        name="no stragglers",
        assumes="in every step each rank takes as long as the typical one; exchange stays",
        steps=partial(_without, "imbalance"),
    ),
    Scenario(
        name="no library overhead",
        assumes=(
            "wrapper, hooks and threads take nothing in steps without exchange; exchange stays, and"
            " none of it had hidden behind them"
        ),
        steps=partial(_without, "library_overhead"),
    ),
)
"""Those of every report."""
