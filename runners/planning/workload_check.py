"""Tries a workload out on one rank, in seconds, before anything is timed: every method that a comparison will call, once or twice.

What cannot work is one line, with the line of the user's code and the remedy. ``ringside check`` prints what is found; ``compare``
and the runs without a driver refuse what is wrong.
"""

from __future__ import annotations

import inspect
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from measurement.errors import PlanError, shortened
from runners.planning.schedule_check import find_end
from runners.planning.trial_findings import AskedArm, Findings, StopTrial, WorkloadFacts
from runners.planning.workload import WorkloadSetup
from runners.planning.wrapped_model import WrappedModel
from runners.protocol.gate_verdict import NOT_REPEATABLE, REPEATABLE_SO
from workloads import Workload
from workloads.base import EvaluationSums
from workloads.optimizers import as_one, members_of, seed_generators
from workloads.tensors import are_equal, by_pixels, tensors_in

BATCHES = 3
SAME_LOSS = 1e-3
"""Relative: how far a loss may be from itself, since GPUs add up in any order."""
LOCAL_BATCH_SIZE = 2
"""At most; enough for batch norm, and as fast as can be."""


def check_workload(
    setup: WorkloadSetup,
    *,
    local_batch_size: int,
    seed: int,
    world_size: int,
    device: torch.device,
    channels_last: bool = False,
    steps_of: Callable[[Workload], int | None] = lambda _: None,
    arms: Sequence[AskedArm] = (),
) -> WorkloadFacts:
    """Try a workload out on this process alone. Not collective; nothing of it stays but what the workload itself keeps.

    What is given is the run's: a smaller batch is tried, on rank 0, and of rank 1 the first batch. ``steps_of``: how many steps a
    model will take, if that is known. ``arms``: whose backends are asked what they make of model and optimizer.
    """
    assert issubclass(setup.workload, Workload)
    trial = _Trial(setup, min(local_batch_size, LOCAL_BATCH_SIZE), seed, world_size, device)
    with suppress(StopTrial):
        trial.run(channels_last=channels_last, steps_of=steps_of, arms=arms)
    return trial.facts


