"""What a workload's trial finds: facts, errors with the user's line, and what a loss and its gradients must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from pydantic import BaseModel, Field
from torch import Tensor, nn
from torch.optim import Optimizer

from backends import make_backend
from measurement.errors import PlanError, about, shortened
from measurement.users_code import message_of, paragraph, place_of, place_of_definition
from runners.planning.arms import ArmSetup
from runners.planning.wrapped_model import REMEDY, BypassedError, WrappedModel
from workloads.tensors import is_finite


class WorkloadFacts(BaseModel):
    """What was found."""

    errors: list[str] = []
    """Each is one thing that cannot work."""
    arm_errors: list[str] = []
    """Arms whose backends cannot train this model; each begins with the arm."""
    refused: str | None = None
    """Why nothing could be tried: there is no such workload."""
    notes: list[str] = []
    """What works, and should be known."""
    found: dict[str, str] = Field(default={})
    """Model, optimizer, batch, step: for the eye."""
    without_gradient: list[str] = []
    """Parameters to be trained that took no part in the loss of a batch."""
    sparse: list[str] = []
    """Parameters with sparse gradients."""
    sample_unit: str | None = None
    sources: dict[str, tuple[str, str]] = {}
    """Files that the workload is made of: where each lies, and its digest."""


class AskedArm(BaseModel):
    """An arm in plain values, for the process in which model and optimizer are built."""

    name: str | None
    """None: there is no other."""
    backend: str
    transport: str | None
    options: dict[str, Any]

    @classmethod
    def of(cls, setups: Iterable[ArmSetup]) -> list[AskedArm]:
        """Return the arms of a plan."""
        return [
            cls(name=one.name, backend=one.arm.backend, transport=one.backend.transport, options=dict(one.arm.options))
            for one in setups
        ]

    def ask(self, model: nn.Module, optimizer: Optimizer, *, missing: Sequence[str], sparse: Sequence[str]) -> list[str]:
        """Return what its backend does otherwise, see ``Backend.check_model``; a ``PlanError`` if it cannot train it."""
        backend = make_backend(self.backend, transport=self.transport, options=self.options, arm=self.name)
        with about(f"arm '{self.name}'") if self.name is not None else nullcontext():
            notes = backend.check_model(model, optimizer, missing=missing, sparse=sparse)
        return [note if self.name is None else f"arm '{self.name}': {note}" for note in notes]


class StopTrial(Exception):  # noqa: N818 - no error of ours
    """A finding after which the rest of a trial means nothing."""


class Findings:
    """Collects what is found."""

    def __init__(self) -> None:
        self.facts = WorkloadFacts()

    @contextmanager
    def trying(self, what: str, method: object) -> Iterator[None]:
        """A context of the user's code: what it raises is a finding, after which the rest is not tried."""
        try:
            yield
        except StopTrial:
            raise
        except PlanError as error:
            self.facts.errors.append(str(error))
            raise StopTrial from error
        except BypassedError as error:
            self.facts.errors.append(paragraph(str(error), place_of(error)))
            raise StopTrial from error
        except (Exception, SystemExit) as error:
            message = f"{what} raised {message_of(error)}"
            self.facts.errors.append(paragraph(message, place_of(error) or place_of_definition(method)))
            raise StopTrial from error

    def wrong(self, message: str, method: Callable[..., Any], *, stop: bool = False) -> None:
        """Note what cannot work, and where the user's method is written; ``stop``: the rest cannot be tried."""
        place = place_of_definition(method)
        self.facts.errors.append(f"{message}{f' ({place})' if place else ''}")
        if stop:
            raise StopTrial

    def judge_loss(self, loss: Any, model: WrappedModel, method: Callable[..., Any]) -> None:
        """Refuse what ``compute_loss`` must not return, or do."""
        if any(parameter.grad is not None for parameter in model.parameters()):
            self.wrong("compute_loss() ran backward() by itself; add the losses up and return them as one", method, stop=True)
        if not isinstance(loss, Tensor):
            several = isinstance(loss, tuple | list)
            inside = f" of {', '.join(type(one).__name__ for one in loss)}" if several else ""
            gans = "; losses that are stepped one after the other, as in GANs, are not supported" if several else ""
            message = f"compute_loss() gave a {type(loss).__name__}{inside}; return the loss alone, a tensor with one number{gans}"
            self.wrong(message, method, stop=True)
        if loss.numel() != 1 or loss.dim():
            message = f"compute_loss() gave a tensor of shape {list(loss.shape)}; return the mean over the batch, of shape []"
            self.wrong(message, method, stop=True)
        if not loss.requires_grad:
            message = "compute_loss() gave a loss that no parameter has a part in (requires_grad is False); do not detach() it"
            self.wrong(message, method, stop=True)
        if not model.calls:
            self.wrong(f"compute_loss() does not call the model that it is given; {REMEDY}", method, stop=True)
        if not bool(loss.isfinite()):
            self.wrong(
                f"the loss of the first batch is {loss.item()}; look at the batch, the initial weights and the loss",
                method,
                stop=True,
            )

    def judge_gradients(self, model: nn.Module, method: Callable[..., Any], *, first: bool) -> None:
        """Note parameters without gradients, and sparse ones; refuse what is not finite."""
        trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        facts, missing = self.facts, [name for name, parameter in trained if parameter.grad is None]
        new = [name for name in missing if name not in facts.without_gradient]
        facts.without_gradient += new
        if new:
            facts.notes.append(f"no gradient from the {'first' if first else 'second'} batch: {shortened(new)}")
        if not first:
            return
        facts.sparse = [name for name, parameter in trained if parameter.grad is not None and parameter.grad.is_sparse]
        for name, parameter in trained:
            if parameter.grad is not None and not is_finite(parameter.grad):
                message = f"the loss of the first batch is finite, and the gradient of '{name}' is not; look at the loss"
                self.wrong(message, method, stop=True)
        if facts.sparse:
            facts.notes.append(f"sparse gradients: {shortened(facts.sparse)}")
