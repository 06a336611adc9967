"""Whether scripts train alike: start, gradients of the first step, parameters after each compared step, loss.

The baseline's rank 0 is compared with each other arm's, launch by launch, and the launch in which they are farthest apart counts.
What rounding makes is allowed, and three times what the control shows: it is the baseline's command once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pandas as pd

from measurement.judging.distances import (
    ARITHMETICS,
    Arithmetic,
    Distances,
    Sketches,
    TensorChange,
    arithmetic_of,
    gradient_distances,
    gradient_factor,
    start_distances,
    step_distances,
)
from measurement.judging.ranks import BUFFER, START_TOLERANCE, common_names, describe_rank_difference, named
from measurement.plans.plan import Plan
from measurement.records.record import LaunchRecord
from measurement.records.script_report import ScriptReport
from reports.parts_schema import Equality, GradientEquality, ParameterEquality, StartEquality
from reports.scripts.losses import compare_losses, loss_unit
from reports.scripts.script_arms import ScriptArm, matched

SINGLE_TENSOR = 10.0
"""One tensor may be this many times as far off as all together."""
TIMES_CONTROL = 3.0
NEAR = ("equal", "equal up to rounding")
NOT_REPEATABLE = 0.3
"""Where the control is that far off, times ``TIMES_CONTROL``, nothing can be told."""


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """One arm beside the baseline in one launch."""

    names: Sequence[str]
    """That both have."""
    start: Distances
    only_here: Sequence[str]
    missing_here: Sequence[str]
    gradients: Sequence[Distances]
    """Those of the first step; empty where one of the two has none."""
    factor: float | None
    """How many times as large these are, where they are the same up to it."""
    steps: Sequence[Distances]
    """Parameters after each step."""
    how: str
    """In which names were matched, as ``matched`` says it."""


@dataclass(kw_only=True)
class _Judged:
    """What is said of one arm."""

    start: StartEquality = field(default_factory=StartEquality)
    gradients: GradientEquality = field(default_factory=GradientEquality)
    parameters: ParameterEquality = field(default_factory=ParameterEquality)
    how: str = ""
    hint: str = ""
    """What may be the cause, and how to find out, after a semicolon."""

    @property
    def first_step(self) -> int | None:
        """From which on it is apart: 0 from the start on."""
        if self.start.verdict == "another start":
            return 0
        return 1 if self.gradients.verdict == "apart" else self.parameters.first_difference_step

    @property
    def is_equal(self) -> bool:
        """Whether all that was compared is equal, and the parameters were."""
        rest = (self.gradients.verdict, self.parameters.verdict)
        return self.start.verdict in NEAR and self.parameters.verdict in NEAR and "apart" not in rest


class _Again(NamedTuple):
    """What the baseline's command did when it was started once more, as the control."""

    starts_apart: bool
    why: str
    remedy: str


def judge_equality(
    plan: Plan, records: Sequence[LaunchRecord], *, losses: Mapping[tuple[int, str], pd.DataFrame] | None = None
) -> Equality:
    """Hold every arm of scripts against the baseline.

    ``losses``: by launch and arm (``measurement.records.results.ResultsFolder.losses``); None: not known.
    """
    firsts = {(one.launch, one.arm): ScriptArm.of(one).first for one in records if one.scripts}
    others = [arm for arm in plan.compared_arms() if arm != plan.baseline]
    arithmetics = {arm: _shared_arithmetic(plan.baseline, arm, firsts) for arm in others}
    pairs = {arm: _worst(plan.baseline, arm, firsts, ARITHMETICS[arithmetics[arm]]) for arm in others}
    control = pairs.get(plan.control_name) if plan.measurement.control else None
    judged = {arm: _judge(pair, arithmetics[arm], None if arm == plan.control_name else control) for arm, pair in pairs.items()}
    arms = {one.arm: ScriptArm.of(one) for one in reversed(records) if one.scripts}
    curves = compare_losses(plan, losses or {}, scales={arm: _loss_scale(judged[arm], plan.baseline, arm, arms) for arm in others})
    batches = {arm: said for arm in others if (said := _batches(plan.baseline, arm, records)) is not None}
    candidates = {arm: found for arm, found in judged.items() if plan.role(arm) == "candidate"}
    steps = [found.first_step for found in candidates.values() if found.first_step is not None]
    worse = {arm for arm, loss in curves.items() if loss.verdict == "worse"}
    seeds = [arms[name].fields.get("seed.torch") for name in (plan.baseline, plan.control_name) if name in arms]
    again = _Again(
        starts_apart=control is not None and judged[plan.control_name].start.verdict == "another start",
        why="its batches are others" if "other batches" in batches.get(plan.control_name, "") else "it is not repeatable",
        remedy="set a seed" if seeds[0:1] != seeds[1:] and seeds[1:] else "",
    )
    seen = [arm for arm in candidates if _launches_of_both(plan.baseline, arm, firsts)]
    for arm in seen:
        candidates[arm].hint = _hint(candidates[arm], arms[plan.baseline], arms[arm])
    clauses = [_clause(arm, candidates[arm], plan, arithmetics[arm], batches, again) for arm in seen]
    clauses += [batches[arm] for arm in candidates if arm in batches and plan.scripts.same_data]
    return Equality(
        start={arm: found.start for arm, found in judged.items()},
        gradients={arm: found.gradients for arm, found in judged.items()},
        parameters={arm: found.parameters for arm, found in judged.items()},
        loss=curves,
        loss_margin=plan.scripts.loss_margin,
        loss_unit=loss_unit(losses or {}),
        batches=batches,
        ranks=dict(sorted({one.arm: said for one in records if (said := describe_rank_difference(one)) is not None}.items())),
        unequal=[arm for arm, found in candidates.items() if not found.is_equal or arm in worse],
        first_difference_step=min(steps, default=None),
        sentence=". ".join(clauses) or f"{plan.baseline} has nothing to be compared with",
    )


