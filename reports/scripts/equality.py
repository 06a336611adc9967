"""Whether scripts train alike: start, gradients of the first step, parameters after each compared
step, loss.

Rank 0 of each arm is compared with the baseline's, launch by launch; the launch with the largest
difference counts. Rounding is allowed, and three times the difference of the control, which is the
baseline's command once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from measurement.distances import (
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
from measurement.plans.plan import Plan
from measurement.rank_agreement import (
    BUFFER,
    START_TOLERANCE,
    common_names,
    describe_rank_difference,
)
from measurement.records.record import LaunchRecord, ScriptReport
from reports.parts_schema import Equality, GradientEquality, ParameterEquality, StartEquality
from reports.scripts.judgement import NOT_REPEATABLE, Judgement, clause, rounding_hint
from reports.scripts.losses import compare_losses, loss_unit
from reports.scripts.script_arms import ScriptArm, matched

SINGLE_TENSOR = 10.0
"""One tensor may be this many times as far off as all together."""
TIMES_CONTROL = 3.0


Scripts = Mapping[tuple[int, str], ScriptArm]
"""What ranks reported, by launch and arm."""


@dataclass(frozen=True, kw_only=True)
class _LaunchPair:
    """One arm beside the baseline in one launch."""

    start: Distances
    only_here: Sequence[str]
    missing_here: Sequence[str]
    gradients: Sequence[Distances]
    """Those of the first step; empty where one of the two has none."""
    factor: float | None
    """How many times as large these are, where they are the same up to it."""
    steps: Sequence[Distances]
    """Parameters after each step."""
    perturbed: bool
    """Whether the arm's were changed in their last place after the first."""
    how: str
    """In which names were matched, as ``matched`` says it."""


def judge_equality(
    plan: Plan,
    records: Sequence[LaunchRecord],
    *,
    losses: Mapping[tuple[int, str], pd.DataFrame] | None = None,
) -> Equality:
    """Compare every arm of scripts with the baseline.

    ``losses``: by launch and arm (``measurement.records.results.ResultsFolder.losses``); None: not
    known.
    """
    scripts = {
        (record.launch, record.arm): ScriptArm.of(record) for record in records if record.scripts
    }
    first_launch = {arm: script for (_, arm), script in reversed(scripts.items())}
    others = [arm for arm in plan.compared_arms() if arm != plan.baseline]
    precisions = {arm: _shared_arithmetic(plan.baseline, arm, first_launch) for arm in others}
    pairs = {
        arm: _farthest_launch(plan.baseline, arm, scripts, ARITHMETICS[precisions[arm]])
        for arm in others
    }
    control = pairs.get(plan.control_name) if plan.measurement.control else None
    judged = {
        arm: _judge(pair, precisions[arm], None if arm == plan.control_name else control)
        for arm, pair in pairs.items()
    }
    passes = {arm: script.number("accumulation") for arm, script in first_launch.items()}
    curves = compare_losses(
        plan,
        losses or {},
        in_other_passes=[
            arm for arm, number in passes.items() if number != passes.get(plan.baseline, number)
        ],
    )
    batches = {
        arm: sentence
        for arm in others
        if (sentence := _batches(plan.baseline, arm, scripts)) is not None
    }
    candidates = {
        arm: judgement for arm, judgement in judged.items() if plan.role(arm) == "candidate"
    }
    starts_apart = control is not None and (
        judged[plan.control_name].start.verdict == "another start"
    )
    seen = [arm for arm in candidates if _launches_of_both(plan.baseline, arm, scripts)]
    clauses = [
        clause(
            arm,
            candidates[arm],
            plan,
            precision=precisions[arm],
            has_other_batches="other batches" in batches.get(arm, ""),
            hint=rounding_hint(
                candidates[arm],
                first_launch[plan.baseline],
                first_launch[arm],
                has_control=control is not None,
            ),
            is_repeatable=not starts_apart,
        )
        for arm in seen
    ]
    clauses += [batches[arm] for arm in candidates if arm in batches and plan.scripts.same_data]
    by_rank = {
        record.arm: sentence
        for record in records
        if (sentence := describe_rank_difference(record)) is not None
    }
    return Equality(
        start={arm: judgement.start for arm, judgement in judged.items()},
        gradients={arm: judgement.gradients for arm, judgement in judged.items()},
        parameters={arm: judgement.parameters for arm, judgement in judged.items()},
        loss=curves,
        loss_margin=plan.scripts.loss_margin,
        loss_unit=loss_unit(losses or {}),
        batches=batches,
        ranks=dict(sorted(by_rank.items())),
        unequal=[
            arm
            for arm, judgement in candidates.items()
            if not judgement.is_equal or (arm in curves and curves[arm].verdict == "worse")
        ],
        first_difference_step=min(
            (
                judgement.first_step
                for judgement in candidates.values()
                if judgement.first_step is not None
            ),
            default=None,
        ),
        sentence=". ".join(clauses) or f"{plan.baseline} has nothing to be compared with",
    )


