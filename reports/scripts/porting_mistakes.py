"""Common porting mistakes, each detected from the settings and first steps of two scripts, in
words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from measurement.conditions import Severity
from measurement.conditions.differences import Difference, is_by_rank, shown
from measurement.distances import gradient_factor
from measurement.rank_agreement import named
from reports.scripts.first_steps import first_gradients, matched
from reports.scripts.script_arms import SEEN, ScriptArm

WHOLE = ("SequentialSampler", "RandomSampler")
"""Samplers that draw from all of the data that a loader has."""
NEAR = 0.02
"""A factor within this share of a number is that number."""
HALF = ("float16", "bfloat16")


class PortingMistake(Difference):
    """A likely mistake behind a difference between two arms."""

    severity: Severity = "mistake"
    covers: Sequence[str] = ()
    """How settings begin that differ for this reason."""


Mistakes = Iterator[PortingMistake]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A candidate and the baseline."""

    candidate: ScriptArm
    baseline: ScriptArm

    def each(self, read: Callable[[ScriptArm], Any]) -> dict[str, Any]:
        """What is read of both arms, by arm."""
        return {arm.name: read(arm) for arm in (self.baseline, self.candidate)}

    def values(self, field: str) -> dict[str, Any]:
        """Both arms' value of a setting."""
        return self.each(lambda arm: arm.fields.get(field))

    def numbers(self, factor: float) -> list[str]:
        """What a factor is the number of, or its inverse: of ranks, of the passes in a step."""
        arms = (self.candidate, self.baseline)
        numbers: dict[str, set[float | None]] = {
            "ranks": {float(arm.ranks) for arm in arms},
            "passes in a step": {arm.passes for arm in arms},
        }
        return [
            name
            for name, values in numbers.items()
            if any(
                _near(factor, value) or _near(factor, 1 / value)
                for value in values
                if value and value > 1
            )
        ]

    def differing(
        self, is_so: Callable[[ScriptArm], bool | None]
    ) -> list[tuple[ScriptArm, ScriptArm]]:
        """The arm for which something is so, and the other; none unless it is so for one and not
        for the other.
        """
        ours, theirs = is_so(self.candidate), is_so(self.baseline)
        if ours is None or theirs is None or ours == theirs:
            return []
        return [self.ordered(candidate_first=ours)]

    def ordered(self, *, candidate_first: bool) -> tuple[ScriptArm, ScriptArm]:
        """Both arms, the one that a sentence is about first."""
        both = (self.candidate, self.baseline)
        return both if candidate_first else (self.baseline, self.candidate)

    @cached_property
    def gradient_factor(self) -> float | None:
        """How many times as large the candidate's first gradients are, where they are the same up
        to this factor.
        """
        theirs = self.baseline.first
        mine, its = first_gradients(matched(self.candidate.first, theirs)[0], theirs)
        return gradient_factor(mine, its) if mine.names else None

    @property
    def has_same_gradients(self) -> bool:
        """Whether the first gradients are shown to be of one size and direction."""
        return self.gradient_factor is not None and _near(self.gradient_factor, 1.0)

    @property
    def rates(self) -> list[str]:
        """How settings are called that are learning rates."""
        names = {**self.baseline.fields, **self.candidate.fields}
        return [name for name in names if name.startswith("optimizer.") and name.endswith("lr")]


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= NEAR * wanted


CAUSES = {
    "optimizer.loaded": "its optimizer began with a state that not all of them had",
    "ddp.is_passed_by": "its forward passes are those of model.module, which DDP does not see",
    "step.clipping": "it clips gradients before they are exchanged, on each rank by its own",
}
"""Why ranks may differ, by a setting that is then on, differs between ranks, or comes before the
exchange."""


