"""The first steps of scripts beside the baseline's: how far start, gradients and parameters are
apart, launch by launch, and whether that is more than rounding.

Rounding is allowed, and three times the difference of the control, which is the baseline's command
once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from measurement.agent.ringside_agent.reading.script import BUFFER
from measurement.distances import (
    ARITHMETICS,
    FLOAT32,
    Distances,
    Sketches,
    TensorChange,
    gradient_distances,
    gradient_factor,
    start_distances,
    step_distances,
)
from measurement.rank_agreement import START_TOLERANCE, common_names
from measurement.records.record import ScriptReport
from reports.parts_schema import GradientEquality, ParameterEquality, StartEquality
from reports.scripts.script_arms import ScriptArm, half_in

SINGLE_TENSOR = 10.0
"""One tensor may be this many times as far off as all together."""
TIMES_CONTROL = 3.0
NOT_REPEATABLE = 0.3
"""Where the control is that far off, times ``TIMES_CONTROL``, nothing can be concluded."""
NEAR = ("equal", "equal up to rounding")


@dataclass(frozen=True, kw_only=True)
class _LaunchPair:
    """One arm beside the baseline in one launch."""

    start: StartEquality
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
    precision: str
    """The coarsest arithmetic that both use; one alone is a difference and no excuse."""


@dataclass(kw_only=True)
class Judgement:
    """The judgement on one arm."""

    start: StartEquality = field(default_factory=StartEquality)
    gradients: GradientEquality = field(default_factory=GradientEquality)
    parameters: ParameterEquality = field(default_factory=ParameterEquality)
    how: str = ""
    precision: str = "float32"

    @property
    def first_step(self) -> int | None:
        """The first step after which it differs; 0: from the start on."""
        if self.start.verdict == "another start":
            return 0
        return 1 if self.gradients.verdict == "apart" else self.parameters.first_difference_step

    @property
    def is_equal(self) -> bool:
        """Whether all that was compared is equal, and the parameters were."""
        rest = (self.gradients.verdict, self.parameters.verdict)
        return (
            self.start.verdict in NEAR and self.parameters.verdict in NEAR and "apart" not in rest
        )


def farthest_launch(pairs: Sequence[tuple[ScriptArm, ScriptArm]]) -> _LaunchPair | None:
    """The launch in which an arm is farthest from the baseline; None where no launch has both, or
    each rank has a share only.

    ``pairs``: the arm and the baseline, launch by launch.
    """
    compared = (_compare_launch(ours, theirs) for ours, theirs in pairs)
    return max(
        filter(None, compared),
        key=lambda pair: (
            pair.start.distance or 0.0,
            max((step.distance for step in pair.steps), default=0.0),
        ),
        default=None,
    )


def _compare_launch(arm: ScriptArm, baseline: ScriptArm) -> _LaunchPair | None:
    theirs = baseline.first
    ours, how = matched(arm.first, theirs)
    names = [
        name
        for name in common_names(ours.started, theirs.started)
        if ours.sizes.get(name) == theirs.sizes.get(name)
    ]
    if ours.sharded or theirs.sharded or not names:
        return None
    precision = min(map(arithmetic, (arm, baseline)), key=list(ARITHMETICS).index)
    shared, (mine, its) = ARITHMETICS[precision], first_gradients(ours, theirs)
    start = start_distances(Sketches.of(ours.started, names), Sketches.of(theirs.started, names))
    beyond = start.names_beyond(START_TOLERANCE)
    return _LaunchPair(
        start=StartEquality(
            verdict="another start" if beyond else _equality(start.worst),
            names=[name for name in beyond if not name.startswith(BUFFER)] or beyond,
            distance=start.distance,
            only_here=[name for name in ours.started if name not in names],
            missing_here=[name for name in theirs.started if name not in names],
        ),
        gradients=[gradient_distances(mine, its, theirs.sizes, shared)]
        if mine.norm or its.norm
        else [],
        factor=gradient_factor(mine, its),
        steps=_steps(ours, theirs, names, negligible=its.negligible(theirs.sizes, shared)),
        perturbed=ours.perturbed,
        how=how,
        precision=precision,
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
        (kind for name, kind in ARITHMETICS.items() if name in dtypes),
        key=lambda kind: kind.epsilon,
        default=FLOAT32,
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


def arithmetic(script: ScriptArm) -> str:
    """The coarsest that it computes or exchanges gradients in, a name of ``ARITHMETICS``."""
    seen = script.first.configuration
    names = ["model.dtypes", "horovod.compression", "ddp.comm_hook"]
    names += ["autocast.dtype"] if seen.get("autocast.enabled") else []
    if half := half_in(" ".join(str(seen.get(name)) for name in names)):
        return half
    is_rounded = seen.get("tf32.matmul") or seen.get("tf32.cudnn")
    return "TensorFloat-32" if is_rounded and seen.get("device", "cpu") != "cpu" else "float32"


def judge_launch(pair: _LaunchPair | None, control: _LaunchPair | None) -> Judgement:
    """Judge one arm, with the control's differences as tolerance."""
    if pair is None:
        return Judgement()
    judged = Judgement(start=pair.start, how=pair.how, precision=pair.precision)
    if pair.start.verdict == "another start":
        return judged
    allowed = ARITHMETICS[pair.precision]
    repeated, repeats = (control.gradients, control.steps) if control else ([], [])
    if pair.gradients:
        fields, _ = _verdict_of(pair.gradients, allowed.recomputed, repeated)
        factor = pair.factor if fields.get("verdict") == "apart" else None
        judged.gradients = GradientEquality(
            distance=pair.gradients[0].distance, factor=factor, **fields
        )
    if pair.steps:
        steps = pair.steps[:1] if pair.perturbed else pair.steps
        fields, num_judged = _verdict_of(steps, allowed.stepped, repeats)
        is_apart = fields.get("verdict") == "apart"
        if is_apart and len(fields["names"]) == len(steps[num_judged - 1].names):
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


def batches_sentence(pairs: Sequence[tuple[ScriptArm, ScriptArm]]) -> str | None:
    """What the digests of the first batches say, of the first launch that has them; None where
    there are none, or a step has another number of batches.
    """
    for ours, theirs in pairs:
        if ours.passes != theirs.passes:
            return None
        shared = list(zip(ours.batches, theirs.batches, strict=False))
        if not shared or any(None in ranks for pair in shared for ranks in pair):
            continue
        for step, (mine, its) in enumerate(shared, start=1):
            if Counter(mine) != Counter(its):
                return f"{ours.name} reads other batches than {theirs.name}, from step {step} on"
        return f"{ours.name} reads the same batches as {theirs.name}"
    return None


def matched(ours: ScriptReport, theirs: ScriptReport) -> tuple[ScriptReport, str]:
    """A report with the names that the other has for its tensors, and how they were matched, with a
    comma before it.

    Frameworks have other names for a model's tensors. Where few are the same, sizes and order must
    all be.
    """
    mine, its = list(ours.started), list(theirs.started)
    if 2 * len({*mine} & {*its}) > min(len(mine), len(its)) or (
        [ours.sizes.get(name) for name in mine] != [theirs.sizes.get(name) for name in its]
    ):
        return ours, ""
    names = dict(zip(mine, its, strict=True))

    def under(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): value for name, value in tensors.items()}

    steps = [
        step.model_copy(
            update={"gradients": under(step.gradients), "parameters": under(step.parameters)}
        )
        for step in ours.steps
    ]
    return (
        ours.model_copy(
            update={"started": under(ours.started), "sizes": under(ours.sizes), "steps": steps}
        ),
        ", tensors matched by size and order",
    )