def _farthest_launch(
    baseline: str, arm: str, scripts: Scripts, shared: Arithmetic
) -> _LaunchPair | None:
    """The launch in which two arms are farthest apart; None where no launch has both, or each rank
    has a share only.
    """
    pairs = [
        _compare_launch(scripts[launch, arm].first, scripts[launch, baseline].first, shared)
        for launch in _launches_of_both(baseline, arm, scripts)
    ]
    return max(
        filter(None, pairs),
        key=lambda pair: (
            pair.start.distance,
            max((step.distance for step in pair.steps), default=0.0),
        ),
        default=None,
    )


def _launches_of_both(baseline: str, arm: str, scripts: Scripts) -> list[int]:
    return sorted(
        launch for launch, name in scripts if name == arm and (launch, baseline) in scripts
    )


def _compare_launch(
    ours: ScriptReport, theirs: ScriptReport, shared: Arithmetic
) -> _LaunchPair | None:
    ours, how = matched(ours, theirs)
    names = [
        name
        for name in common_names(ours.started, theirs.started)
        if ours.sizes.get(name) == theirs.sizes.get(name)
    ]
    if ours.sharded or theirs.sharded or not names:
        return None
    mine, its = first_gradients(ours, theirs)
    return _LaunchPair(
        start=start_distances(Sketches.of(ours.started, names), Sketches.of(theirs.started, names)),
        only_here=[name for name in ours.started if name not in names],
        missing_here=[name for name in theirs.started if name not in names],
        gradients=[gradient_distances(mine, its, theirs.sizes, shared)]
        if mine.norm or its.norm
        else [],
        factor=gradient_factor(mine, its),
        steps=_steps(ours, theirs, names, negligible=its.negligible(theirs.sizes, shared)),
        perturbed=ours.perturbed,
        how=how,
    )


def first_gradients(ours: ScriptReport, theirs: ScriptReport) -> tuple[Sketches, Sketches]:
    """Those of the first step that both have, of reports with alike names (``matched``); none where
    one took no step.
    """
    mine, its = (report.steps[0].gradients if report.steps else {} for report in (ours, theirs))
    names = common_names(mine, its)
    return Sketches.of(mine, names), Sketches.of(its, names)


def _steps(
    ours: ScriptReport, theirs: ScriptReport, names: Sequence[str], *, negligible: Sequence[str]
) -> list[Distances]:
    """Parameters after each step that both have; without those whose gradients are nothing but
    rounding.
    """
    kept = [name for name in names if not name.startswith(BUFFER) and name not in negligible]
    dtypes = " ".join(str(report.configuration.get("model.dtypes")) for report in (ours, theirs))
    # the coarsest in which parameters are kept
    stored = max(
        (arithmetic_of(name) for name in ARITHMETICS if name in dtypes),
        key=lambda kind: kind.epsilon,
        default=arithmetic_of("float32"),
    )
    distances = []
    for number, (mine, its) in enumerate(zip(ours.steps, theirs.steps, strict=False), start=1):
        shared = [name for name in kept if name in mine.parameters and name in its.parameters]
        if not shared:
            break
        moved, wanted = (
            TensorChange(
                start=Sketches.of(report.started, shared), end=Sketches.of(step.parameters, shared)
            )
            for report, step in ((ours, mine), (theirs, its))
        )
        distances.append(step_distances(moved, wanted, theirs.sizes, steps=number, stored=stored))
    return distances


def _shared_arithmetic(baseline: str, arm: str, scripts: Mapping[str, ScriptArm]) -> str:
    """The coarsest arithmetic that both arms use; one alone is a difference and no excuse."""
    arithmetics = [
        arithmetic(scripts[name].first.configuration) for name in (baseline, arm) if name in scripts
    ]
    return min(arithmetics, key=list(ARITHMETICS).index, default="float32")