class _Trial:
    """One pass over a workload's methods, in the order in which a run calls them."""

    def __init__(self, setup: WorkloadSetup, local_batch_size: int, seed: int, world_size: int, device: torch.device) -> None:
        self._findings = Findings()
        self.facts = self._findings.facts
        self._setup = setup
        self._local_batch_size, self._seed = local_batch_size, seed
        self._world_size, self._device = world_size, device

    def run(self, *, channels_last: bool, steps_of: Callable[[Workload], int | None], arms: Sequence[AskedArm]) -> None:
        """Try everything."""
        with self._findings.trying("constructor", self._setup.workload):
            self._workload = self._build()
        with self._findings.trying("require_data", self._workload.require_data):
            self._workload.require_data()
            self.facts.notes += self._workload.data_notes()
        batches = self._batches()
        model = self._model(channels_last=channels_last)
        self._repeat_loss()
        if channels_last:
            batches = [by_pixels(batch) for batch in batches]
        optimizer = self._optimizer(model)
        wrapped = WrappedModel(model)
        self._step(wrapped, optimizer, batches[0])
        if len(batches) > 1:
            began = time.perf_counter()
            self._step(wrapped, optimizer, batches[1], first=False)
            self.facts.found["step"] = f"{1e3 * (time.perf_counter() - began):,.0f} ms for {self._count} on {self._device.type}"
        self._ask(arms, model, optimizer)
        with self._findings.trying("evaluation_batches and evaluation_sums", self._workload.evaluation_sums):
            self._evaluate(model)
        with self._findings.trying("the schedule", self._workload.after_step):
            find_end(self.facts, self._workload, model, optimizer, needed=steps_of(self._workload))

    def _build(self) -> Workload:
        return self._setup.build(local_batch_size=self._local_batch_size, seed=self._seed)

    def _batches(self) -> list[Any]:
        """The first batches of rank 0."""
        method = self._workload.batches

        def first(workload: Workload, *, rank: int, number: int) -> list[Any]:
            seed_generators(self._seed)
            return list(islice(workload.batches(rank=rank, world_size=self._world_size, device=self._device), number))

        with self._findings.trying("batches", method):
            batches = first(self._workload, rank=0, number=BATCHES)
            again = first(self._build(), rank=0, number=1)
            other = first(self._build(), rank=1, number=1) if self._world_size > 1 else []
        if not batches:
            message = f"batches() gave none to rank 0 of {self._world_size}; give each rank one batch at least"
            self._findings.wrong(message, method, stop=True)
        if len(batches) < BATCHES:
            self.facts.notes.append(f"batches() ends after {len(batches)}; it is begun anew each time, as a new epoch would be")
        for name, tensor in tensors_in(batches[0]):
            if tensor.device.type != self._device.type:
                message = f"batches() gave {name} on {tensor.device}, and its argument device is {self._device}; move it there"
                self._findings.wrong(message, method, stop=True)
        if again and not _equal(batches[0], again[0]):
            self._findings.wrong(
                "batches() gave others when called again with equal arguments; draw from a generator with self.seed", method
            )
        if other and any(tensors_in(other[0])) and _equal(batches[0], other[0]):
            message = "batches() gave ranks 0 and 1 the same samples; take every world_size-th sample, beginning at rank"
            self._findings.wrong(message, method)
        self._count_samples(batches)
        return batches

    def _count_samples(self, batches: Sequence[Any]) -> None:
        method, unit = self._workload.count_samples, self._workload.sample_unit
        with self._findings.trying("count_samples", method):
            counts = [self._workload.count_samples(batch) for batch in batches]
        if not all(isinstance(count, int) and count > 0 for count in counts):
            self._findings.wrong(
                f"count_samples() gave {counts[0]!r}; return how many {unit} the batch holds, an int above 0", method, stop=True
            )
        self._count = f"{counts[0]:,} {unit}"
        self.facts.found["batch"] = ", ".join(f"{name} {_shape(tensor)}" for name, tensor in tensors_in(batches[0])) or "no tensors"
        if len(set(counts)) > 1 and not self._workload.weighs_micro_batches:
            self.facts.notes.append(
                f"batches hold unequal numbers of {unit} ({', '.join(map(str, counts))}): with micro_steps, and between ranks, "
                "each counts alike; weighs_micro_batches = True weighs those of a step"
            )

    def _model(self, *, channels_last: bool) -> nn.Module:
        method = self._workload.build_model
        made: list[Any] = []
        with self._findings.trying("build_model", method):
            self._fresh = self._build()
            for workload in (self._fresh, self._workload):
                seed_generators(self._seed)
                made.append(workload.build_model())
        twin, built = made
        self._twin = twin
        if not isinstance(built, nn.Module):
            self._findings.wrong(f"build_model() gave a {type(built).__name__}; return a torch.nn.Module", method, stop=True)
        lazy = [name for name, tensor in built.state_dict(keep_vars=True).items() if is_lazy(tensor)]
        if lazy:
            message = f"build_model() gave a lazy module, whose {shortened(lazy)} has no shape yet"
            self._findings.wrong(f"{message}; do a forward pass there, such as model(torch.zeros(1, ...))", method, stop=True)
        empty = [name for name, tensor in built.state_dict(keep_vars=True).items() if getattr(tensor, "is_meta", False)]
        if empty:
            message = f"build_model() gave {shortened(empty)} on the device 'meta', without values"
            self._findings.wrong(f"{message}; build the model on the CPU, or fill it there", method, stop=True)
        others = [name for name, tensor in built.state_dict().items() if not _equal(tensor, twin.state_dict().get(name))]
        if others:
            message = f"build_model() gave other weights when called again with the same seed ({shortened(others)})"
            self._findings.wrong(
                f"{message}; draw them from the generators of torch, numpy or random, which are seeded before", method
            )
        with self._findings.trying("the model's move to its device", method):
            model: nn.Module = built.to(self._device).train()
            if channels_last:
                model.to(memory_format=torch.channels_last)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trained:
            self._findings.wrong("no parameter of the model has requires_grad; there is nothing to train", method, stop=True)
        count = sum(parameter.numel() for parameter in model.parameters())
        self.facts.found["model"] = f"{type(model).__name__}, {count:,} parameters; gradients of {len(trained)} tensors"
        return model

    def _repeat_loss(self) -> None:
        """Compute the first loss twice, each time with a workload and a model of its own: its draws and its state begin alike."""
        method = self._workload.compute_loss
        before = _beyond_reach(self._fresh, self._twin)
        with self._findings.trying("compute_loss", method):
            first = self._loss_alone(self._fresh, self._twin)
            other = self._build()
            seed_generators(self._seed)
            model = other.build_model()
            again = self._loss_alone(other, model)
        if first is None or again is None or abs(again - first) <= SAME_LOSS * max(abs(first), abs(again)):
            return
        changed = [name for name, value in _beyond_reach(other, model).items() if before.get(name) != value]
        what = f" ({', '.join(changed[:3])} changed meanwhile)" if changed else ""
        seen = f"{first:.6g}, then {again:.6g} from the same weights, batch and seeds{what}"
        self._findings.wrong(f"{NOT_REPEATABLE}: compute_loss() gave {seen}; {REPEATABLE_SO}", method, stop=True)

    def _loss_alone(self, workload: Workload, model: nn.Module) -> float | None:
        """The loss of rank 0's first batch; None: it is no number, of which more is said later."""
        seed_generators(self._seed)
        batch = next(iter(workload.batches(rank=0, world_size=self._world_size, device=self._device)))
        model = model.to(self._device).train()
        seed_generators(self._seed)
        loss: Any = workload.compute_loss(model, batch)
        return loss.item() if isinstance(loss, Tensor) and loss.numel() == 1 and bool(loss.isfinite().all()) else None

    def _optimizer(self, model: nn.Module) -> Optimizer:
        method = self._workload.build_optimizer
        with self._findings.trying("build_optimizer", method):
            built: Any = self._workload.build_optimizer(model)
        given = list(built) if isinstance(built, Sequence) else [built]
        closed = [type(one).__name__ for one in given if isinstance(one, Optimizer) and _needs_closure(one)]
        if closed:
            message = f"build_optimizer() gave {closed[0]}, whose step() needs a closure, which is not supported"
            self._findings.wrong(f"{message}; take another, such as Adam", method, stop=True)
        if not given or not all(isinstance(one, Optimizer) for one in given):
            seen = " and ".join(type(one).__name__ for one in given) or "nothing"
            self._findings.wrong(
                f"build_optimizer() gave {seen}; return a torch.optim.Optimizer, or a list of them", method, stop=True
            )
        with self._findings.trying("build_optimizer", method):
            optimizer = as_one(built)
        own = set(map(id, model.parameters()))
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if stepped - own:
            self._findings.wrong(
                "build_optimizer() steps parameters that are not the model's; use those of the model it is given", method
            )
        left = [name for name, parameter in model.named_parameters() if parameter.requires_grad and id(parameter) not in stepped]
        if left:
            self.facts.notes.append(
                f"no optimizer steps {shortened(left)}; their gradients are computed and exchanged all the same"
            )
        self.facts.found["optimizer"] = " and ".join(type(one).__name__ for one in members_of(optimizer)[1:] or [optimizer])
        return optimizer

    def _step(self, wrapped: WrappedModel, optimizer: Optimizer, batch: Any, *, first: bool = True) -> None:
        workload, model = self._workload, wrapped.module
        optimizer.zero_grad(set_to_none=True)
        with self._findings.trying("compute_loss", workload.compute_loss), wrapped.watched():
            loss = workload.compute_loss(wrapped, batch)
        if first:
            self._findings.judge_loss(loss, wrapped, workload.compute_loss)
        with self._findings.trying("backward() of the loss", workload.compute_loss):
            loss.backward()
        self._findings.judge_gradients(model, workload.compute_loss, first=first)
        with self._findings.trying("the optimizer's step", workload.build_optimizer):
            optimizer.step()
        with self._findings.trying("after_step", workload.after_step):
            workload.after_step(1 if first else 2, model=model, optimizer=optimizer)

    def _ask(self, arms: Sequence[AskedArm], model: nn.Module, optimizer: Optimizer) -> None:
        facts = self.facts
        for arm in arms:
            try:
                notes = arm.ask(model, optimizer, missing=facts.without_gradient, sparse=facts.sparse)
            except PlanError as error:
                facts.arm_errors.append(str(error))
            else:
                facts.notes += [note for note in notes if note not in facts.notes]

    def _evaluate(self, model: nn.Module) -> None:
        batch = next(iter(self._workload.evaluation_batches(rank=0, world_size=self._world_size, device=self._device)), None)
        if batch is None:
            self.facts.found["held out"] = "nothing, so there will be no accuracy"
            return
        with torch.no_grad():
            sums: Any = self._workload.evaluation_sums(model.eval(), batch)
        if isinstance(sums, EvaluationSums):
            self.facts.found["held out"] = "evaluated"
        else:
            message = f"evaluation_sums() gave a {type(sums).__name__}; return a workloads.base.EvaluationSums"
            self._findings.wrong(message, self._workload.evaluation_sums)


def _needs_closure(optimizer: Optimizer) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _beyond_reach(workload: Workload, model: nn.Module) -> dict[str, object]:
    """What no fresh workload begins anew: attributes of classes, and globals beside them; generators by their state."""
    owners = {type(workload), *map(type, model.modules())}
    own = {owner for owner in owners if not owner.__module__.startswith(("torch.", "workloads."))}
    found = {f"{owner.__name__}.{name}": value for owner in own for name, value in vars(owner).items()}
    found |= {name: value for owner in own for name, value in vars(sys.modules[owner.__module__]).items()}
    return {name: _mark(value) for name, value in found.items()}


def _mark(value: Any) -> object:
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    return value.get_state().tolist() if isinstance(value, torch.Generator) else id(value)


def _equal(one: Any, other: Any) -> bool:
    firsts, others = ([tensor for _, tensor in tensors_in(value)] for value in (one, other))
    return len(firsts) == len(others) and all(are_equal(a, b) for a, b in zip(firsts, others, strict=True))


def _shape(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        return f"{dtype} nested [{tensor.size(0)}]"
    layout = "" if tensor.layout == torch.strided else f" {str(tensor.layout).removeprefix('torch.')}"
    return f"{dtype}{layout} {list(tensor.shape)}"
