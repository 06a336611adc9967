"""Whether scripts train alike: start, gradients of the first step, parameters after each compared
step, loss; beside the baseline, or beside a golden result, the first steps of a command at an
earlier date, which is not run again.

Rank 0 of each arm is compared with the baseline's, launch by launch; the launch with the largest
difference counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path

import pandas as pd

from measurement.conditions.differences import differing
from measurement.distances import (
    ARITHMETICS,
)
from measurement.errors import PlanError
from measurement.files import read_text
from measurement.plans.plan import Plan
from measurement.plans.sections import SCRIPT, Arm, Measurement
from measurement.rank_agreement import (
    describe_rank_difference,
    named,
)
from measurement.records import Written
from measurement.records.record import LaunchRecord, ScriptReport
from measurement.records.results import write_result
from reports.parts_schema import Equality, GradientEquality
from reports.scripts.first_steps import (
    NEAR,
    Judgement,
    batches_sentence,
    farthest_launch,
    judge_launch,
)
from reports.scripts.losses import compare_losses, loss_unit
from reports.scripts.script_arms import ScriptArm

MIN_FACTOR = 0.01
"""Gradients whose sizes differ by less are not reported as a factor."""
MAX_TENSORS = 5
"""Where more differ, they are not named in the sentence."""
GOLDEN = "golden"
"""The name of the stored arm in sentences."""
HOLDS_FOR = ("version.", "device", "gpu", "world_size", "threads.torch")
"""How settings begin for which a stored result holds: another one computes otherwise, or in another
order."""


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
    others = [arm for arm in plan.compared_arms() if arm != plan.baseline]
    beside = {
        arm: [
            (script, scripts[launch, plan.baseline])
            for (launch, name), script in sorted(scripts.items(), key=itemgetter(0))
            if name == arm and (launch, plan.baseline) in scripts
        ]
        for arm in others
    }
    farthest = {arm: farthest_launch(pairs) for arm, pairs in beside.items()}
    control = farthest.get(plan.control_name) if plan.measurement.control else None
    judged = {
        arm: judge_launch(launch, None if arm == plan.control_name else control)
        for arm, launch in farthest.items()
    }
    in_other_passes = [
        arm
        for arm, pairs in beside.items()
        if any(ours.passes != theirs.passes for ours, theirs in pairs[:1])
    ]
    curves = compare_losses(plan, losses or {}, in_other_passes=in_other_passes)
    batches = {
        arm: sentence for arm, pairs in beside.items() if (sentence := batches_sentence(pairs))
    }
    candidates = {
        arm: judgement for arm, judgement in judged.items() if plan.role(arm) == "candidate"
    }
    is_repeatable = control is None or control.start.verdict != "another start"
    clauses = [
        clause(
            arm,
            candidates[arm],
            plan,
            has_other_batches="other batches" in batches.get(arm, ""),
            hint=rounding_hint(candidates[arm], *beside[arm][0], has_control=control is not None),
            is_repeatable=is_repeatable,
        )
        for arm in candidates
        if beside[arm]
    ]
    clauses += [batches[arm] for arm in candidates if arm in batches and plan.scripts.same_data]
    by_rank = {
        record.arm: sentence for record in records if (sentence := describe_rank_difference(record))
    }
    first_steps = [judgement.first_step for judgement in candidates.values()]
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
        first_difference_step=min((step for step in first_steps if step is not None), default=None),
        sentence=". ".join(clauses) or f"{plan.baseline} has nothing to be compared with",
    )


def rounding_hint(judgement: Judgement, *arms: ScriptArm, has_control: bool) -> str:
    """Whether later steps may have amplified rounding, after a semicolon.

    ``has_control``: whether the baseline's command ran once more, which shows how far rounding
    grows: with its own threads, and its own compression.
    """
    if (
        judgement.gradients.verdict not in NEAR
        or (judgement.parameters.first_difference_step or 0) < 2
    ):
        return ""
    if not has_control:
        return "; how far rounding grows is not known without a control"
    threads = {str(arm.fields.get("threads.torch")) for arm in arms}
    # compression of one alone is a cause of its own
    if len(threads) > 1 or all(arm.compression for arm in arms):
        return (
            "; it may be rounding that later steps amplify: look again with equal threads and"
            " without compression"
        )
    return ""


def clause(
    arm: str,
    judgement: Judgement,
    plan: Plan,
    *,
    has_other_batches: bool,
    hint: str,
    is_repeatable: bool,
) -> str:
    """The clause on one candidate, without a full stop.

    ``hint``: ``rounding_hint``. ``is_repeatable``: whether the control started as the baseline.
    """
    start, parameters, baseline = judgement.start, judgement.parameters, plan.baseline
    precision = judgement.precision
    if start.verdict == "not compared":
        return (
            f"Whether {arm} trains like {baseline} is not known: there are no parameters that"
            " both have whole"
        )
    if start.verdict == "another start":
        lead = f"{arm} has another start than {baseline}"
        if not is_repeatable:
            return (
                f"{lead}, but so has {baseline} each time: it is not repeatable; set a seed, or use"
                " --same-start"
            )
        remedy = "" if plan.scripts.same_start else "; --same-start compares what follows"
        return f"{lead} ({named(start.names)}){judgement.how or remedy}"
    unmatched = [*start.only_here, *start.missing_here]
    besides = judgement.how + (f"; without a counterpart: {named(unmatched)}" if unmatched else "")
    if "apart" in (judgement.gradients.verdict, parameters.verdict):
        data = "; their batches differ, too" if has_other_batches else ""
        return f"{arm} starts equal to {baseline}{_apart_words(judgement)}{data}{hint}{besides}"
    if parameters.verdict == "not compared":
        why = (
            f"{baseline} itself steps otherwise each time"
            if parameters.distances
            else "its parameters after the first steps are not known"
        )
        return f"{arm} starts equal to {baseline}, but {why}{besides}"
    judged = parameters.judged_steps
    first = f"the first {'step' if judged == 1 else f'{judged} steps'}"
    farthest = max(parameters.distances[:judged])
    rounding = "" if parameters.verdict == "equal" else f" up to {precision} rounding"
    like = (
        f"no farther apart over {first} ({_percent(farthest)} of what they changed) than rounding"
        " takes the control"
        if farthest > ARITHMETICS[precision].stepped
        else f"equal{rounding} over {first}"
    )
    unjudged = "; after that, rounding grows too far to judge"
    return (
        f"{arm} trains like {baseline}: equal start, and {like}"
        f"{unjudged if judged < len(parameters.distances) else ''}{besides}"
    )


def _apart_words(judgement: Judgement) -> str:
    """From which step on, by how much, and what the gradients say of it."""
    gradients, parameters = judgement.gradients, judgement.parameters
    if parameters.verdict != "apart":
        agree = "" if parameters.verdict == "not compared" else "; the parameters agree"
        return f", but gradients of the first step are apart{_gradient_words(gradients)}{agree}"
    assert parameters.first_difference_step is not None
    by = _percent(parameters.distances[parameters.first_difference_step - 1])
    where = f" ({named(parameters.names)})" if 0 < len(parameters.names) <= MAX_TENSORS else ""
    words = (
        f", then is apart from step {parameters.first_difference_step} on by {by} of what the steps"
        f" changed{where}"
    )
    if gradients.verdict == "apart":
        return f"{words}; its gradients differ{_gradient_words(gradients)}"
    return f"{words}; its first gradients agree" if gradients.verdict != "not compared" else words


def _percent(distance: float) -> str:
    return f"{float(f'{100 * distance:.2g}'):g}%"


def _gradient_words(gradients: GradientEquality) -> str:
    if gradients.factor is not None and abs(gradients.factor - 1) > MIN_FACTOR:
        return f" by a factor of {gradients.factor:.3g}"
    return f" ({named(gradients.names)})" if 0 < len(gradients.names) <= MAX_TENSORS else ""


class Golden(Written):
    """The first steps of a command, and of its control."""

    command: str
    scripts: list[ScriptReport]
    """By rank."""
    control: tuple[ScriptReport, ...] = ()
    """Those of the same command once more; empty where there was none."""


def write_golden(file: Path, plan: Plan, records: Sequence[LaunchRecord]) -> None:
    """Store the first steps of the baseline; raises a ``PlanError`` where there are none."""
    baseline, control = (_first(records, arm) for arm in (plan.baseline, plan.control_name))
    if baseline is None:
        raise PlanError(f"no golden result: {plan.baseline} took no step that could be read")
    golden = Golden(
        command=str(plan.arms[plan.baseline].command),
        scripts=baseline.scripts,
        control=tuple(control.scripts if control else ()),
    )
    write_result(file, golden.model_dump_json(exclude_defaults=True))


def _first(records: Sequence[LaunchRecord], arm: str) -> LaunchRecord | None:
    return next((record for record in records if record.arm == arm and record.scripts), None)


def read_golden(file: Path) -> Golden:
    """Read one; raises a ``PlanError`` for anything else."""
    try:
        return Golden.model_validate_json(read_text(file))
    except (OSError, ValueError) as error:
        raise PlanError(
            f"'{file}' is no golden result; write one by 'ringside ab COMMAND --write-golden FILE'"
        ) from error


def compare_to_golden(
    golden: Golden, records: Sequence[LaunchRecord], arm: str
) -> tuple[Equality, list[str]]:
    """Whether an arm trains as the stored run, and in what they differ for which the stored one
    holds, a phrase each.
    """
    measured = _first(records, arm)
    if measured is None:
        sentence = f"{arm} took no step that could be read"
        return Equality(loss_margin=0.0, unequal=[arm], sentence=sentence), []
    command = Arm(command=golden.command)
    plan = Plan(
        name=GOLDEN,
        baseline=GOLDEN,
        arms={GOLDEN: command, arm: command},
        measurement=Measurement(control=bool(golden.control), floor=False, local_every=0),
        world_size=measured.world_size,
        workload=SCRIPT,
    )
    by_arm = {
        GOLDEN: golden.scripts,
        plan.control_name: golden.control,
        arm: measured.scripts,
    }
    compared = [
        measured.model_copy(update={"arm": name, "role": plan.role(name), "scripts": scripts})
        for name, scripts in by_arm.items()
        if scripts
    ]
    both = {"then": golden.scripts[0].configuration, "now": measured.scripts[0].configuration}
    changes = [
        f"{field} was {values['then']}, and is {values['now']}"
        for field, values in sorted(differing(both).items())
        if field.startswith(HOLDS_FOR)
    ]
    return judge_equality(plan, compared), changes
