"""The parity gate: an arm's timing counts only if it computes correctly.

It checks against a reference that the backend under test did not compute:

- after ``prepare`` every rank has rank 0's parameters and buffers (each rank starts from other
  ones, on purpose);
- after one step, unscaled and not yet clipped, every rank's gradient is ``gradient_scale`` × a
  mean. It is the float64 mean of all ranks' local gradients, which each rank computes on a bare
  model in the same precision;
- after k optimizer steps all ranks' parameters agree;
- no two ranks of an arm consumed the same samples, and all arms consumed the same ones in all;
- arms of as many ranks have the same parameters, buffers and optimizer state after these steps.
  Batch statistics differ by rank: buffers of modules with ``running_mean`` are left out.

Each run of a step, the arm's and the reference's (``reference_step``), has its own workload, model
and batches. Batches have separate generators, and the process's generators have the same seed when
a step begins.

Ranks exchange sketches of tensors. ``driver.gates`` judges the reports of one arm and of
two.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from backends.base import Prepared
from measurement.agent.ringside_agent.reading.values import hyperparameters, sketch
from measurement.distances import EXACT
from measurement.errors import PlanError
from measurement.records.record import GATE_STEPS
from measurement.step_timer import StepTimer
from runners.protocol import DriftReport, ParityReport, Sketches
from runners.rank.reference_step import (
    SKETCH_SIZE,
    ReferenceSteps,
    optimizer_state,
    put_state,
    sketch_tensors,
    tolerance_of,
)
from runners.rank.trainer import Batches, Trainer
from workloads.optimizers import as_one, seed_generators
from workloads.tensors import digest_of, is_finite, leaves_in

SCALE = 2.0**8
"""Loss scale of fp16 in the gate: low, so that the first step is not skipped for an overflow."""


def run_gate(trainer: Trainer, *, local_batch_size: int | None = None) -> ParityReport:
    """Take ``GATE_STEPS`` real steps and report this rank's results.

    Collective; releases all models.

    ``local_batch_size``: of these steps; None: the trainer's.
    """
    trainer.release()
    gate = copy.copy(trainer)
    gate.workload = trainer.another_workload(local_batch_size=local_batch_size)
    gate.step_precision = copy.copy(trainer.step_precision)
    try:
        return _take_steps(gate)
    finally:
        gate.release()


def _take_steps(trainer: Trainer) -> ParityReport:
    digest = _Digest()
    model = _model_of_this_rank(trainer)
    wanted, others = sketch_states(model.state_dict())
    reader = _GradientReader()

    def build_optimizer(model: nn.Module) -> Optimizer:
        reader.optimizer = as_one(trainer.workload.build_optimizer(model))
        return reader.optimizer

    trainer.join(model, build_optimizer=build_optimizer)
    joined = trainer.joined
    trainer.step_precision.start(initial_scale=SCALE)
    parameters = joined.full_parameters()
    started, _ = sketch_states(parameters)
    finite = [
        name
        for name, parameter in model.named_parameters()
        if name in parameters and is_finite(parameters[name])
    ]
    alone = ReferenceSteps(trainer, parameters).take()
    batches = digest.batches(
        Batches(trainer.workload, trainer.world, trainer.device, seed=trainer.seed)
    )
    skipped = _SkippedParameters(joined)
    with _eager_draws() if trainer.speed.compile and alone.draws else nullcontext():
        synced = _steps(trainer, batches, reader, skipped)
    ended = joined.full_parameters()
    _require_convergence({name: ended[name] for name in finite if name in ended}, synced)
    state = _whole_optimizer_state(trainer)
    return ParityReport(
        started=started,
        wanted=wanted if trainer.world.rank == 0 else {},
        local=alone.gradients,
        synced=synced,
        ended=sketch_states(
            {name: ended[name] for name, _ in model.named_parameters() if name in ended}
        )[0],
        buffers=sketch_states(
            {name: ended[name] for name in _common_buffers(model) if name in ended}
        )[0],
        optimizer_state=sketch_tensors(state.items()),
        rounding=alone.rounding,
        noise=alone.noise,
        without_gradient=[*alone.missing, *sorted(skipped.names - {*alone.missing})],
        in_some_steps=sorted(skipped.some_steps),
        steps_zeros=skipped.steps_zeros,
        drift=DriftReport(
            hyperparameters=hyperparameters(joined.optimizer.param_groups), parameters={}
        ),
        not_compared=others,
        is_exact=trainer.gradient_scale == 1.0 and trainer.backend.gradient_tolerance <= EXACT,
        sizes={
            name: value.numel()
            for name, value in {**parameters, **state}.items()
            if isinstance(value, Tensor)
        },
        samples=digest.text,
        gradient_scale=trainer.gradient_scale,
        tolerances=_tolerances(trainer, model),
    )


def _tolerances(trainer: Trainer, model: nn.Module) -> dict[str, float]:
    coarsest = max(trainer.backend.gradient_tolerance, trainer.step_precision.gradient_error)
    least = coarsest if coarsest > EXACT else 0.0  # a float64 gradient is exchanged as one
    trained = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    return {name: max(least, tolerance_of(parameter)) for name, parameter in trained}


def sketch_states(state: Mapping[str, Any]) -> tuple[Sketches, list[str]]:
    """Sketches of parameters and buffers by name, with stand-ins for non-finite elements; and the
    names that have no sketch.
    """
    sketches: Sketches = {}
    others = []
    for name, value in state.items():
        try:
            sketches[name] = sketch(value, SKETCH_SIZE, is_state=True)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
            others.append(f"'{name}' ({type(value).__name__})")
    return sketches, others


def _steps(
    trainer: Trainer, batches: Iterator[Any], reader: _GradientReader, skipped: _SkippedParameters
) -> Sketches:
    """Take the steps; returns the gradients that the first one exchanged, without clipping."""
    joined, precision, timer, synced = (
        trainer.joined,
        trainer.step_precision,
        StepTimer(trainer.device),
        {},
    )
    max_gradient_norm = precision.max_gradient_norm
    for step in range(GATE_STEPS):
        seed_generators(trainer.seed + trainer.world.rank)
        is_first = step == 0
        joined.keeps_gradients, precision.max_gradient_norm = (
            is_first,
            None if is_first else max_gradient_norm,
        )
        with (
            reader.watching() if is_first and trainer.gradient_scale is not None else nullcontext()
        ):
            trainer.step(timer, batches=batches)
        skipped.note()
        if is_first:
            synced = reader.sketches(joined)
    return synced


@contextmanager
def _eager_draws() -> Iterator[None]:
    """A context in which a model is recompiled to draw as the reference does: Inductor's dropout
    masks differ from eager ones.
    """
    import torch._dynamo
    import torch._inductor.config as inductor

    torch._dynamo.reset()
    with inductor.patch(fallback_random=True):
        yield
    torch._dynamo.reset()


def _model_of_this_rank(trainer: Trainer) -> nn.Module:
    """Build a model whose parameters and buffers differ by rank, and which otherwise equals that of
    a run.
    """
    rank = trainer.world.rank
    other = (
        trainer.build_bare(
            seed=trainer.seed + rank, workload=trainer.another_workload()
        ).state_dict()
        if rank
        else {}
    )
    model = trainer.build_bare()
    put_state(model, other)
    return model


class _Digest:
    """Digest of batches."""

    def __init__(self) -> None:
        self._whole, self.text = hashlib.sha256(), ""
        """Empty if the batches hold nothing that can be read."""

    def batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches and add them to the digest."""
        for batch in batches:
            if any(True for _ in leaves_in(batch)):
                digest_of(self._whole, batch)
                self.text = self._whole.hexdigest()
            yield batch