def _ranks_apart(pair: Pair) -> Mistakes:
    sentences = pair.each(lambda arm: arm.agreement and arm.agreement.sentence(arm.name))
    for arm, other in pair.differing(lambda arm: bool(sentences[arm.name])):
        seen = {name: arm.fields.get(name) for name in CAUSES}
        why = "".join(
            f": {CAUSES[name]}"
            for name, value in seen.items()
            if is_by_rank(value) or value is True or str(value).startswith("before")
        )
        has_gradients = arm.agreement is not None and arm.agreement.gradients
        yield PortingMistake(
            field="gradients.by_rank" if has_gradients else "parameters.by_rank",
            sentence=f"{sentences[arm.name]}{why}",
            values={arm.name: "apart", other.name: other.agreement and "alike"},
        )


def _summed(pair: Pair) -> Mistakes:
    factor = pair.gradient_factor
    clippings = {shown(value) for value in pair.values("step.clipping").values()}
    # gradients are those of a step, after they are clipped
    if not factor or pair.has_same_gradients or len(clippings) > 1:
        return
    arm, other = pair.ordered(candidate_first=factor > 1)
    numbers = " or of ".join(pair.numbers(factor))
    why = f", the number of {numbers}: {arm.name} sums where {other.name} averages"
    yield PortingMistake(
        field="gradients.scale",
        sentence=(
            f"gradients of {arm.name} are {max(factor, 1 / factor):.3g} times as large as those of"
            f" {other.name}{why if numbers else ''}"
        ),
        values={pair.baseline.name: 1.0, pair.candidate.name: factor},
    )


def _not_zeroed(pair: Pair) -> Mistakes:
    field = "optimizer.keeps_gradients"
    for arm, other in pair.differing(lambda arm: arm.fields.get(field)):
        how = "never zeroes its gradients: each step adds to those of the steps before"
        yield PortingMistake(
            field=field,
            sentence=f"{arm.name} {how}; {other.name} has zero_grad()",
            values=pair.values(field),
        )


def _not_optimized(pair: Pair) -> Mistakes:
    """Parameters that get a gradient and that no optimizer has."""
    left = pair.each(
        lambda arm: list(
            dict.fromkeys(name for report in arm.reports for name in report.without_optimizer)
        )
    )
    for arm, _ in pair.differing(lambda arm: bool(left[arm.name])):
        why = "its optimizer was made before the model was moved or replaced, or lacks them"
        yield PortingMistake(
            field="optimizer.left_out",
            sentence=f"no step of {arm.name} changes {named(left[arm.name])}: {why}",
            values={
                name: f"without {named(names)}" if names else "all parameters"
                for name, names in left.items()
            },
            covers=["optimizer.0.parameters"],
        )


def _zeros_for_none(pair: Pair) -> Mistakes:
    """Horovod exchanges zeros for a parameter that no pass used, so that an optimizer steps it; DDP
    leaves it alone.
    """
    for is_candidate in (False, True):
        arm, other = pair.ordered(candidate_first=is_candidate)
        ours, theirs = arm.first, other.first
        if not ours.steps or not theirs.steps:
            return
        unused = theirs.started.keys() - theirs.steps[0].gradients.keys()
        moved = [
            name
            for name, gradient in ours.steps[0].gradients.items()
            if not any(gradient)
            and name in unused
            and ours.steps[-1].parameters.get(name) != ours.started.get(name)
        ]
        if moved:
            yield PortingMistake(
                field="gradients.zeros",
                sentence=(
                    f"{arm.name} has zeros as gradients of {named(moved)}, {other.name} none:"
                    f" weight decay moves them in {arm.name} alone"
                ),
                values={arm.name: "zeros", other.name: None},
                severity="training",
            )


def _stepped_empty(pair: Pair) -> Mistakes:
    """Horovod's ``broadcast_optimizer_state`` has a new optimizer make its state by a step in which
    all gradients are zero.
    """
    field = "optimizer.empty_steps"
    for arm, other in pair.differing(lambda arm: bool(arm.number(field))):
        if any(
            value and name.endswith((".weight_decay", ".betas"))
            for name, value in arm.fields.items()
        ):
            yield PortingMistake(
                field=field,
                sentence=(
                    f"{arm.name} takes a step without gradients before the first (Horovod's"
                    " broadcast_optimizer_state): weight decay acts in it, and Adam counts it;"
                    f" {other.name} takes none"
                ),
                values=pair.values(field),
                covers=["optimizer.loaded"],
                severity="training",
            )


