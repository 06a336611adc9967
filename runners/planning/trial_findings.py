"""What a workload's trial finds: errors with the user's line, notes, and what a loss and its gradients must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from measurement.errors import PlanError, shortened
from measurement.users_code import message_of, paragraph, place_of, place_of_definition
from runners.planning.wrapped_model import REMEDY, BypassedError, WrappedModel
from workloads.tensors import is_finite


class StopTrial(Exception):  # noqa: N818 - no error of ours
    """A finding after which the rest of a trial means nothing."""


class Findings:
    """Collects what is found."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        """Each is one thing that cannot work."""
        self.notes: list[str] = []
        """What works, and should be known."""
        self.missing: list[str] = []
        """Parameters to be trained that took no part in the loss."""
        self.sparse: list[str] = []
        """Parameters with sparse gradients."""

    @contextmanager
    def trying(self, what: str, method: object) -> Iterator[None]:
        """A context of the user's code: what it raises is a finding, after which the rest is not tried."""
        try:
            yield
        except StopTrial:
            raise
        except PlanError as error:
            self.errors.append(str(error))
            raise StopTrial from error
        except BypassedError as error:
            self.errors.append(paragraph(str(error), place_of(error)))
            raise StopTrial from error
        except (Exception, SystemExit) as error:
            message = f"{what} raised {message_of(error)}"
            self.errors.append(paragraph(message, place_of(error) or place_of_definition(method)))
            raise StopTrial from error

    def wrong(self, message: str, method: Callable[..., Any], *, stop: bool = False) -> None:
        """Note what cannot work, and where the user's method is written; ``stop``: the rest cannot be tried."""
        place = place_of_definition(method)
        self.errors.append(f"{message}{f' ({place})' if place else ''}")
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

    def judge_gradients(self, model: nn.Module, method: Callable[..., Any]) -> None:
        """Note parameters without gradients, and sparse ones; refuse what is not finite."""
        trained = [(name, parameter.grad) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.missing = [name for name, gradient in trained if gradient is None]
        self.sparse = [name for name, gradient in trained if gradient is not None and gradient.is_sparse]
        for name, gradient in trained:
            if gradient is not None and not is_finite(gradient):
                message = f"the loss of the first batch is finite, and the gradient of '{name}' is not; look at the loss"
                self.wrong(message, method, stop=True)
        for what, names in (("no gradient from the first batch", self.missing), ("sparse gradients", self.sparse)):
            if names:
                self.notes.append(f"{what}: {shortened(names)}")