def _hint(found: _Judged, *arms: ScriptArm) -> str:
    """What explains another start besides other weights; or that later steps may have amplified rounding."""
    if found.start.verdict == "another start":
        empty = [arm.name for arm in arms if arm.number("optimizer.empty_steps")]
        return f"; {empty[0]} takes a step without gradients before its first" if len(empty) == 1 else ""
    if found.gradients.verdict not in NEAR or (found.parameters.first_difference_step or 0) < 2:
        return ""
    threads = {str(arm.fields.get("threads.torch")) for arm in arms}
    remedies = ["with equal threads (torch.set_num_threads)"] * (len(threads) > 1)
    remedies += ["without compression"] * all(arm.compression for arm in arms)  # of one alone it is a cause of its own
    return f"; it may be rounding that later steps amplify: look again {' and '.join(remedies)}" if remedies else ""


def _loss_scale(found: _Judged, baseline: str, arm: str, arms: Mapping[str, ScriptArm]) -> float | None:
    """Times how much the mean loss of an arm's passes is comparable with the baseline's; None where that is not known.

    Where a step has another number of passes, gradients tell: if they agree, so does what the passes' losses sum up to.
    """
    passes, wanted = (arms[name].number("accumulation") if name in arms else None for name in (arm, baseline))
    if not passes or not wanted or passes == wanted:
        return 1.0
    return passes / wanted if found.gradients.verdict in NEAR else None


def _worst(baseline: str, arm: str, firsts: Mapping[tuple[int, str], ScriptReport], shared: Arithmetic) -> _Pair | None:
    """The launch in which two arms are farthest apart; None where no launch has both, or each rank has a share only."""
    pairs = [_pair(firsts[launch, arm], firsts[launch, baseline], shared) for launch in _launches_of_both(baseline, arm, firsts)]
    known = [pair for pair in pairs if pair is not None and pair.names]
    return max(known, key=lambda one: (one.start.distance, max((step.distance for step in one.steps), default=0.0)), default=None)


def _launches_of_both(baseline: str, arm: str, firsts: Mapping[tuple[int, str], ScriptReport]) -> list[int]:
    return sorted(launch for launch, name in firsts if name == arm and (launch, baseline) in firsts)


def _pair(ours: ScriptReport, theirs: ScriptReport, shared: Arithmetic) -> _Pair | None:
    if ours.sharded or theirs.sharded:
        return None
    ours, how = matched(ours, theirs)
    names = [name for name in common_names(ours.started, theirs.started) if ours.sizes.get(name) == theirs.sizes.get(name)]
    mine, its = first_gradients(ours, theirs)
    return _Pair(
        names=names,
        start=start_distances(Sketches.of(ours.started, names), Sketches.of(theirs.started, names)),
        only_here=[name for name in ours.started if name not in names],
        missing_here=[name for name in theirs.started if name not in names],
        gradients=[gradient_distances(mine, its, theirs.sizes, shared)] if mine.norm or its.norm else [],
        factor=gradient_factor(mine, its),
        steps=_steps(ours, theirs, names, negligible=its.negligible(theirs.sizes, shared)),
        how=how,
    )


def first_gradients(ours: ScriptReport, theirs: ScriptReport) -> tuple[Sketches, Sketches]:
    """Those of the first step that both have, of reports with alike names (``matched``); none where one took no step."""
    mine, its = (report.steps[0].gradients if report.steps else {} for report in (ours, theirs))
    names = common_names(mine, its)
    return Sketches.of(mine, names), Sketches.of(its, names)


