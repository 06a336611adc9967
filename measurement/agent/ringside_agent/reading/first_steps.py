"""What is read in a script's first steps, which are not timed: its start, its batches, and the
results of its steps.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Iterable

from .. import sandbox
from ..recorder import READ_AHEAD, Recorder
from ..settings import COMPARED_STEPS, Settings
from . import batches, configuration, libraries
from .lines import TRACED_STEPS, Lines
from .script import (
    BUFFER,
    Script,
    share_start,
    state_of,
    unwrapped,
)
from .values import sketch, values_of


class FirstSteps:
    """Reads each model before its first forward pass, each batch, and each of the compared
    steps.
    """

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self._settings, self._recorder, self.script = settings, recorder, Script(settings, recorder)
        self._started: dict[str, list[float]] = {}
        self._sizes: dict[str, int] = {}
        self._gradients: dict[str, list[float]] = {}
        self._graded: set[int] = set()
        self._steps: list[dict[str, Any]] = []
        self._backwards = self._accumulated = self._seen = self._taken = 0
        self._exchanging = 0
        """Backward passes that exchange gradients: their forward pass was not in DDP's
        ``no_sync``."""
        self._sets_to_none = True
        """Whether all gradients were None when a step's first backward pass began."""
        self._prepared = self._perturbed = False
        self._called: Any = None
        self._passes_by = False
        """Whether the first forward pass was that of a wrapped module, and not of its DDP
        wrapper."""
        self.stop_forward = self.stop_autocast = lambda: None
        self.lines = Lines(self.script)

    def before_forward(self, module: Any) -> bool:
        """Called before every forward pass of a module, until the first that trains; returns
        whether this is the one.
        """
        torch: Any = sys.modules["torch"]
        if not torch.is_grad_enabled() or not any(
            parameter.requires_grad for parameter in module.parameters()
        ):
            return False
        if torch.utils.data.get_worker_info() is not None:
            return False
        self.script.record_safely(self._read_start, module)
        return True

    def _read_start(self, module: Any) -> None:
        script = self.script
        self._called = module
        script.find_models(module.parameters(), called=module)
        self._passes_by = any(wrapper.module is module for wrapper in libraries.wrappers(script))
        share_start(script)
        self._started = self._sketched(state_of(script.roots))

    def on_batch(self, iterator: Any, batch: Any) -> None:
        """Record a batch that a loader has yielded."""
        self.lines.mark("data_wait")
        self.script.record_safely(self.script.yielded.keep, iterator, batch)

    def on_loader(self, loader: Any, iterator: Any) -> None:
        """Read the settings of a loader whose iterator begins."""
        iterator._ringside = batches.Source()
        iterator._ringside.settings = (
            self.script.record_safely(configuration.of_loader, loader) or {}
        )

    def before_step(self, optimizer: Any, is_nested: bool) -> None:
        """An optimizer is about to step.

        Horovod's has not waited for its gradients yet, unless ``is_nested``.
        """
        self.lines.mark("optimizer")
        self._prepare(optimizer, is_unchanged=True)
        if is_nested or not libraries.is_horovods(optimizer):
            self._read_gradients(optimizer)

    def before_backward(self) -> None:
        """A backward pass is about to begin.

        With several optimizers, gradients that are left say nothing.
        """
        script = self.script
        self.lines.mark("backward")
        wrappers = libraries.wrappers(script)
        self._exchanging += any(
            getattr(wrapper, "require_forward_param_sync", True) for wrapper in wrappers
        )
        if self._steps and self._recorder.backwards == self._seen and len(script.optimizers) == 1:
            gradients = [
                parameter.grad
                for _, parameter in script.named_parameters()
                if parameter.grad is not None and not parameter.grad.is_sparse
            ]
            script.keeps_gradients = bool(script.keeps_gradients) or any(
                bool(grad.any()) for grad in gradients
            )
            self._sets_to_none = self._sets_to_none and not gradients

    def after_step(self, optimizer: Any, ends: bool) -> None:
        """An optimizer has stepped, or GradScaler has left its step out."""
        script = self.script
        self._prepare(optimizer, is_unchanged=False)
        self._read_gradients(optimizer)  # of an optimizer whose closure has just computed them
        recorder = self._recorder
        outside = max(0, recorder.backwards_then - self._seen)
        # LBFGS calls its closure many times
        self._accumulated += outside + min(1, recorder.backwards - self._seen - outside)
        self._seen, self._taken = recorder.backwards, self._taken + 1
        if ends:
            script.accumulation = max(1, self._accumulated // self._taken)
            self._accumulated = self._taken = 0
            self._steps.append(self._compared())
            if self._settings.perturbs and len(self._steps) == 1 and not script.is_sharded:
                parameters = [parameter for _, parameter in script.named_parameters()]
                self._perturbed = bool(script.record_safely(perturb, parameters))
            self.lines.end_step()
            if len(self._steps) == COMPARED_STEPS - TRACED_STEPS:
                self.lines.begin()

    def _prepare(self, optimizer: Any, *, is_unchanged: bool) -> None:
        """Record an optimizer that steps for the first time; with the first of all, find the
        models.
        """
        script = self.script
        if not any(known is optimizer for known in script.optimizers):
            script.stepped.append(weakref.ref(optimizer))
            # there, reading a state would be a collective
            if is_unchanged and not script.is_sharded:
                script.loaded += sum(map(has_state, optimizer.state.values()))
        if self._prepared:
            return
        self._prepared = True
        self.stop_forward()
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        script.device = trained[0].device if trained else None
        had = [id(root) for root in script.roots]
        script.find_models(trained, called=self._called)
        if script.is_sharded:
            script.note("each rank has a share of the parameters, so they are not compared")
        self._recorder.model = next(
            (root for root in map(unwrapped, script.roots[:1]) if root.training), None
        )
        changed = [id(root) for root in script.roots][: len(had)] != had
        if is_unchanged or not self._started or changed:
            self._reread_start(is_unchanged=is_unchanged)

    def _reread_start(self, *, is_unchanged: bool) -> None:
        """Read the start again, now that the optimizer is known.

        Buffers keep their values from before the first forward pass.
        """
        now = self._sketched(state_of(self.script.roots))
        before, self._started = self._started, now
        buffers = {
            name: value for name, value in before.items() if name.startswith(BUFFER) and name in now
        }
        parameters = {name: value for name, value in now.items() if not name.startswith(BUFFER)}
        if buffers and all(before.get(name) == value for name, value in parameters.items()):
            self._started.update(buffers)
        elif any(name.startswith(BUFFER) for name in now):
            self.script.note("buffers at the start were read after the first forward pass")
        if not is_unchanged:
            self.script.note("parameters at the start were read after the first step")

    def _sketched(self, state: dict[str, Any]) -> dict[str, list[float]]:
        """Sketches by name; a tensor that cannot be sketched gets a note."""
        sketches_by_name = {}
        for name, tensor in {} if self.script.is_sharded else state.items():
            try:
                sketches_by_name[name] = sketch(tensor)
                self._sizes[name] = tensor.numel()
            except Exception as error:  # noqa: BLE001 - tensors of a class of their own raise what they like
                self.script.note(
                    f"'{name}' could not be compared: {type(error).__name__}: {str(error)[:100]}"
                )
        return sketches_by_name

    def _read_gradients(self, optimizer: Any) -> None:
        """Sketch the gradients with which an optimizer steps for the first time."""
        if id(optimizer) in self._graded or self.script.is_sharded:
            return
        stepped_ids = {
            id(parameter) for group in optimizer.param_groups for parameter in group["params"]
        }
        gradients = {
            name: parameter.grad
            for name, parameter in self.script.named_parameters()
            if id(parameter) in stepped_ids and parameter.grad is not None
        }
        if gradients:
            self._graded.add(id(optimizer))
            scale = getattr(optimizer, "grad_scale", None)
            by = 1.0 if scale is None else float(scale)
            sketches = self._sketched(gradients)
            self._gradients.update(
                {name: [number / by for number in value] for name, value in sketches.items()}
            )

    def _compared(self) -> dict[str, Any]:
        """The step that has just ended, as a ``ComparedStep``."""
        script = self.script
        recorder = self._recorder
        passes, self._backwards = recorder.backwards - self._backwards, recorder.backwards
        losses = values_of(recorder.losses[recorder.losses_before :])
        learning_rates = [
            float(group["lr"])
            for optimizer in script.optimizers
            for group in optimizer.param_groups
            if group.get("lr") is not None
        ]
        script.rates += learning_rates[:1]
        samples = script.samples_of(recorder.samples())
        script.yielded.steps.append([])
        gradients, self._gradients = self._gradients, {}
        return {
            "loss": sum(losses) / len(losses) if losses else None,
            "backward_passes": passes,
            "learning_rates": learning_rates,
            "samples": samples if script.samples_from else None,
            "gradients": gradients,
            "parameters": self._sketched(dict(script.named_parameters())),
        }

    def _match(self) -> None:
        """Find out which batches each step uses. The first step may have drawn more, ahead."""
        yielded, passes = self.script.yielded, [step["backward_passes"] for step in self._steps]
        first, *drawn = map(len, yielded.steps[: len(passes)])
        used: list[str | None] | None = None
        surplus = sum(drawn) - sum(passes[1:]) if drawn else first - passes[0] - READ_AHEAD
        if surplus > 0 and self._settings.samples_per_step is None:
            self.script.is_countable = False
            self._steps = [{**step, "samples": None} for step in self._steps]
            used = [batches.combined([digest for _, digest in step]) for step in yielded.steps]
            self.script.note(
                f"{first + sum(drawn)} batches are drawn for {sum(passes)} backward passes, so it"
                " is not known how many a step uses"
            )
        elif (
            drawn and passes[1] > drawn[0] < first <= passes[0]
        ):  # several passes for a batch, and the next one was drawn
            self._recorder.reads_ahead = True
            self._steps[0]["samples"] = self._steps[1]["samples"]
        followed = yielded.used(passes, reads_ahead=self._recorder.reads_ahead)
        for step, digest in zip(self._steps, used or followed):
            step["batch"] = digest

    def _uses(self) -> dict[str, Any]:
        """Settings that the compared steps have shown."""
        passes: float = self._exchanging
        first = next(iter(self.script.optimizers), None)
        if libraries.is_horovods(first):
            passes = sum(step["backward_passes"] for step in self._steps) / getattr(
                first, "backward_passes_per_step", 1
            )
        passes_per_step = round(passes / max(1, len(self._steps)))
        uses = {
            "optimizer.empty_steps": self._recorder.without_backward,
            **({"step.exchanging_passes": passes_per_step} if passes_per_step else {}),
        }
        if self.script.keeps_gradients is False:
            uses["step.set_to_none"] = self._sets_to_none
        if self._passes_by:
            uses["ddp.is_passed_by"] = True
        return {**self.lines.uses, **uses}

    def report(self) -> dict[str, Any]:
        """The fields of ``ScriptReport``, after the compared steps."""
        script = self.script
        script.record_safely(self._match)
        return {
            "rank": script.place.rank,
            "configuration": {**configuration.read(script), **self._uses()},
            "defaults": script.record_safely(libraries.defaults, script) or {},
            "started": self._started,
            "sizes": self._sizes,
            "steps": self._steps,
            "perturbed": self._perturbed,
            "sharded": script.is_sharded,
            "samples_from": script.samples_from,
            "written_files": sandbox.written(),
            "lines": self.lines.report(),
            "trackers": [name for name in self._settings.trackers if name in sys.modules],
            **(script.record_safely(self._read_end) or {}),
            "notes": script.notes,
        }

    def _read_end(self) -> dict[str, Any]:
        script = self.script
        trained = {id(parameter) for _, parameter in script.named_parameters()}
        roots = [
            root
            for root in script.roots
            if any(id(parameter) in trained for parameter in root.parameters())
        ]
        # all of its parameters may have been replaced
        script.roots = roots or script.roots[:1]
        state = state_of(script.roots)
        buffers = {name: tensor for name, tensor in state.items() if name.startswith(BUFFER)}
        without = [
            name
            for name, tensor in ({} if script.is_sharded else state).items()
            if name not in buffers and tensor.grad is not None and id(tensor) not in trained
        ]
        return {"buffers": self._sketched(buffers), "without_optimizer": without}


def perturb(parameters: Iterable[Any]) -> bool:
    """Flip the last bit of every number of parameters in float32 or float64, about half of them
    up and half down; the same on all ranks. Returns whether there are any.

    Coarser dtypes are left: their last place may be more than a step changes. No graph that the
    script still holds counts it as a change of its own (``.data``).
    """
    torch: Any = sys.modules["torch"]
    bits = {torch.float32: torch.int32, torch.float64: torch.int64}
    fine = [parameter.data for parameter in parameters if parameter.dtype in bits]
    for values in fine:
        values.view(bits[values.dtype]).bitwise_xor_(1)
    return bool(fine)


def has_state(state: dict[str, Any]) -> bool:
    """Whether an optimizer's state of a parameter is more than zeros and a count, as Horovod's
    broadcast leaves a new one.
    """
    return any(bool(value.any()) for value in state.values() if getattr(value, "ndim", 0))