class _SkippedParameters:
    """Finds the parameters without a gradient in a model's steps. Made after ``prepare``."""

    def __init__(self, prepared: Prepared) -> None:
        self.names: set[str] = set()
        """Trainable parameters that some step left out."""
        self.steps_zeros = False
        """Whether the library sets zero gradients then: the optimizer's weight decay and momentum
        change the parameter."""
        self._ever: set[str] = set()
        self._prepared = prepared
        self._trained = {
            name: parameter
            for name, parameter in prepared.bare.named_parameters()
            if parameter.requires_grad
        }
        self._seen: set[str] = set()
        if not prepared.is_sharded:
            for name, parameter in self._trained.items():
                parameter.register_post_accumulate_grad_hook(
                    lambda _, name=name: self._seen.add(name)
                )

    def note(self) -> None:
        """Record what the last step left out; call it after each step."""
        # its gradients call no hook of a parameter, and are not set to zero
        if self._prepared.is_sharded:
            kept = {name for name, parameter in self._trained.items() if parameter.grad is not None}
            # unknown for an engine that drops all gradients in its step
            self._seen = kept or {*self._trained}
        left_out = self._trained.keys() - self._seen
        gradients = [self._trained[name].grad for name in left_out]
        self.steps_zeros |= any(
            gradient is not None and not bool(gradient.any()) for gradient in gradients
        )
        self.names |= left_out
        self._ever |= self._seen
        self._seen = set()

    @property
    def some_steps(self) -> set[str]:
        """Those of ``names`` that another step had."""
        return self.names & self._ever


