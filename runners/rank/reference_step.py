"""The gate's first step on one rank without the others: its gradients, and the effect of rounding
on them.

All runs of a step start in the same state: each has its own workload, model and batches, and the
process's generators at one seed. Its batches have separate generators. If two runs still differ by
more than rounding, the workload is the cause and is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from backends.base import Prepared
from measurement.agent.ringside_agent.reading.values import real_elements, sketch
from measurement.distances import ROUNDING, Sketches, Tensors, arithmetic_of
from measurement.errors import PlanError
from measurement.flops import count_flops
from measurement.records.record import GATE_STEPS, FlopCount
from runners.rank.trainer import Batches, Trainer
from workloads import Workload
from workloads.optimizers import as_one, members_of, seed_generators, torch_states
from workloads.tensors import is_finite

SKETCH_SIZE = 64
SAMPLES = 1 << 14
FLOP_SAMPLES = 2
"""Samples of the pass whose FLOPs are counted: enough for batch norm. Formulas are linear in
them."""
PERTURBATION = 0.01
"""× the tolerance, relative: 1e-6 in float32, some roundings, the distance of two arms' parameters
after the first step."""
REPEATABLE = 10.0
"""× the tolerance: the allowed distance of a step's gradients computed twice, since GPUs add in any
order."""


@dataclass(kw_only=True)
class ReferenceStep:
    """The first step of this rank alone."""

    gradients: dict[str, list[float]]
    missing: list[str]
    """Trainable parameters that got no gradient."""
    draws: bool
    """Whether the forward or backward pass used PyTorch's random numbers."""
    noise: dict[str, float] = field(default_factory=dict)
    """See ``ParityReport.noise``."""
    rounding: dict[str, float] = field(default_factory=dict)
    """See ``ParityReport.rounding``."""


@dataclass(kw_only=True)
class ReferenceRun:
    """A bare model with its own optimizer, workload and batches."""

    prepared: Prepared
    workload: Workload
    batches: Iterator[Any]

    @property
    def gradients(self) -> dict[str, list[float]]:
        """Those of the last step."""
        return sketch_tensors(self.prepared.full_gradients().items())


