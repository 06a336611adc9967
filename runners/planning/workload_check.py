"""Tries a user's workload in a rank before any library starts: calls every method that a run will
call, once.

What cannot work gives one message, with the line of the user's code and the remedy. The gate finds
what needs several ranks or two runs of a step: a loss that is not repeatable, and ranks that take
the same samples.
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from backends import Backend
from measurement.agent.ringside_agent.reporting import message_of
from measurement.agent.ringside_agent.users_lines import at_line, place_of
from measurement.errors import PlanError, about, shortened
from measurement.users_code import place_of_definition
from runners.planning.workload import WorkloadSetup, steps_per_epoch
from runners.planning.wrapped_model import REMEDY, BypassedError, WrappedModel
from runners.protocol.messages import Job
from workloads import Workload
from workloads.base import EvaluationSums
from workloads.optimizers import as_one, members_of, seed_generators
from workloads.tensors import to_channels_last

if TYPE_CHECKING:  # ranks try their workload out here, and need no plan
    from measurement.plans.plan import Plan

MAX_STEPS = 20_000
MAX_SECONDS = 1.0
SHORT_SCHEDULE = 1000
"""A schedule that ends within so many steps cannot be measured, unless the run is known to take
fewer."""


@contextmanager
def trying(what: str, method: object) -> Iterator[None]:
    """A context for the user's code: what it raises becomes a ``PlanError`` with its line."""
    try:
        yield
    except PlanError:
        raise
    except BypassedError as error:
        raise PlanError(str(at_line(str(error), place_of(error)))) from error
    except (Exception, SystemExit) as error:
        place = place_of(error) or place_of_definition(method)
        raise PlanError(str(at_line(f"{what} raised {message_of(error)}", place))) from error


def wrong(message: str, method: object) -> PlanError:
    """Return an error that names where the user's method is written."""
    place = place_of_definition(method)
    return PlanError(f"{message}{f' ({place})' if place else ''}")


def build_here(setup: WorkloadSetup, *, local_batch_size: int, seed: int) -> Workload:
    """Make a workload in this process, which is no rank; raises a ``PlanError`` if its constructor
    raises anything.
    """
    with trying("constructor", setup.workload):
        return setup.build(local_batch_size=local_batch_size, seed=seed)


def require_data(setup: WorkloadSetup, *, local_batch_size: int, seed: int) -> None:
    """Have a workload look at its data; raises a ``PlanError`` where it cannot be made, or its data
    is missing or damaged.
    """
    workload = build_here(setup, local_batch_size=local_batch_size, seed=seed)
    with trying("require_data", workload.require_data):
        workload.require_data()


def require_epochs(plan: Plan, setup: WorkloadSetup) -> None:
    """Check that a workload has epochs, if the plan trains to the end on this machine.

    On other hosts the ranks check it.

    Raises:
        PlanError: the plan has training, but the workload has no epochs, too few samples for one
            step, or no data.
    """
    if plan.training is None or plan.hosts is not None:
        return
    workload = build_here(setup, local_batch_size=plan.local_batch_size, seed=plan.seed)
    with trying("batches_per_epoch", workload.batches_per_epoch):
        steps_per_epoch(
            workload,
            reference=plan.workload,
            world_size=plan.world_size,
            micro_steps=plan.micro_steps,
        )


def check_workload(
    setup: WorkloadSetup, job: Job, *, rank: int, device: torch.device, backend: Backend
) -> list[str]:
    """Try a workload in this process alone; nothing stays but what the workload itself keeps.

    Not collective.

    Returns:
        Notes on what works but should be known, a sentence each.

    Raises:
        PlanError: it cannot work, or the backend cannot train it.
    """
    trial = _Trial(setup, job, rank=rank, device=device)
    with about(f"workload '{job.workload}'"):
        trial.run()
    notes = backend.check_model(
        trial.model, trial.optimizer, missing=trial.missing, sparse=trial.sparse
    )
    if trial.sparse and job.max_gradient_norm is not None:
        raise PlanError(
            f"max_gradient_norm = {job.max_gradient_norm:g}, but PyTorch clips no sparse gradients,"
            f" which {shortened(trial.sparse)} have; leave it out, or build the embedding with"
            " sparse=False"
        )
    return [*trial.notes, *(f"arm '{job.arm}': {note}" for note in notes)]