class _GradientReader:
    """Keeps the gradients at the beginning of the optimizer's step, which may change them."""

    optimizer: Optimizer
    """Known once it was built."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context of one step.

        Its hook runs before the workload's, since libraries may share these or run none.
        """
        hooks: Any = getattr(self.optimizer, "_optimizer_step_pre_hooks", None)
        if hooks is None:
            yield
            return
        handle = self.optimizer.register_step_pre_hook(self._keep)
        hooks.move_to_end(handle.id, last=False)
        yield
        handle.remove()

    def _keep(self, optimizer: Any, *_: Any) -> None:
        if self._kept is None:  # a step that calls its parent class's comes here twice
            parameters = [
                parameter for group in optimizer.param_groups for parameter in group["params"]
            ]
            self._kept = [
                (parameter, parameter.grad.clone())
                for parameter in parameters
                if parameter.grad is not None
            ]

    def sketches(self, joined: Prepared) -> Sketches:
        """Sketch the whole gradients of the backend. Collective, after the step."""
        after = [(parameter, parameter.grad) for parameter, _ in self._kept or ()]
        for parameter, gradient in self._kept or ():
            parameter.grad = gradient
        sketches = sketch_tensors(joined.full_gradients().items())
        for parameter, left in after:
            parameter.grad = left
        self._kept = []
        return sketches


def _require_convergence(ended: Mapping[str, Tensor], synced: Sketches) -> None:
    """Refuse a training that diverges: its first gradients were finite and its parameters are not.

    Raises a ``PlanError``.
    """
    if not all(math.isfinite(value) for values in synced.values() for value in values):
        return
    for name, tensor in ended.items():
        if not is_finite(tensor):
            raise PlanError(
                f"'{name}' is not finite after {GATE_STEPS} steps, though the first step's"
                " gradients were: the training diverges; lower the learning rate, or clip"
                " gradients with max_gradient_norm"
            )


def _common_buffers(model: nn.Module) -> list[str]:
    """Names of the buffers that do not depend on a rank's batches: all except those of modules with
    ``running_mean``.
    """
    return [
        f"{place}.{name}" if place else name
        for place, module in model.named_modules()
        if not hasattr(module, "running_mean")
        for name, _ in module.named_buffers(recurse=False)
    ]


def _whole_optimizer_state(trainer: Trainer) -> dict[str, Tensor]:
    """Return rank 0's state by name; empty on other ranks, and if a library cannot give it.

    Collective.
    """
    try:
        state = dict(optimizer_state(trainer.joined, trainer.joined.full_optimizer_state()))
    except NotImplementedError:
        return {}
    return {} if trainer.world.rank > 0 else state