class ReferenceSteps:
    """Repeats the first step on one rank, with equal parameters and batches."""

    def __init__(self, trainer: Trainer, parameters: Mapping[str, Any]) -> None:
        """``parameters``: with buffers, after ``prepare``."""
        self._trainer, self._parameters = trainer, parameters
        self._rank = trainer.world.rank
        self._loss, self._drew = 0.0, False

    def take(self) -> ReferenceStep:
        """Take the step twice: rank 0 with perturbed parameters, others and a single rank with the
        same. Collective.

        Some gradients are rounding only, as for a bias before a batch norm. A perturbation changes
        them completely, and an optimizer that divides by their size, as Adam does, makes full steps
        of them. Rank 0 of more than two takes all steps with the perturbation, since later steps
        may amplify rounding, as with batch norm over few values. With two ranks, the sum of
        gradients has only one order.

        Raises:
            PlanError: the loss or a gradient is not finite, or not repeatable. No backend can be
                the cause.
        """
        alone = self._with_gradients(self._parameters)
        self._require_finite(alone)
        missing = [
            name
            for name, parameter in alone.prepared.bare.named_parameters()
            if parameter.requires_grad and parameter.grad is None
        ]
        first_step = ReferenceStep(gradients=alone.gradients, missing=missing, draws=self._drew)
        is_alone = self._trainer.world.world_size == 1
        difference = self._repeated(first_step.gradients) if self._rank > 0 or is_alone else None
        seen = next(
            filter(None, self._trainer.backend.all_gather_object(difference, str | None)), None
        )
        if seen:
            raise PlanError(
                f"the workload's loss is not repeatable: {seen}, from the same parameters, batch"
                " and seeds; draw from the generators of torch, numpy and random, or from one that"
                " the workload's constructor makes from self.seed, and keep state in the workload"
                " or the model"
            )
        if self._rank == 0:
            self._find_rounding(
                first_step, alone, steps=GATE_STEPS if self._trainer.world.world_size > 2 else 1
            )
        return first_step

    def _repeated(self, gradients: Tensors) -> str | None:
        """Take the step again; say what differs, None if nothing does."""
        loss, first = self._loss, Sketches.of(gradients)
        again = self._with_gradients(self._parameters)
        # a layer may be skipped at random
        repeated = {**dict.fromkeys(gradients, (math.nan,)), **again.gradients}
        size, distance = first.norm, (Sketches.of(repeated, gradients) - first).norm
        coarsest = max(map(tolerance_of, again.prepared.bare.parameters()))
        if (
            distance
            <= REPEATABLE * max(coarsest, self._trainer.step_precision.gradient_error) * size
        ):
            return None
        return (
            f"rank {self._rank} came to a loss of {loss:.6g}, then of {self._loss:.6g}, with other"
            " gradients"
        )

    def _find_rounding(self, first_step: ReferenceStep, alone: ReferenceRun, *, steps: int) -> None:
        """Take the step from perturbed parameters, then both optimizer steps and the following
        ones; sets noise and rounding.
        """
        trained = {
            name
            for name, parameter in alone.prepared.bare.named_parameters()
            if parameter.requires_grad
        }
        begun = samples((name, self._parameters[name]) for name in trained)
        exact = _after_step(alone.prepared)
        generator = torch.Generator().manual_seed(0)
        perturbed = {
            name: _perturbed(self._parameters[name], PERTURBATION, generator)
            for name in sorted(trained)
        }
        other = self._with_gradients({**self._parameters, **perturbed})
        gradients = other.gradients
        names = [name for name in first_step.gradients if name in gradients]  # of taken branches
        noise = (Sketches.of(gradients, names) - Sketches.of(first_step.gradients, names)).norms
        first_step.noise = {
            name: float(value)
            for name, value in zip(names, noise, strict=True)
            if math.isfinite(value)
        }
        put_state(other.prepared.bare, self._parameters)
        for parameter in other.prepared.bare.parameters():
            if parameter.grad is not None:
                parameter.grad = _perturbed(parameter.grad, ROUNDING, generator)
        rounded = _after_step(other.prepared)
        for _ in range(1, steps):
            for run in (alone, other):
                run.prepared.bare.zero_grad()
                self._find_gradients(run)
            exact, rounded = _after_step(alone.prepared), _after_step(other.prepared)
        first_step.rounding = {
            name: _relative(
                rounded[name] - values, values - begun[name] if name in begun else values
            )
            for name, values in exact.items()
            if name in rounded
        }

    def _with_gradients(self, parameters: Mapping[str, Any]) -> ReferenceRun:
        """Begin a run with these parameters; returns it with this rank's local gradients of the
        first step.
        """
        trainer = self._trainer
        workload = trainer.another_workload()
        bare = trainer.build_bare(workload=workload)
        put_state(bare, parameters)
        run = ReferenceRun(
            prepared=Prepared(bare, as_one(workload.build_optimizer(bare))),
            workload=workload,
            batches=Batches(workload, trainer.world, trainer.device, seed=trainer.seed),
        )
        self._find_gradients(run)
        return run

    def _find_gradients(self, run: ReferenceRun) -> None:
        """Compute the gradients of the run's next step."""
        trainer, precision, workload = self._trainer, self._trainer.step_precision, run.workload
        alone, bare = run.prepared, run.prepared.bare
        seed_generators(trainer.seed + self._rank)
        before = torch_states()
        batches: Iterable[Any] = map(
            trainer.to_channels_last, islice(run.batches, trainer.micro_steps)
        )
        weighed = list(batches) if workload.weighs_micro_batches else []
        self._loss = 0.0
        for batch in weighed or batches:
            with precision.forward():
                loss = workload.compute_loss(bare, batch)
            share = trainer.share_of(batch, weighed)
            self._loss += share * loss.item()
            precision.backward(alone, loss * share)
        self._drew = any(
            not torch.equal(old, new) for old, new in zip(before, torch_states(), strict=True)
        )
        for parameter in bare.parameters():
            if parameter.grad is not None:
                parameter.grad /= precision.scaler.get_scale()

    def _require_finite(self, alone: ReferenceRun) -> None:
        """Refuse NaN and infinity before the first exchange, with a ``PlanError``."""
        tensors = {"the loss": torch.tensor(self._loss)}
        # a scaler skips steps whose gradients overflow
        if not self._trainer.step_precision.scaler.is_enabled():
            tensors |= {
                f"the gradient of '{name}'": parameter.grad
                for name, parameter in alone.prepared.bare.named_parameters()
                if parameter.grad is not None
            }
        for what, tensor in tensors.items():
            if not is_finite(tensor):
                raise PlanError(
                    f"{what} is not finite on rank {self._rank} in step 1, before anything was"
                    " exchanged: look at the loss and the batches there"
                    " (torch.autograd.set_detect_anomaly(True) names the operation), or lower the"
                    " learning rate"
                )


def rank_flops(trainer: Trainer) -> FlopCount:
    """Count the FLOPs of a forward and a backward pass over a few samples on this rank.

    An error is reported and not raised.
    """
    from runners.planning.workload_check import trying  # with plans, which other ranks do not need

    try:
        with trying("counting FLOPs", trainer.workload.compute_loss):
            return _count_flops(trainer)
    except PlanError as error:
        return FlopCount(error=str(error))