def _steps(ours: ScriptReport, theirs: ScriptReport, names: Sequence[str], *, negligible: Sequence[str]) -> list[Distances]:
    """Parameters after each step that both have; without those whose gradients are nothing but rounding."""
    kept = [name for name in names if not name.startswith(BUFFER) and name not in negligible]
    stored = max((_stored(report) for report in (ours, theirs)), key=lambda one: one.epsilon)
    found = []
    for number, (mine, its) in enumerate(zip(ours.steps, theirs.steps, strict=False), start=1):
        shared = [name for name in kept if name in mine.parameters and name in its.parameters]
        if not shared:
            break
        moved, wanted = (
            TensorChange(start=Sketches.of(report.started, shared), end=Sketches.of(step.parameters, shared))
            for report, step in ((ours, mine), (theirs, its))
        )
        found.append(step_distances(moved, wanted, theirs.sizes, steps=number, stored=stored))
    return found


def _stored(report: ScriptReport) -> Arithmetic:
    """The coarsest dtype in which parameters are kept."""
    dtypes = str(report.configuration.get("model.dtypes", ""))
    kept = [arithmetic_of(name) for name in ARITHMETICS if name in dtypes]
    return max(kept, key=lambda one: one.epsilon, default=arithmetic_of("float32"))


def _shared_arithmetic(baseline: str, arm: str, firsts: Mapping[tuple[int, str], ScriptReport]) -> str:
    """The coarsest arithmetic that both arms use; one alone is a difference and no excuse."""
    found = [next((report for (_, name), report in firsts.items() if name == one), None) for one in (baseline, arm)]
    known = [arithmetic(report.configuration) for report in found if report is not None]
    return min(known, key=list(ARITHMETICS).index, default="float32")


def arithmetic(configuration: Mapping[str, Any]) -> str:
    """The coarsest that a script computes or exchanges gradients in, a name of ``ARITHMETICS``."""
    names = ("model.dtypes", "horovod.compression", "ddp.comm_hook")
    said = " ".join(str(configuration.get(name, "")) for name in names).lower()
    if configuration.get("autocast.enabled"):
        said += str(configuration.get("autocast.dtype", "")).lower()
    if "bf16" in said or "bfloat16" in said:
        return "bfloat16"
    if "fp16" in said or "float16" in said:
        return "float16"
    is_rounded = configuration.get("tf32.matmul") or configuration.get("tf32.cudnn")
    return "TensorFloat-32" if is_rounded and str(configuration.get("device", "cpu")) != "cpu" else "float32"


def _judge(pair: _Pair | None, precision: str, control: _Pair | None) -> _Judged:
    """What may be said of one arm, beside what the control shows."""
    if pair is None:
        return _Judged()
    beyond = pair.start.names_beyond(START_TOLERANCE)
    start = StartEquality(
        verdict="another start" if beyond else _near(pair.start.worst),
        names=[name for name in beyond if not name.startswith(BUFFER)] or beyond,
        distance=pair.start.distance,
        only_here=pair.only_here,
        missing_here=pair.missing_here,
    )
    judged, allowed = _Judged(start=start, how=pair.how), ARITHMETICS[precision]
    if pair.gradients and not beyond:
        told, apart = _held(pair.gradients, allowed.recomputed, control.gradients if control else [])
        distance, factor = pair.gradients[0].distance, pair.factor if apart else None
        judged.gradients = GradientEquality(distance=distance, factor=factor, **told)
    if pair.steps and not beyond:
        told, apart = _held(pair.steps, allowed.stepped, control.steps if control else [])
        if apart and len(told["names"]) == len(pair.steps[apart - 1].names):
            told["names"] = []
        judged.parameters = ParameterEquality(distances=[step.distance for step in pair.steps], first_difference_step=apart, **told)
    return judged


def _held(found: Sequence[Distances], least: float, control: Sequence[Distances]) -> tuple[dict[str, Any], int | None]:
    """Verdict, tolerance and names of what is compared with the baseline's, and the number, from 1, of the first that is apart."""
    tolerance = max([least, *(TIMES_CONTROL * one.distance for one in control)])
    single = max([SINGLE_TENSOR * tolerance, *(TIMES_CONTROL * one.worst for one in control)])
    if tolerance > NOT_REPEATABLE:
        return {"tolerance": tolerance}, None
    for number, one in enumerate(found, start=1):
        if one.is_beyond(tolerance, single):
            names = one.names_beyond(single if one.distance <= tolerance else tolerance)
            return {"tolerance": tolerance, "verdict": "apart", "names": names}, number
    return {"tolerance": tolerance, "verdict": _near(max(one.distance for one in found))}, None


def _near(distance: float) -> Literal["equal", "equal up to rounding"]:
    return "equal" if distance == 0 else "equal up to rounding"