def _global_batch(pair: Pair) -> Mistakes:
    ours, theirs = pair.candidate.samples, pair.baseline.samples
    if not ours or not theirs or "ranks" not in pair.numbers(ours / theirs):
        return
    big, small = pair.ordered(candidate_first=ours > theirs)
    yield PortingMistake(
        field="rank_local_batch",
        sentence=(
            f"each rank of {big.name} takes {big.samples} samples, of {small.name}"
            f" {small.samples}, a factor of the number of ranks: one batch is global"
        ),
        values={pair.baseline.name: theirs, pair.candidate.name: ours},
        covers=["loader.batch_size", "loader.length", "epoch.steps"],
        changes_work=True,
    )


def _is_sharded_by_sampler(arm: ScriptArm) -> bool | None:
    """Whether a sampler gives each rank a share of the data; None where that is not known, as of a
    stream or another sampler.
    """
    if arm.ranks < 2 or SEEN not in arm.fields:
        return None
    if arm.fields.get("sampler.replicas") == arm.ranks and is_by_rank(
        arm.fields.get("sampler.rank")
    ):
        return True
    return False if arm.fields.get("sampler.class") in WHOLE else None


def _same_data(pair: Pair) -> Mistakes:
    covers = ["sampler.", "loader.length", "epoch.steps", "loader.class"]
    lengths = set(
        pair.each(lambda arm: arm.number("loader.length") or arm.number("epoch.steps")).values()
    )
    changes_work = len(lengths - {None}) > 1
    shared = pair.differing(lambda arm: arm.shares_batches)
    for arm, other in shared:
        sampler = ", ".join(
            f"{name} {shown(arm.fields.get(name))}"
            for name in ("sampler.class", "sampler.replicas", "sampler.rank")
        )
        yield PortingMistake(
            field="batches.by_rank",
            sentence=(
                f"every rank of {arm.name} reads the same batches ({sampler}); those of"
                f" {other.name} read different ones"
            ),
            values={arm.name: "the same on all ranks", other.name: "different by rank"},
            covers=covers,
            changes_work=changes_work,
        )
    samples = set(pair.each(lambda arm: arm.number("loader.samples")).values())
    if shared or not changes_work or len(samples - {None}) != 1:
        return
    for other, arm in pair.differing(_is_sharded_by_sampler):
        yield PortingMistake(
            field="sampler.class",
            sentence=(
                f"no sampler shares out the data of {arm.name} among its ranks: each reads all of"
                f" it; {other.name} has one"
            ),
            values=pair.values("sampler.class"),
            covers=covers,
            changes_work=True,
        )


def _scaled_rate(pair: Pair) -> Mistakes:
    field = "optimizer.0.0.lr"
    ours, theirs = (
        arm.learning_rates[0] if arm.learning_rates else arm.number(field)
        for arm in (pair.candidate, pair.baseline)
    )
    if not ours or not theirs or "ranks" not in (numbers := pair.numbers(ours / theirs)):
        return
    arm, other = pair.ordered(candidate_first=ours > theirs)
    factor = f"{max(ours / theirs, theirs / ours):.3g}"
    yield PortingMistake(
        field=field,
        sentence=(
            f"the learning rate of {arm.name} is {factor} times that of {other.name}"
            f" ({max(ours, theirs):.4g} and {min(ours, theirs):.4g}), the number of"
            f" {' or of '.join(numbers)}: {arm.name} may scale it once more"
        ),
        values={pair.baseline.name: theirs, pair.candidate.name: ours},
        covers=[*pair.rates, "schedule.lr"],
    )


def _counts_steps(arm: ScriptArm) -> bool | None:
    """Whether its schedule was stepped with every compared step, and not once; None where that is
    not known or neither.
    """
    stepped, steps = arm.number("schedule.steps"), len(arm.first.steps)
    if stepped is None or steps < 3:
        return None
    return True if stepped >= steps - 1 else False if stepped == 0 else None


