"""Common porting mistakes, each detected from the settings and first steps of two scripts, in
words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from measurement.conditions.conditions import Severity
from measurement.conditions.differences import Difference, is_by_rank, shown
from measurement.judging.distances import ARITHMETICS, Sketches, gradient_factor
from measurement.judging.ranks import BUFFER, named
from reports.scripts.equality import arithmetic, first_gradients
from reports.scripts.script_arms import SEEN, ScriptArm, matched

WHOLE = ("SequentialSampler", "RandomSampler")
"""Samplers that draw from all of the data that a loader has."""
NEAR = 0.02
"""A factor within this share of a number is that number."""


class PortingMistake(Difference):
    """A likely mistake behind a difference between two arms."""

    severity: Severity = "mistake"
    covers: Sequence[str] = ()
    """How settings begin that differ for this reason."""


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

    def is_ranks(self, factor: float | None) -> bool:
        """Whether two numbers differ by as much as there are ranks."""
        wanted = [float(arm.ranks) for arm in (self.candidate, self.baseline) if arm.ranks > 1]
        return factor is not None and any(
            _near(factor, ranks) or _near(factor, 1 / ranks) for ranks in wanted
        )

    def reasons(self, factor: float, *, by_ranks: str, by_passes: str) -> str:
        """The numbers that a factor may be, with what each would mean: that of the ranks, and that
        of the passes in a step; empty without any.
        """
        size = max(factor, 1 / factor) if factor else 0.0
        passes = [arm.number("accumulation") or 1 for arm in (self.candidate, self.baseline)]
        numbers = [
            *[f"the number of ranks: {by_ranks}"] * self.is_ranks(factor),
            *[f"the number of passes in a step{by_passes}"]
            * any(number > 1 and _near(size, number) for number in passes),
        ]
        return ", or ".join(numbers)

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
        mine, its = first_gradients(
            matched(self.candidate.first, self.baseline.first)[0], self.baseline.first
        )
        return gradient_factor(mine, its) if mine.names else None

    @property
    def has_same_gradients(self) -> bool:
        """Whether the first gradients are shown to be of one size and direction."""
        return self.gradient_factor is not None and _near(self.gradient_factor, 1.0)


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= NEAR * wanted


CAUSES = {
    "optimizer.loaded": "its optimizer began with a state that not all of them had",
    "ddp.is_passed_by": "its forward passes are those of model.module, which DDP does not see",
    "step.clipping": "it clips gradients before they are exchanged, on each rank by its own",
}
"""Why ranks may differ, by a setting that is then on, differs between ranks, or comes before the
exchange."""


def _ranks_apart(pair: Pair) -> Iterator[PortingMistake]:
    agreements = {
        arm.name: arm.agreement
        for arm in (pair.baseline, pair.candidate)
        if arm.agreement is not None
    }
    sentences = {name: agreement.sentence(name) for name, agreement in agreements.items()}
    for arm, _ in pair.differing(lambda arm: bool(sentences.get(arm.name))):
        field = "gradients.by_rank" if agreements[arm.name].gradients else "parameters.by_rank"
        values = {name: "apart" if words else "alike" for name, words in sentences.items()}
        seen = {name: arm.fields.get(name) for name in CAUSES}
        settings = [
            name
            for name, value in seen.items()
            if is_by_rank(value) or value is True or str(value).startswith("before")
        ]
        why = "".join(f": {CAUSES[name]}" for name in settings)
        yield PortingMistake(field=field, sentence=f"{sentences[arm.name]}{why}", values=values)


def _summed(pair: Pair) -> Iterator[PortingMistake]:
    factor = pair.gradient_factor
    if pair.has_same_gradients:
        return  # however each comes to them
    for arm, other in pair.differing(
        lambda arm: "sum" in str(arm.fields.get("horovod.op", "")).lower().replace("adasum", "")
    ):
        sentence = (
            f"{arm.name} sums gradients over its ranks (horovod.op Sum) where {other.name} averages"
            " them"
        )
        yield PortingMistake(
            field="horovod.op",
            sentence=f"{sentence}: {arm.ranks} times as large",
            values=pair.values("horovod.op"),
        )
        return
    if factor is None or len({shown(value) for value in pair.values("step.clipping").values()}) > 1:
        return  # gradients are those of a step, after they are clipped
    size = factor if factor > 1 else 1 / factor if factor else 0.0
    arm, other = pair.ordered(candidate_first=factor > 1)
    why = pair.reasons(
        factor,
        by_ranks="it sums where the other averages",
        by_passes=", by which a loss is divided",
    )
    sentence = (
        f"gradients of {arm.name} are {size:.3g} times as large as those of {other.name}"
        f"{', ' * bool(why)}{why}"
    )
    yield PortingMistake(
        field="gradients.scale",
        sentence=sentence,
        values={pair.baseline.name: 1.0, pair.candidate.name: factor},
    )


def _not_zeroed(pair: Pair) -> Iterator[PortingMistake]:
    field = "optimizer.keeps_gradients"
    for arm, other in pair.differing(lambda arm: arm.fields.get(field)):
        how = "never zeroes its gradients: each step adds to those of the steps before"
        yield PortingMistake(
            field=field,
            sentence=f"{arm.name} {how}; {other.name} has zero_grad()",
            values=pair.values(field),
        )


def _without_optimizer(arm: ScriptArm) -> list[str]:
    """Parameters that get a gradient and that no optimizer has."""
    return list(dict.fromkeys(name for report in arm.reports for name in report.without_optimizer))


def _unmoved(arm: ScriptArm) -> list[str]:
    """Parameters that get a gradient, that an optimizer has, and that no step changes."""
    steps = arm.first.steps
    if not steps or not any(rate for step in steps for rate in step.learning_rates):
        return []
    negligible = Sketches.of(steps[0].gradients).negligible(
        arm.first.sizes, ARITHMETICS[arithmetic(arm.first.configuration)]
    )
    return [
        name
        for name, started in arm.first.started.items()
        if not name.startswith(BUFFER)
        and name in steps[0].gradients
        and name not in negligible
        and (ends := [step.parameters[name] for step in steps if name in step.parameters])
        and all(end == started for end in ends)
    ]


def _not_optimized(pair: Pair) -> Iterator[PortingMistake]:
    left = pair.each(_without_optimizer)
    for arm, _ in pair.differing(lambda arm: bool(left[arm.name])):
        why = "its optimizer was made before the model was moved or replaced, or lacks them"
        sentence = f"no step of {arm.name} changes {named(left[arm.name])}: {why}"
        values = {
            name: f"without {named(names)}" if names else "all parameters"
            for name, names in left.items()
        }
        yield PortingMistake(
            field="optimizer.left_out",
            sentence=sentence,
            values=values,
            covers=["optimizer.0.parameters"],
        )
    stay = pair.each(_unmoved)
    for arm, _ in pair.differing(lambda arm: bool(stay[arm.name])):
        sentence = (
            f"the first {len(arm.first.steps)} steps of {arm.name} leave {named(stay[arm.name])} as"
            " before; its optimizer has it"
        )
        yield PortingMistake(
            field="parameters.unmoved",
            sentence=sentence,
            values={name: named(names) or None for name, names in stay.items()},
            severity="training",
        )


def _zeros_for_none(pair: Pair) -> Iterator[PortingMistake]:
    """Horovod exchanges zeros for a parameter that no pass used, so that an optimizer steps it; DDP
    leaves it alone.
    """
    for arm, other in ((pair.baseline, pair.candidate), (pair.candidate, pair.baseline)):
        if not arm.first.steps or not other.first.steps:
            return
        gradients, started, ended = (
            other.first.steps[0].gradients,
            arm.first.started,
            arm.first.steps[-1].parameters,
        )
        zeros = [
            name
            for name, gradient in arm.first.steps[0].gradients.items()
            if not any(gradient) and name not in gradients
        ]
        if moved := [
            name
            for name in zeros
            if name in other.first.started and ended.get(name) != started.get(name)
        ]:
            sentence = (
                f"{arm.name} has zeros as gradients of {named(moved)}, {other.name} none: weight"
                " decay moves them"
            )
            values = {arm.name: "zeros", other.name: None}
            yield PortingMistake(
                field="gradients.zeros",
                sentence=f"{sentence} in {arm.name} alone",
                values=values,
                severity="training",
            )


def _stepped_empty(pair: Pair) -> Iterator[PortingMistake]:
    """Horovod's ``broadcast_optimizer_state`` has a new optimizer make its state by a step in which
    all gradients are zero.
    """
    field = "optimizer.empty_steps"
    for arm, other in pair.differing(lambda arm: bool(arm.number(field))):
        settings = {
            name.rpartition(".")[2]
            for name, value in arm.fields.items()
            if name.startswith("optimizer.") and value
        }
        does = {
            "weight_decay": "weight decay moves parameters",
            "betas": "Adam's bias correction counts it",
        }
        if effects := [words for name, words in does.items() if name in settings]:
            sentence = (
                f"{arm.name} takes a step without gradients before the first (Horovod's"
                f" broadcast_optimizer_state): {' and '.join(effects)}; {other.name} takes none"
            )
            values, covers = pair.values(field), ["optimizer.loaded"]
            yield PortingMistake(
                field=field, sentence=sentence, values=values, covers=covers, severity="training"
            )


def _global_batch(pair: Pair) -> Iterator[PortingMistake]:
    fields: Sequence[str] = ("loader.batch_size", "rank_local_batch", "samples")
    if pair.candidate.number("accumulation") != pair.baseline.number("accumulation"):
        fields = ("samples",)  # one of them makes up its step of several batches
    for field in fields:
        ours, theirs = (
            arm.samples if field == "samples" else arm.number(field)
            for arm in (pair.candidate, pair.baseline)
        )
        if ours and theirs and ours != theirs:
            break
    else:
        return
    if not pair.is_ranks(ours / theirs):
        return
    big, small = pair.ordered(candidate_first=ours > theirs)
    most, least = max(ours, theirs), min(ours, theirs)
    sentence = (
        f"each rank of {big.name} takes {most:g} samples, of {small.name} {least:g}, a factor of"
        f" {most / least:g}, the number of ranks: one batch is global"
    )
    values = {pair.baseline.name: int(theirs), pair.candidate.name: int(ours)}
    covers = ["loader.batch_size", "rank_local_batch", "loader.length", "epoch.steps"]
    yield PortingMistake(
        field=field, sentence=sentence, values=values, covers=covers, changes_work=True
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


def _same_data(pair: Pair) -> Iterator[PortingMistake]:
    covers = ["sampler.", "loader.length", "epoch.steps", "loader.class"]
    shared, sampled = (
        pair.differing(lambda arm: arm.shares_batches),
        pair.differing(_is_sharded_by_sampler),
    )
    lengths = [
        length
        for arm in (pair.candidate, pair.baseline)
        if (length := arm.number("loader.length", "epoch.steps"))
    ]
    changes_work = len(set(lengths)) > 1
    for arm, other in shared:
        replicas, why = arm.fields.get("sampler.replicas"), ""
        if replicas is not None:
            why = (
                f" (sampler.replicas {shown(replicas)}, sampler.rank"
                f" {shown(arm.fields.get('sampler.rank'))})"
            )
        elif sampled and sampled[0][0] is other:
            why = ", since it has no distributed sampler"
        sentence = (
            f"every rank of {arm.name} reads the same batches{why}; those of {other.name} read"
            " different ones"
        )
        values = {arm.name: "the same on all ranks", other.name: "different by rank"}
        yield PortingMistake(
            field="batches.by_rank",
            sentence=sentence,
            values=values,
            covers=covers,
            changes_work=changes_work,
        )
    has_all = len(set(pair.each(lambda arm: arm.number("loader.samples")).values()) - {None}) == 1
    for other, arm in sampled if not shared and changes_work and has_all else []:
        sentence = (
            f"no sampler shares out the data of {arm.name} among its ranks: each reads all of it;"
            f" {other.name} has one"
        )
        values = pair.values("sampler.class")
        yield PortingMistake(
            field="sampler.class",
            sentence=sentence,
            values=values,
            covers=covers,
            changes_work=changes_work,
        )


def _scaled_rate(pair: Pair) -> Iterator[PortingMistake]:
    field = next(
        (
            name
            for name in pair.baseline.fields
            if name.startswith("optimizer.0.") and name.endswith(".lr")
        ),
        "optimizer.0.0.lr",
    )
    ours, theirs = (
        arm.learning_rates[0] if arm.learning_rates else arm.number(field)
        for arm in (pair.candidate, pair.baseline)
    )
    if not ours or not theirs:
        return
    arm, other = pair.ordered(candidate_first=ours > theirs)
    factor = max(ours, theirs) / min(ours, theirs)
    if pair.is_ranks(factor):
        why = pair.reasons(
            factor,
            by_ranks=f"{arm.name} scales it once more than {other.name}",
            by_passes=", by which it may be scaled",
        )
    elif pair.is_ranks(math.sqrt(factor)):
        why = f"the square of the number of ranks: {arm.name} scales it twice"
    else:
        return
    sentence = (
        f"the learning rate of {arm.name} is {factor:.3g} times as high ({theirs:.4g} and"
        f" {ours:.4g}), {why}"
    )
    covers = [
        name
        for name in pair.baseline.fields
        if name.startswith("optimizer.") and name.endswith("lr")
    ]
    values = {pair.baseline.name: theirs, pair.candidate.name: ours}
    yield PortingMistake(
        field=field, sentence=sentence, values=values, covers=[*covers, "schedule.lr"]
    )


def _counts_steps(arm: ScriptArm) -> bool | None:
    """Whether its schedule was stepped with every compared step, and not once; None where that is
    not known or neither.
    """
    stepped, steps = arm.number("schedule.steps"), len(arm.first.steps)
    if stepped is None or steps < 3:
        return None
    return True if stepped >= steps - 1 else False if stepped == 0 else None


def _schedule(pair: Pair) -> Iterator[PortingMistake]:
    reported = pair.values("schedule.lr")
    rates = pair.each(
        lambda arm: (
            arm.learning_rates or (values if isinstance(values := reported[arm.name], list) else [])
        )
    )
    moving = pair.differing(
        lambda arm: len(set(rates[arm.name])) > 1 if len(rates[arm.name]) > 1 else None
    )
    for arm, other in moving or pair.differing(_counts_steps):
        taken, kinds = (
            len(arm.first.steps),
            pair.each(lambda arm: arm.fields.get("schedule.class") or "no schedule"),
        )
        sentence = (
            f"{arm.name} steps its {kinds[arm.name]} with every optimizer step, {other.name} in"
            f" none of the first {taken} steps"
        )
        if moving:
            parts = (
                f"{_span(rates[script.name])} in {script.name} ({kinds[script.name]})"
                for script in (arm, other)
            )
            sentence = f"the learning rate of the first {taken} steps: {', '.join(parts)}"
        settings = (
            name
            for script in (arm, other)
            for name in script.fields
            if name.startswith("optimizer.") and name.endswith("lr")
        )
        covers = ["schedule.", *settings]
        yield PortingMistake(field="schedule.lr", sentence=sentence, values=rates, covers=covers)


def _span(rates: Sequence[float]) -> str:
    return f"{rates[0]:.4g}" + f" to {rates[-1]:.4g}" * (len(set(rates)) > 1)


def _compressed(pair: Pair) -> Iterator[PortingMistake]:
    ours, theirs = pair.candidate.compression, pair.baseline.compression
    if ours == theirs:
        return
    arm, other = pair.ordered(candidate_first=ours is not None)
    field = "horovod.compression" if "horovod.compression" in arm.fields else "ddp.comm_hook"
    sentence = (
        f"{arm.name} exchanges gradients {_exchanged(arm)} ({field}), {other.name}"
        f" {_exchanged(other)}"
    )
    values = {pair.baseline.name: theirs, pair.candidate.name: ours}
    is_harmless = pair.has_same_gradients and not {ours, theirs} & {"float16", "bfloat16"}
    severity: Severity = "speed" if is_harmless else "mistake"
    covers = ["horovod.compression", "ddp.comm_hook"]
    yield PortingMistake(
        field=field, sentence=sentence, values=values, covers=covers, severity=severity
    )


def _exchanged(arm: ScriptArm) -> str:
    """In a type, or by a hook whose type is not known."""
    if arm.compression is None:
        return "in their own type"
    return (
        f"in {arm.compression}"
        if arm.compression in ("float16", "bfloat16")
        else f"by {arm.compression}"
    )


def _seeds(pair: Pair) -> Iterator[PortingMistake]:
    for arm, other in pair.differing(lambda arm: arm.seeds_alike):
        sentence = (
            f"seeds are alike on all ranks of {arm.name} and differ on those of {other.name}: "
            f"dropout and augmentation draw alike on all ranks of {arm.name}"
        )
        yield PortingMistake(
            field="seed.torch", sentence=sentence, values=pair.values("seed.torch")
        )


def _buffers(pair: Pair) -> Iterator[PortingMistake]:
    field, of_horovod = "ddp.broadcast_buffers", "horovod" in pair.values("library").values()

    def own(arm: ScriptArm) -> Sequence[str] | None:
        if of_horovod and arm.fields.get(field):
            return []  # whatever they are behind a forward pass, the next one begins with rank 0's
        return arm.agreement.buffers if arm.agreement else None

    buffers = pair.each(own)
    if any(arm.number("model.buffers") != 0 for arm in (pair.candidate, pair.baseline)):
        # Horovod has none
        for arm, _ in pair.differing(
            lambda arm: None if (kept := arm.fields.get(field)) is None else not kept
        ):
            kept = "each rank keeps its own, such as statistics of batch norm"
            yield PortingMistake(
                field=field,
                sentence=f"{arm.name} does not broadcast buffers ({field}): {kept}",
                values=pair.values(field),
            )
            return
    for arm, other in pair.differing(
        lambda arm: None if buffers[arm.name] is None else bool(buffers[arm.name])
    ):
        if other.shares_batches and not arm.shares_batches:
            continue  # ranks that read the same batches have the same statistics
        comes_with_it = (arm.fields.get("library"), other.fields.get("library")) == (
            "horovod",
            "ddp",
        )
        apart = named(buffers[arm.name] or [])
        how = "gets rank 0's before each forward pass" if comes_with_it else "has like ones"
        sentence = f"buffers differ between ranks of {arm.name} ({apart}); {other.name} {how}"
        values = {name: "apart" if names else "alike" for name, names in buffers.items()}
        has_other_norms = (
            len({str(script.fields.get("model.norms")) for script in (arm, other)}) > 1
        )
        severity: Severity = "training" if comes_with_it or has_other_norms else "mistake"
        yield PortingMistake(
            field="buffers.by_rank",
            sentence=sentence,
            values=values,
            severity=severity,
            allowed=comes_with_it,
            is_default=comes_with_it,
        )


FINDERS: tuple[Callable[[Pair], Iterator[PortingMistake]], ...] = (
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