def _batches(baseline: str, arm: str, records: Sequence[LaunchRecord]) -> str | None:
    """What the digests of the first batches say, of the first launch that has them; None where there are none."""
    arms = [(one, ScriptArm.of(one)) for one in records if one.scripts and one.arm in (arm, baseline)]
    if len({own.fields.get("accumulation") for _, own in arms}) > 1:
        return None  # a digest is that of all batches of a step
    known = {(one.launch, one.arm): own.batches for one, own in arms}
    whole = {place: digests for place, digests in known.items() if all(None not in ranks for ranks in digests)}
    launches = sorted(launch for launch, name in whole if name == arm and whole[launch, arm] and whole.get((launch, baseline)))
    if not launches:
        return None
    shared = list(zip(whole[launches[0], arm], whole[launches[0], baseline], strict=False))
    if all(mine == its for mine, its in shared):
        return f"{arm} reads the same batches as {baseline}"
    if all(Counter(mine) == Counter(its) for mine, its in shared):
        return f"{arm} reads the same batches as {baseline}, on other ranks"
    first = next(number for number, (mine, its) in enumerate(shared, start=1) if Counter(mine) != Counter(its))
    return f"{arm} reads other batches than {baseline}, from step {first} on"


def _clause(arm: str, found: _Judged, plan: Plan, precision: str, batches: Mapping[str, str], again: _Again) -> str:
    """What is said of one candidate, without a full stop."""
    start, parameters = found.start, found.parameters
    if start.verdict == "not compared":
        return f"Whether {arm} trains like {plan.baseline} is not known: there are no parameters that both have whole"
    if start.verdict == "another start":
        return _another_start(arm, found, plan, again)
    unmatched = [*start.only_here, *start.missing_here]
    besides = found.how + (f"; without a counterpart: {named(unmatched)}" if unmatched else "")
    if "apart" in (found.gradients.verdict, parameters.verdict):
        data = "; their batches differ, too" if "other batches" in batches.get(arm, "") else ""
        return f"{arm} starts equal to {plan.baseline}{_apart_words(found)}{data}{found.hint}{besides}"
    if parameters.verdict == "not compared":
        return f"{arm} starts equal to {plan.baseline}{_not_compared(plan, parameters, again)}{besides}"
    rounding = "" if parameters.verdict == "equal" else f" up to {precision} rounding"
    steps = "step" if len(parameters.distances) == 1 else f"{len(parameters.distances)} steps"
    return f"{arm} trains like {plan.baseline}: equal start, and equal{rounding} over the first {steps}{besides}"


def _another_start(arm: str, found: _Judged, plan: Plan, again: _Again) -> str:
    start = found.start
    which = "" if start.distance is not None and start.distance > NOT_REPEATABLE else f" ({named(start.names)})"
    if again.starts_apart:
        remedy = ", or ".join(filter(None, (again.remedy, "use --same-start")))
        return (
            f"{arm} has another start than {plan.baseline}, but so has {plan.baseline} each time: "
            f"it is not repeatable; {remedy}{found.how}"
        )
    remedy = found.how or found.hint or ("" if plan.scripts.same_start else "; --same-start compares what follows")
    return f"{arm} has another start than {plan.baseline}{which}{remedy}"


def _not_compared(plan: Plan, parameters: ParameterEquality, again: _Again) -> str:
    if not parameters.distances:
        return ", but its parameters after the first steps are not known"
    return f", but {plan.baseline} itself steps otherwise each time: {'; '.join(filter(None, again[1:]))}"


def _apart_words(found: _Judged) -> str:
    """From which step on, by how much, and what the gradients say of it."""
    gradients, parameters = found.gradients, found.parameters
    if parameters.verdict != "apart":
        agree = "" if parameters.verdict == "not compared" else "; the parameters agree"
        return f", but gradients of the first step are apart{_gradient_words(gradients)}{agree}"
    assert parameters.first_difference_step is not None
    percent = float(f"{100 * parameters.distances[parameters.first_difference_step - 1]:.2g}")
    by = f"{percent:g}%"
    where = f" ({named(parameters.names)})" if 0 < len(parameters.names) <= MAX_TENSORS else ""
    words = f", then is apart from step {parameters.first_difference_step} on by {by} of what the steps changed{where}"
    if gradients.verdict == "apart":
        return f"{words}; its gradients differ{_gradient_words(gradients)}"
    return f"{words}; its first gradients agree" if gradients.verdict != "not compared" else words


MIN_FACTOR = 0.01
"""Gradients whose sizes differ by less are not said to be apart by a factor."""
MAX_TENSORS = 5
"""Where more are apart, they are not named in the sentence."""


def _gradient_words(gradients: GradientEquality) -> str:
    if gradients.factor is not None and abs(gradients.factor - 1) > MIN_FACTOR:
        return f" by a factor of {gradients.factor:.3g}"
    return f" ({named(gradients.names)})" if 0 < len(gradients.names) <= MAX_TENSORS else ""