class _Trial:
    """One pass over a workload's methods, in the order in which a run calls them."""

    model: nn.Module
    optimizer: Optimizer
    missing: Sequence[str]
    """Parameters to be trained that took no part in the loss."""
    sparse: Sequence[str]
    """Parameters with sparse gradients."""

    def __init__(self, setup: WorkloadSetup, job: Job, *, rank: int, device: torch.device) -> None:
        self.notes: list[str] = []
        """What works, but should be known."""
        self._setup, self._job, self._device = setup, job, device
        self._place: dict[str, Any] = {"rank": rank, "world_size": job.world_size, "device": device}

    def run(self) -> None:
        """Try everything; raises a ``PlanError`` for what cannot work."""
        self._workload = build_here(
            self._setup, local_batch_size=self._job.local_batch_size, seed=self._job.seed
        )
        batch = self._batch()
        self.model = self._built_model()
        if self._job.speed.channels_last:
            batch = to_channels_last(batch)
        self.optimizer = self._built_optimizer()
        self._step(batch)
        if self._job.tries:
            with trying("evaluation_batches and evaluation_sums", self._workload.evaluation_sums):
                self._evaluate()
        self._find_end()

    def _batch(self) -> Any:
        method = self._workload.batches
        with trying("batches", method):
            batch = next(iter(method(**self._place)), None)
        if batch is None:
            message = (
                "batches() gave none to rank {rank} of {world_size}; give each rank one batch at"
                " least"
            )
            raise wrong(message.format(**self._place), method)
        with trying("count_samples", self._workload.count_samples):
            counted: Any = self._workload.count_samples(batch)
        if not isinstance(counted, int) or counted <= 0:
            message = (
                f"count_samples() gave {counted!r}; return how many {self._workload.sample_unit}"
                " the batch holds"
            )
            raise wrong(f"{message}, an int above 0", self._workload.count_samples)
        return batch

    def _built_model(self) -> nn.Module:
        method = self._workload.build_model
        with trying("build_model", method):
            seed_generators(self._job.seed)
            built: Any = method()
        if not isinstance(built, nn.Module):
            raise wrong(
                f"build_model() gave a {type(built).__name__}; return a torch.nn.Module", method
            )
        tensors = built.state_dict(keep_vars=True)
        empty = [
            name
            for name, tensor in tensors.items()
            if is_lazy(tensor) or getattr(tensor, "is_meta", False)
        ]
        if empty:
            message = (
                f"build_model() gave {shortened(empty)} without values, of a lazy module or on the"
                " device 'meta'"
            )
            message += (
                "; do a forward pass there, such as model(torch.zeros(1, ...)), or build the model"
                " on the CPU"
            )
            raise wrong(message, method)
        if not any(parameter.requires_grad for parameter in built.parameters()):
            raise wrong(
                "no parameter of the model has requires_grad; there is nothing to train", method
            )
        with trying("the model's move to its device", method):
            model: nn.Module = built.to(self._device).train()
            return (
                model.to(memory_format=torch.channels_last)
                if self._job.speed.channels_last
                else model
            )

    def _built_optimizer(self) -> Optimizer:
        method = self._workload.build_optimizer
        with trying("build_optimizer", method):
            built: Any = method(self.model)
        optimizers = list(built) if isinstance(built, Sequence) else [built]
        with_closure = [
            type(member).__name__
            for member in optimizers
            if isinstance(member, Optimizer) and _needs_closure(member)
        ]
        if with_closure:
            message = (
                f"build_optimizer() gave {with_closure[0]}, whose step() needs a closure, which is"
                " not supported"
            )
            raise wrong(f"{message}; take another, such as Adam", method)
        if not optimizers or not all(isinstance(member, Optimizer) for member in optimizers):
            types = " and ".join(type(member).__name__ for member in optimizers) or "nothing"
            raise wrong(
                f"build_optimizer() gave {types}; return a torch.optim.Optimizer, or a list of"
                " them",
                method,
            )
        with trying("build_optimizer", method):
            optimizer = as_one(built)
        stepped = {
            id(parameter) for group in optimizer.param_groups for parameter in group["params"]
        }
        if stepped - set(map(id, self.model.parameters())):
            message = (
                "build_optimizer() steps parameters that are not the model's; use those of the"
                " model it is given"
            )
            raise wrong(message, method)
        unstepped = [
            name
            for name, member in self.model.named_parameters()
            if member.requires_grad and id(member) not in stepped
        ]
        if unstepped:
            self.notes.append(
                f"no optimizer steps {shortened(unstepped)}; their gradients are computed and"
                " exchanged all the same"
            )
        return optimizer

    def _step(self, batch: Any) -> None:
        workload, wrapped = self._workload, WrappedModel(self.model)
        with trying("compute_loss", workload.compute_loss), wrapped.watched():
            loss = workload.compute_loss(wrapped, batch)
        fault = _fault_of_loss(loss, wrapped)
        if fault:
            raise wrong(fault, workload.compute_loss)
        with trying("backward() of the loss", workload.compute_loss):
            loss.backward()
        trained = [
            (name, parameter.grad)
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        ]
        self.missing = [name for name, gradient in trained if gradient is None]
        self.sparse = [
            name for name, gradient in trained if gradient is not None and gradient.is_sparse
        ]
        for what, names in (
            ("no gradient from the first batch", self.missing),
            ("sparse gradients", self.sparse),
        ):
            self.notes += [f"{what}: {shortened(names)}"] if names else []
        with trying("the optimizer's step", workload.build_optimizer):
            self.optimizer.step()
        with trying("after_step", workload.after_step):
            workload.after_step(1, model=self.model, optimizer=self.optimizer)

    def _evaluate(self) -> None:
        batch = next(iter(self._workload.evaluation_batches(**self._place)), None)
        if batch is None:
            return
        with torch.no_grad():
            sums: Any = self._workload.evaluation_sums(self.model.eval(), batch)
        if not isinstance(sums, EvaluationSums):
            message = (
                f"evaluation_sums() gave a {type(sums).__name__}; return a"
                " workloads.base.EvaluationSums"
            )
            raise wrong(message, self._workload.evaluation_sums)

    def _find_end(self) -> None:
        """Find after how many steps the schedule ends; refuse one that ends too early for any run.

        Nothing is trained for it.

        ``after_step`` and the optimizer's step hooks are called as so many steps would, so that
        nothing can be used afterwards.
        """
        needed = self._steps()
        members = members_of(self.optimizer)
        before = [hook for member in members for hook in member._optimizer_step_pre_hooks.values()]
        hooks = [
            *before,
            *(hook for member in members for hook in member._optimizer_step_post_hooks.values()),
        ]
        if not hooks and type(self._workload).after_step is Workload.after_step:
            return
        deadline = time.monotonic() + MAX_SECONDS
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of schedulers that see no step of the optimizer
            for step in count(2):
                if step > (needed or MAX_STEPS) or time.monotonic() > deadline:
                    return
                try:
                    for hook in hooks:
                        hook(self.optimizer, (), {})
                    self._workload.after_step(step, model=self.model, optimizer=self.optimizer)
                except Exception as error:
                    message = (
                        f"the schedule ends after {step - 1} steps: after_step, or a hook of the"
                        " optimizer, then raises "
                    )
                    remedy = (
                        "let it go on for as many steps as a run takes, such as with a larger"
                        " total_steps"
                    )
                    message = str(
                        at_line(f"{message}{message_of(error)}; {remedy}", place_of(error))
                    )
                    if needed or step <= SHORT_SCHEDULE:
                        raise PlanError(message) from error
                    self.notes.append(message)
                    return

    def _steps(self) -> int | None:
        """Steps that a training takes; None for blocks, whose number is not known here."""
        epochs, batches = (
            self._job.tries,
            self._workload.batches_per_epoch(world_size=self._job.world_size),
        )
        return epochs * batches // self._job.micro_steps if epochs and batches else None


