"""Tries a workload out on one rank, in seconds, before anything is timed: every method that a comparison will call, once or twice.

What cannot work is one line, with the line of the user's code and the remedy. ``ringside check`` prints what is found; ``compare``
and the runs without a driver refuse what is wrong.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn
from torch.optim import Optimizer

from measurement.errors import PlanError, shortened
from measurement.users_code import message_of, paragraph, place_of, place_of_definition
from runners.planning.workload import WorkloadSetup
from runners.protocol.gate_verdict import NOT_REPEATABLE, REPEATABLE_SO
from workloads import Workload
from workloads.evaluation import EvaluationSums
from workloads.optimizers import as_one, members_of
from workloads.seeding import seed_generators
from workloads.tensors import is_finite, tensors_in

BATCHES = 3
SAME_LOSS = 1e-3
"""Relative: how far a loss may be from itself, since GPUs add up in any order."""
LOCAL_BATCH_SIZE = 2
"""At most; enough for batch norm, and as fast as can be."""


class WorkloadFacts(BaseModel):
    """What was found."""

    errors: list[str] = []
    """Each is one thing that cannot work."""
    notes: list[str] = []
    """What works, and should be known."""
    found: dict[str, str] = Field(default={})
    """Model, optimizer, batch, step: for the eye."""
    without_gradient: list[str] = []
    """Parameters to be trained that took no part in the loss of the first batch."""
    sparse: list[str] = []
    """Parameters with sparse gradients."""


class _Stop(Exception):  # noqa: N818 - what comes next cannot be tried
    pass


def check_workload(
    setup: WorkloadSetup, *, local_batch_size: int, seed: int, world_size: int, device: torch.device
) -> WorkloadFacts:
    """Try a workload out on this process alone. Not collective; nothing of it stays but what the workload itself keeps.

    Args:
        setup: a workload that is trained, its options checked.
        local_batch_size: the run's; a smaller one is tried.
        seed: the run's.
        world_size: the run's; rank 0 is tried, and of rank 1 the first batch.
        device: where to.
    """
    assert issubclass(setup.workload, Workload)
    trial = _Trial(setup, min(local_batch_size, LOCAL_BATCH_SIZE), seed, world_size, device)
    with suppress(_Stop):
        trial.run()
    return trial.facts


class _Trial:
    """One pass over a workload's methods, in the order in which a run calls them."""

    def __init__(self, setup: WorkloadSetup, local_batch_size: int, seed: int, world_size: int, device: torch.device) -> None:
        self.facts = WorkloadFacts()
        self._setup = setup
        self._local_batch_size, self._seed = local_batch_size, seed
        self._world_size, self._device = world_size, device

    def run(self) -> None:
        """Try everything."""
        with self._trying("constructor", self._setup.workload):
            self._workload = self._build()
        with self._trying("require_data", self._workload.require_data):
            self._workload.require_data()
            self.facts.notes += self._workload.data_notes()
        batches = self._batches()
        model = self._model()
        self._repeat_loss()
        optimizer = self._optimizer(model)
        self._step(model, optimizer, batches[0])
        if len(batches) > 1:
            began = time.perf_counter()
            self._step(model, optimizer, batches[1], first=False)
            self.facts.found["step"] = f"{1e3 * (time.perf_counter() - began):,.0f} ms for {self._count} on {self._device.type}"
        with self._trying("evaluation_batches and evaluation_sums", self._workload.evaluation_sums):
            self._evaluate(model)

    def _build(self) -> Workload:
        return self._setup.build(local_batch_size=self._local_batch_size, seed=self._seed)

    @contextmanager
    def _trying(self, what: str, method: object) -> Iterator[None]:
        """A context of the user's code: what it raises is a finding, after which the rest is not tried."""
        try:
            yield
        except _Stop:
            raise
        except PlanError as error:
            self.facts.errors.append(str(error))
            raise _Stop from error
        except Exception as error:
            message = f"{what} raised {message_of(error)}"
            self.facts.errors.append(paragraph(message, place_of(error) or place_of_definition(method)))
            raise _Stop from error

    def _wrong(self, message: str, method: Callable[..., Any], *, stop: bool = False) -> None:
        place = place_of_definition(method)
        self.facts.errors.append(f"{message}{f' ({place})' if place else ''}")
        if stop:
            raise _Stop

    def _batches(self) -> list[Any]:
        """The first batches of rank 0."""
        method = self._workload.batches

        def first(workload: Workload, *, rank: int, number: int) -> list[Any]:
            seed_generators(self._seed)
            return list(islice(workload.batches(rank=rank, world_size=self._world_size, device=self._device), number))

        with self._trying("batches", method):
            batches = first(self._workload, rank=0, number=BATCHES)
            again = first(self._build(), rank=0, number=1)
            other = first(self._build(), rank=1, number=1) if self._world_size > 1 else []
        if not batches:
            message = f"batches() gave none to rank 0 of {self._world_size}; give each rank one batch at least"
            self._wrong(message, method, stop=True)
        if len(batches) < BATCHES:
            self.facts.notes.append(f"batches() ends after {len(batches)}; it is begun anew each time, as a new epoch would be")
        for name, tensor in tensors_in(batches[0]):
            if tensor.device.type != self._device.type:
                message = f"batches() gave {name} on {tensor.device}, and its argument device is {self._device}; move it there"
                self._wrong(message, method, stop=True)
        if again and not _equal(batches[0], again[0]):
            self._wrong(
                "batches() gave others when called again with equal arguments; draw from a generator with self.seed", method
            )
        if other and any(tensors_in(other[0])) and _equal(batches[0], other[0]):
            message = "batches() gave ranks 0 and 1 the same samples; take every world_size-th sample, beginning at rank"
            self._wrong(message, method)
        self._count_samples(batches)
        return batches

    def _count_samples(self, batches: Sequence[Any]) -> None:
        method, unit = self._workload.count_samples, self._workload.sample_unit
        with self._trying("count_samples", method):
            counts = [self._workload.count_samples(batch) for batch in batches]
        if not all(isinstance(count, int) and count > 0 for count in counts):
            self._wrong(
                f"count_samples() gave {counts[0]!r}; return how many {unit} the batch holds, an int above 0", method, stop=True
            )
        self._count = f"{counts[0]:,} {unit}"
        self.facts.found["batch"] = ", ".join(f"{name} {_shape(tensor)}" for name, tensor in tensors_in(batches[0])) or "no tensors"
        if len(set(counts)) > 1 and not self._workload.weighs_micro_batches:
            self.facts.notes.append(
                f"batches hold unequal numbers of {unit} ({', '.join(map(str, counts))}): with micro_steps, and between ranks, "
                "each counts alike; weighs_micro_batches = True weighs those of a step"
            )

    def _model(self) -> nn.Module:
        method = self._workload.build_model
        made: list[Any] = []
        with self._trying("build_model", method):
            self._fresh = self._build()
            for workload in (self._fresh, self._workload):
                seed_generators(self._seed)
                made.append(workload.build_model())
        twin, built = made
        self._twin = twin
        if not isinstance(built, nn.Module):
            self._wrong(f"build_model() gave a {type(built).__name__}; return a torch.nn.Module", method, stop=True)
        others = [name for name, tensor in built.state_dict().items() if not _equal(tensor, twin.state_dict().get(name))]
        if others:
            message = f"build_model() gave other weights when called again with the same seed ({shortened(others)})"
            self._wrong(f"{message}; draw them from the generators of torch, numpy or random, which are seeded before", method)
        with self._trying("the model's move to its device", method):
            model: nn.Module = built.to(self._device).train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trained:
            self._wrong("no parameter of the model has requires_grad; there is nothing to train", method, stop=True)
        count = sum(parameter.numel() for parameter in model.parameters())
        self.facts.found["model"] = f"{type(model).__name__}, {count:,} parameters; gradients of {len(trained)} tensors"
        return model

    def _repeat_loss(self) -> None:
        """Compute the first loss twice, each time with a workload and a model of its own: its draws and its state begin alike."""
        method = self._workload.compute_loss
        before = _beyond_reach(self._fresh, self._twin)
        with self._trying("compute_loss", method):
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
        self._wrong(f"{NOT_REPEATABLE}: compute_loss() gave {seen}; {REPEATABLE_SO}", method, stop=True)

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
        with self._trying("build_optimizer", method):
            built: Any = self._workload.build_optimizer(model)
        given = list(built) if isinstance(built, Sequence) else [built]
        if not given or not all(isinstance(one, Optimizer) for one in given):
            seen = " and ".join(type(one).__name__ for one in given) or "nothing"
            self._wrong(f"build_optimizer() gave {seen}; return a torch.optim.Optimizer, or a list of them", method, stop=True)
        with self._trying("build_optimizer", method):
            optimizer = as_one(built)
        own = set(map(id, model.parameters()))
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if stepped - own:
            self._wrong("build_optimizer() steps parameters that are not the model's; use those of the model it is given", method)
        left = [name for name, parameter in model.named_parameters() if parameter.requires_grad and id(parameter) not in stepped]
        if left:
            self.facts.notes.append(
                f"no optimizer steps {shortened(left)}; their gradients are computed and exchanged all the same"
            )
        self.facts.found["optimizer"] = " and ".join(type(one).__name__ for one in members_of(optimizer)[1:] or [optimizer])
        return optimizer

    def _step(self, model: nn.Module, optimizer: Optimizer, batch: Any, *, first: bool = True) -> None:
        workload = self._workload
        optimizer.zero_grad(set_to_none=True)
        with self._trying("compute_loss", workload.compute_loss):
            loss = workload.compute_loss(model, batch)
        if first:
            self._judge_loss(loss, model)
        with self._trying("backward() of the loss", workload.compute_loss):
            loss.backward()
        if first:
            self._judge_gradients(model)
        with self._trying("the optimizer's step", workload.build_optimizer):
            optimizer.step()
        with self._trying("after_step", workload.after_step):
            workload.after_step(1 if first else 2, model=model, optimizer=optimizer)

    def _judge_loss(self, loss: Any, model: nn.Module) -> None:
        method = self._workload.compute_loss
        if any(parameter.grad is not None for parameter in model.parameters()):
            self._wrong("compute_loss() ran backward() by itself; add the losses up and return them as one", method, stop=True)
        if not isinstance(loss, Tensor):
            inside = f" of {', '.join(type(one).__name__ for one in loss)}" if isinstance(loss, tuple | list) else ""
            message = f"compute_loss() gave a {type(loss).__name__}{inside}; return the loss alone, a tensor with one number"
            self._wrong(message, method, stop=True)
        if loss.numel() != 1 or loss.dim():
            message = f"compute_loss() gave a tensor of shape {list(loss.shape)}; return the mean over the batch, of shape []"
            self._wrong(message, method, stop=True)
        if not loss.requires_grad:
            message = "compute_loss() gave a loss that no parameter has a part in (requires_grad is False); do not detach() it"
            self._wrong(message, method, stop=True)
        if not bool(loss.isfinite()):
            self._wrong(
                f"the loss of the first batch is {loss.item()}; look at the batch, the initial weights and the loss",
                method,
                stop=True,
            )

    def _judge_gradients(self, model: nn.Module) -> None:
        trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        facts = self.facts
        facts.without_gradient = [name for name, parameter in trained if parameter.grad is None]
        facts.sparse = [name for name, parameter in trained if parameter.grad is not None and parameter.grad.is_sparse]
        for name, parameter in trained:
            if parameter.grad is not None and not is_finite(parameter.grad):
                message = f"the loss of the first batch is finite, and the gradient of '{name}' is not; look at the loss"
                self._wrong(message, self._workload.compute_loss, stop=True)
        if facts.without_gradient:
            facts.notes.append(f"no gradient from the first batch: {shortened(facts.without_gradient)}")
        if facts.sparse:
            facts.notes.append(f"sparse gradients: {shortened(facts.sparse)}")

    def _evaluate(self, model: nn.Module) -> None:
        batch = next(iter(self._workload.evaluation_batches(rank=0, world_size=self._world_size, device=self._device)), None)
        if batch is None:
            self.facts.found["held out"] = "nothing, so there will be no accuracy"
            return
        with torch.no_grad():
            sums: Any = self._workload.evaluation_sums(model.eval(), batch)
        self.facts.found["held out"] = "evaluated"
        if not isinstance(sums, EvaluationSums):
            message = f"evaluation_sums() gave a {type(sums).__name__}; return a workloads.evaluation.EvaluationSums"
            self._wrong(message, self._workload.evaluation_sums)


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
    return len(firsts) == len(others) and all(a.shape == b.shape and _same(a, b) for a, b in zip(firsts, others, strict=True))


def _same(one: Tensor, other: Tensor) -> bool:
    """Elements that are not a number on either side count as equal."""
    return bool(torch.equal(one, other) or ((one == other) | (one != one) & (other != other)).all())


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