def arithmetic(configuration: Mapping[str, Any]) -> str:
    """The coarsest that a script computes or exchanges gradients in, a name of ``ARITHMETICS``."""
    names = ("model.dtypes", "horovod.compression", "ddp.comm_hook")
    text = " ".join(str(configuration.get(name, "")) for name in names).lower()
    if configuration.get("autocast.enabled"):
        text += str(configuration.get("autocast.dtype", "")).lower()
    if "bf16" in text or "bfloat16" in text:
        return "bfloat16"
    if "fp16" in text or "float16" in text:
        return "float16"
    is_rounded = configuration.get("tf32.matmul") or configuration.get("tf32.cudnn")
    return (
        "TensorFloat-32"
        if is_rounded and str(configuration.get("device", "cpu")) != "cpu"
        else "float32"
    )


def _judge(pair: _LaunchPair | None, precision: str, control: _LaunchPair | None) -> Judgement:
    """Judge one arm, with the control's differences as tolerance."""
    if pair is None:
        return Judgement()
    beyond = pair.start.names_beyond(START_TOLERANCE)
    start = StartEquality(
        verdict="another start" if beyond else _equality(pair.start.worst),
        names=[name for name in beyond if not name.startswith(BUFFER)] or beyond,
        distance=pair.start.distance,
        only_here=pair.only_here,
        missing_here=pair.missing_here,
    )
    judged, allowed = Judgement(start=start, how=pair.how), ARITHMETICS[precision]
    if pair.gradients and not beyond:
        fields, _ = _verdict_of(
            pair.gradients, allowed.recomputed, control.gradients if control else []
        )
        factor = pair.factor if fields.get("verdict") == "apart" else None
        judged.gradients = GradientEquality(
            distance=pair.gradients[0].distance, factor=factor, **fields
        )
    if pair.steps and not beyond:
        fields, num_judged = _verdict_of(
            pair.steps[:1] if pair.perturbed else pair.steps,
            allowed.stepped,
            control.steps if control else [],
        )
        is_apart = fields.get("verdict") == "apart"
        if is_apart and len(fields["names"]) == len(pair.steps[num_judged - 1].names):
            fields["names"] = []
        judged.parameters = ParameterEquality(
            distances=[step.distance for step in pair.steps],
            perturbed=pair.perturbed,
            judged_steps=num_judged,
            first_difference_step=num_judged if is_apart else None,
            **fields,
        )
    return judged


def _verdict_of(
    distances: Sequence[Distances], least: float, control: Sequence[Distances]
) -> tuple[dict[str, Any], int]:
    """Verdict, tolerance and names of the first step that differs from the baseline's beyond its
    tolerance, or of all; and how many were judged.

    A step's tolerance follows from the control's steps until then. From where the control is too
    far off on, no step is judged.
    """
    tolerance, single, judged = least, SINGLE_TENSOR * least, list[float]()
    for number, step in enumerate(distances, start=1):
        repeats = control[number - 1 : number]
        wider = max([tolerance, *(TIMES_CONTROL * repeat.distance for repeat in repeats)])
        if wider > NOT_REPEATABLE:
            break
        tolerance = wider
        single = max(
            [SINGLE_TENSOR * wider, single, *(TIMES_CONTROL * repeat.worst for repeat in repeats)]
        )
        judged.append(step.distance)
        if step.is_beyond(tolerance, single):
            names = step.names_beyond(single if step.distance <= tolerance else tolerance)
            return {"tolerance": tolerance, "verdict": "apart", "names": names}, number
    verdict = {"verdict": _equality(max(judged))} if judged else {}
    return {"tolerance": tolerance, **verdict}, len(judged)


def _equality(distance: float) -> Literal["equal", "equal up to rounding"]:
    return "equal" if distance == 0 else "equal up to rounding"


def _batches(baseline: str, arm: str, scripts: Scripts) -> str | None:
    """What the digests of the first batches say, of the first launch that has them; None where
    there are none, or a step has another number of batches.
    """
    for launch in _launches_of_both(baseline, arm, scripts):
        ours, theirs = (scripts[launch, name] for name in (arm, baseline))
        if ours.fields.get("accumulation") != theirs.fields.get("accumulation"):
            return None
        shared = list(zip(ours.batches, theirs.batches, strict=False))
        if not shared or any(None in ranks for pair in shared for ranks in pair):
            continue
        for step, (mine, its) in enumerate(shared, start=1):
            if Counter(mine) != Counter(its):
                return f"{arm} reads other batches than {baseline}, from step {step} on"
        return f"{arm} reads the same batches as {baseline}"
    return None
