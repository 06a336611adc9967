"""The judgement on whether an arm trains like the baseline, and its words."""

from __future__ import annotations

from dataclasses import dataclass, field

from measurement.distances import ARITHMETICS
from measurement.plans.plan import Plan
from measurement.rank_agreement import named
from reports.parts_schema import GradientEquality, ParameterEquality, StartEquality
from reports.scripts.script_arms import ScriptArm

NEAR = ("equal", "equal up to rounding")
NOT_REPEATABLE = 0.3
"""Where the control is that far off, times ``TIMES_CONTROL``, nothing can be concluded."""
MIN_FACTOR = 0.01
"""Gradients whose sizes differ by less are not reported as a factor."""
MAX_TENSORS = 5
"""Where more differ, they are not named in the sentence."""


@dataclass(kw_only=True)
class Judgement:
    """The judgement on one arm."""

    start: StartEquality = field(default_factory=StartEquality)
    gradients: GradientEquality = field(default_factory=GradientEquality)
    parameters: ParameterEquality = field(default_factory=ParameterEquality)
    how: str = ""

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
    precision: str,
    has_other_batches: bool,
    hint: str,
    is_repeatable: bool,
) -> str:
    """The clause on one candidate, without a full stop.

    ``hint``: ``rounding_hint``. ``is_repeatable``: whether the control started as the baseline.
    """
    start, parameters, baseline = judgement.start, judgement.parameters, plan.baseline
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