def _count_flops(trainer: Trainer) -> FlopCount:
    workload = trainer.another_workload(
        local_batch_size=min(trainer.workload.local_batch_size, FLOP_SAMPLES)
    )
    bare = trainer.build_bare(workload=workload)
    batch = trainer.to_channels_last(
        next(Batches(workload, trainer.world, trainer.device, seed=trainer.seed))
    )

    def run() -> None:
        with trainer.step_precision.forward():
            loss = workload.compute_loss(bare, batch)
        loss.backward()

    by_operation, unseen = count_flops(run)
    sizes = Counter[str]()
    for parameter in bare.parameters():
        sizes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return FlopCount(
        samples=workload.count_samples(batch),
        by_operation=by_operation,
        dtype=sizes.most_common(1)[0][0],
        without_formula=unseen,
    )


def sketch_tensors(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, list[float]]:
    """Each tensor's sketch, which is linear and depends only on its values and size."""
    return {name: sketch(tensor, SKETCH_SIZE) for name, tensor in tensors}


@torch.no_grad()
def put_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Copy tensors into the model's of the same name and shape.

    Sparse tensors and other entries are not changed.
    """
    for name, tensor in model.state_dict().items():
        value: Any = state.get(name)
        are_dense = all(
            isinstance(each, Tensor) and each.layout is torch.strided for each in (tensor, value)
        )
        if are_dense and tensor.shape == value.shape:
            # expanded: many elements share memory
            once = tuple(slice(0, None if stride else 1) for stride in tensor.stride())
            tensor[once].copy_(value[once])


def tolerance_of(tensor: Tensor) -> float:
    """Relative L2 error that a gradient of its dtype may have if it is exchanged uncompressed; of
    its parts' dtype if complex.
    """
    return arithmetic_of(
        str(tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype)
    ).gradient


def _after_step(alone: Prepared) -> dict[str, Tensor]:
    """Samples of parameters and optimizer state after a step, without the workload's hooks."""
    for member in members_of(alone.optimizer):
        member._optimizer_step_pre_hooks.clear()
        member._optimizer_step_post_hooks.clear()
    alone.step()
    trained = [
        (name, parameter)
        for name, parameter in alone.bare.named_parameters()
        if parameter.requires_grad
    ]
    return samples([*trained, *optimizer_state(alone, alone.optimizer.state_dict())])


@torch.no_grad()
def samples(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """float64 [at most SAMPLES]: some elements of each tensor, at the same places for equal sizes;
    cheaper than a sketch.
    """
    sampled = {}
    for name, tensor in tensors:
        elements = real_elements(tensor)
        # momentum of sparse gradients is sparse
        flat = (elements.to_dense() if elements.is_sparse else elements).reshape(-1)
        if len(flat) > SAMPLES:
            generator = torch.Generator().manual_seed(len(flat))
            flat = flat[torch.randint(len(flat), (SAMPLES,), generator=generator).to(flat.device)]
        sampled[name] = flat.to("cpu", torch.float64, copy=True)
    return sampled


@torch.no_grad()
def _perturbed(tensor: Tensor, by: float, generator: torch.Generator) -> Tensor:
    """A copy with noise of ``by`` × its dtype's tolerance, and at least a rounding, relative to the
    typical element.
    """
    if not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    if tensor.is_sparse:
        whole = tensor.coalesce()
        return torch.sparse_coo_tensor(
            whole.indices(), _perturbed(whole.values(), by, generator), whole.shape
        )
    by = max(by * tolerance_of(tensor), torch.finfo(tensor.dtype).eps)
    noise = torch.randn(
        tensor.shape, generator=generator, dtype=torch.complex64 if tensor.is_complex() else None
    ).to(tensor)
    return tensor.detach() + by * tensor.detach().abs().square().mean().sqrt() * noise


def _relative(difference: Tensor, size: Tensor) -> float:
    whole = size.norm().item()
    return difference.norm().item() / whole if whole > 0 else 0.0


def optimizer_state(prepared: Prepared, state: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors in an optimizer's ``state_dict()``, named by kind and parameter."""
    names = {id(parameter): name for name, parameter in prepared.bare.named_parameters()}
    parameters: Sequence[Tensor] = [
        p for group in prepared.optimizer.param_groups for p in group["params"]
    ]
    for number, values in state.get("state", {}).items():
        name = names.get(id(parameters[number]), str(number))
        for kind, value in (values or {}).items():
            if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
                yield f"{kind} of {name}", value