def _fault_of_loss(loss: Any, model: WrappedModel) -> str | None:
    """What is wrong with the result or the actions of ``compute_loss``; None if nothing is."""
    if any(parameter.grad is not None for parameter in model.parameters()):
        return "compute_loss() ran backward() by itself; add the losses up and return them as one"
    if not isinstance(loss, Tensor):
        several = isinstance(loss, tuple | list)
        inside = f" of {', '.join(type(part).__name__ for part in loss)}" if several else ""
        gans = (
            "; losses that are stepped one after the other, as in GANs, are not supported"
            if several
            else ""
        )
        return (
            f"compute_loss() gave a {type(loss).__name__}{inside}; return the loss alone, a tensor"
            f" with one number{gans}"
        )
    if loss.numel() != 1 or loss.dim():
        return (
            f"compute_loss() gave a tensor of shape {list(loss.shape)}; return the mean over the"
            " batch, of shape []"
        )
    if not loss.requires_grad:
        return (
            "compute_loss() gave a loss that no parameter has a part in (requires_grad is False);"
            " do not detach() it"
        )
    if not model.calls:
        return f"compute_loss() does not call the model that it is given; {REMEDY}"
    if not bool(loss.isfinite()):
        return (
            f"the loss of the first batch is {loss.item()}; look at the batch, the initial weights"
            " and the loss"
        )
    return None


def _needs_closure(optimizer: Optimizer) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
