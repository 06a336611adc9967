"""Tries a user's workload in a rank before any library starts: calls every method that a run will
call, once.

What cannot work gives one message, with the line of the user's code and the remedy. The gate finds
what needs several ranks or two runs of a step: a loss that is not repeatable, and ranks that take
the same samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from backends import Backend
from measurement.agent.ringside_agent.reporting import message_of
from measurement.agent.ringside_agent.users_lines import at_line, place_of
from measurement.errors import PlanError, about, shortened
from measurement.registry import place_of_definition
from runners.planning.workload import WorkloadSetup, steps_per_epoch
from runners.protocol import Job
from workloads import Workload
from workloads.base import EvaluationSums
from workloads.optimizers import as_one, seed_generators
from workloads.tensors import to_channels_last

if TYPE_CHECKING:  # ranks try their workload out here, and need no plan
    from measurement.plans.plan import Plan

REMEDY = (
    "call model(...) alone, whose forward() may take a switch for what to do: DDP exchanges only"
    " what passes its forward"
)
SHARED_ATTRIBUTES = ("device", "dtype")
"""Attributes that libraries' wrappers have, too."""


@contextmanager
def trying(what: str, method: object) -> Iterator[None]:
    """A context for the user's code: what it raises becomes a ``PlanError`` with its line."""
    try:
        yield
    except PlanError:
        raise
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

    def _batch(self) -> Any:
        workload = self._workload
        with trying("batches", workload.batches):
            batch = next(iter(workload.batches(**self._place)), None)
        if batch is None:
            raise wrong(
                f"batches() gave none to rank {self._place['rank']} of {self._job.world_size}; give"
                " each rank one batch at least",
                workload.batches,
            )
        with trying("count_samples", workload.count_samples):
            counted: Any = workload.count_samples(batch)
        if not isinstance(counted, int) or counted <= 0:
            raise wrong(
                f"count_samples() gave {counted!r}; return how many {workload.sample_unit} the"
                " batch holds, an int above 0",
                workload.count_samples,
            )
        return batch

    def _built_model(self) -> nn.Module:
        method = self._workload.build_model
        with trying("build_model", method):
            seed_generators(self._job.seed)
            built = method()
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
        optimizers = built if isinstance(built, Sequence) else [built]
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
            raise wrong(
                "build_optimizer() steps parameters that are not the model's; use those of the"
                " model it is given",
                method,
            )
        return optimizer

    def _step(self, batch: Any) -> None:
        workload, wrapped = self._workload, WrappedModel(self.model)
        with trying("compute_loss", workload.compute_loss):
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
        if self.missing:
            self.notes.append(f"no gradient from the first batch: {shortened(self.missing)}")
        with trying("the optimizer's step", workload.build_optimizer):
            self.optimizer.step()
        with trying("after_step", workload.after_step):
            workload.after_step(1, model=self.model, optimizer=self.optimizer)

    def _evaluate(self) -> None:
        batch = next(iter(self._workload.evaluation_batches(**self._place)), None)
        if batch is None:
            return
        with torch.no_grad():
            EvaluationSums() + self._workload.evaluation_sums(self.model.eval(), batch)


class WrappedModel(nn.Module):
    """Stands in for ``DistributedDataParallel``, which hides the attributes of the model, and whose
    every use must go through its forward pass.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.calls = 0
        """How often it was called."""

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__["_modules"]["module"]
        if name == "module":
            return module
        if name in SHARED_ATTRIBUTES and hasattr(module, name):
            return getattr(module, name)
        raise AttributeError(
            f"the wrapped model of DDP has no attribute {name}; {REMEDY}; what computes no loss is"
            f" at getattr(model, 'module', model).{name}"
        )

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """The model's."""
        self.calls += 1
        return self.module(*arguments, **named)


def _fault_of_loss(loss: Any, model: WrappedModel) -> str | None:
    """What is wrong with the result or the actions of ``compute_loss``; None if nothing is."""
    if any(parameter.grad is not None for parameter in model.parameters()):
        return "compute_loss() ran backward() by itself; add the losses up and return them as one"
    if not isinstance(loss, Tensor) or loss.dim():
        shape = f" of shape {list(loss.shape)}" if isinstance(loss, Tensor) else ""
        return (
            f"compute_loss() gave a {type(loss).__name__}{shape}; return one loss alone, the mean"
            " over the batch: a tensor of shape []"
        )
    if not model.calls:
        return f"compute_loss() does not call the model that it is given; {REMEDY}"
    if not bool(loss.isfinite()):
        return (
            f"the loss of the first batch is {loss.item()}; look at the batch, the initial weights"
            " and the loss"
        )
    return None