def _schedule(pair: Pair) -> Mistakes:
    moving = pair.differing(
        lambda arm: len(set(arm.learning_rates)) > 1 if len(arm.learning_rates) > 1 else None
    )
    for arm, other in moving or pair.differing(_counts_steps):
        schedules = " and ".join(map(_scheduled, (arm, other)))
        yield PortingMistake(
            field="schedule.lr",
            sentence=f"the learning rate of the first {len(arm.first.steps)} steps: {schedules}",
            values=pair.each(lambda script: script.learning_rates),
            covers=["schedule.", *pair.rates],
        )


def _scheduled(arm: ScriptArm) -> str:
    """Such as ``0.1 to 0.06 in old (LambdaLR, stepped 5 times)``."""
    rates, stepped = arm.learning_rates, arm.number("schedule.steps")
    ends = dict.fromkeys(f"{rate:.4g}" for rate in (*rates[:1], *rates[-1:]))
    schedule = arm.fields.get("schedule.class") or "no schedule"
    how = "" if stepped is None else f", stepped {stepped:g} times"
    return f"{' to '.join(ends) or 'unknown'} in {arm.name} ({schedule}{how})"


def _compressed(pair: Pair) -> Mistakes:
    ours, theirs = pair.candidate.compression, pair.baseline.compression
    if ours == theirs:
        return
    arm, other = pair.ordered(candidate_first=ours is not None)
    covers = ["horovod.compression", "ddp.comm_hook"]
    field = covers[0] if covers[0] in arm.fields else covers[1]
    is_harmless = pair.has_same_gradients and ours not in HALF and theirs not in HALF
    yield PortingMistake(
        field=field,
        sentence=(
            f"{arm.name} exchanges gradients in {arm.compression} ({field}), {other.name} in"
            f" {other.compression or 'their own type'}"
        ),
        values={pair.baseline.name: theirs, pair.candidate.name: ours},
        covers=covers,
        severity="speed" if is_harmless else "mistake",
    )


def _seeds(pair: Pair) -> Mistakes:
    for arm, other in pair.differing(lambda arm: arm.seeds_alike):
        yield PortingMistake(
            field="seed.torch",
            sentence=(
                f"seeds are alike on all ranks of {arm.name} and differ on those of {other.name}:"
                f" dropout and augmentation draw alike on all ranks of {arm.name}"
            ),
            values=pair.values("seed.torch"),
        )


def _buffers(pair: Pair) -> Mistakes:
    field, of_horovod = "ddp.broadcast_buffers", "horovod" in pair.values("library").values()
    if any(arm.number("model.buffers") != 0 for arm in (pair.candidate, pair.baseline)):
        # Horovod has no such setting
        for _, arm in pair.differing(lambda arm: arm.fields.get(field)):
            kept = "each rank keeps its own, such as statistics of batch norm"
            yield PortingMistake(
                field=field,
                sentence=f"{arm.name} does not broadcast buffers ({field}): {kept}",
                values=pair.values(field),
            )
            return

    def are_apart(arm: ScriptArm) -> bool | None:
        if of_horovod and arm.fields.get(field):
            return False  # whatever they are behind a forward pass, the next begins with rank 0's
        return None if arm.agreement is None else bool(arm.agreement.buffers)

    for arm, other in pair.differing(are_apart):
        comes_with_it = of_horovod and other.fields.get("library") == "ddp"
        apart = named(arm.agreement.buffers if arm.agreement else [])
        how = "gets rank 0's before each forward pass" if comes_with_it else "has like ones"
        yield PortingMistake(
            field="buffers.by_rank",
            sentence=f"buffers differ between ranks of {arm.name} ({apart}); {other.name} {how}",
            values={arm.name: "apart", other.name: "alike"},
            severity="training",
            allowed=comes_with_it,
            is_default=comes_with_it,
        )


FINDERS: tuple[Callable[[Pair], Mistakes], ...] = (
    _ranks_apart,
    _summed,
    _not_zeroed,
    _not_optimized,
    _zeros_for_none,
    _stepped_empty,
    _global_batch,
    _same_data,
    _scaled_rate,
    _schedule,
    _compressed,
    _seeds,
    _buffers,
)
"""Each detects one mistake in a pair of arms; the most harmful first."""
