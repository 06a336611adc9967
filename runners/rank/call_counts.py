"""Counts what training steps call in the parity gate: forward, backward, the optimizer's step, and the workload's own hooks.

An arm that does less than another is faster for that reason alone. Everything here hangs on the gate's model and optimizer, and
goes with them: timed blocks have a model of their own, on which nothing is counted.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from backends.base import BuildOptimizer, Prepared
from runners.protocol.gate_verdict import STEP_HOOKS
from workloads.optimizers import members_of
from workloads.tensors import tensors_in

FORWARD, BACKWARD, STEP = "the model's forward", "backward through the model", "the optimizer's step"
MODULE_HOOKS = {
    "_forward_pre_hooks": "the model's forward pre-hooks",
    "_forward_hooks": "the model's forward hooks",
    "_backward_pre_hooks": "the model's backward pre-hooks",
    "_backward_hooks": "the model's backward hooks",
}
PARAMETER_HOOKS = {"_backward_hooks": "the parameters' hooks", "_post_accumulate_grad_hooks": "the parameters' hooks"}
OPTIMIZER_HOOKS = dict(zip(("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"), STEP_HOOKS, strict=True))
"""PyTorch's attributes that hold hooks by number, and what is said of them."""
ONCE_A_COPY = {FORWARD, BACKWARD, *MODULE_HOOKS.values()}


class CallCounter:
    """Counts calls on this rank. First the model is watched, then the optimizer is built, then both are joined."""

    def __init__(self) -> None:
        self._calls: list[str] = []
        self._kinds: set[str] = {FORWARD, BACKWARD, STEP}
        self._copies, self._owns_step = 1, False

    def watch_model(self, model: nn.Module) -> None:
        """Count the hooks that the workload put on a model, and on its modules and parameters. Before ``prepare``."""
        for table, kind in _model_hooks(model):
            self._watch(table, set(table), kind)

    def building(self, build_optimizer: BuildOptimizer) -> BuildOptimizer:
        """``build_optimizer``, whose optimizer's hooks are counted, and those that it puts on the model meanwhile."""

        def build(model: nn.Module) -> Optimizer:
            before = {id(table): set(table) for table, _ in _model_hooks(model)}
            optimizer = build_optimizer(model)
            for table, kind in _model_hooks(model):
                self._watch(table, set(table) - before.get(id(table), set()), kind)
            for member in members_of(optimizer):
                for table, kind in _tables(member, OPTIMIZER_HOOKS):
                    self._watch(table, set(table), kind)
            return optimizer

        return build

    def watch_prepared(self, prepared: Prepared) -> None:
        """Count forward and backward passes and optimizer steps, and begin at 0. After ``prepare``."""

        def begin_forward(*_: Any) -> None:
            self._calls.append(FORWARD)

        def end_forward(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
            for _, tensor in tensors_in(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(begin_backward)
                    return

        def begin_backward(_gradient: Tensor) -> None:
            self._calls.append(BACKWARD)

        watched = prepared.model if hasattr(prepared.model, "_orig_mod") else prepared.bare  # what is compiled counts unlike
        if not isinstance(watched, torch.jit.ScriptModule):  # which takes no hooks
            watched.register_forward_pre_hook(begin_forward)
            watched.register_forward_hook(end_forward)
        optimizer: Any = prepared.optimizer
        optimizer.step = self._counted(optimizer.step, STEP)
        self._copies, self._owns_step = prepared.copies, prepared.owns_step
        self._calls.clear()

    def counts(self) -> dict[str, int]:
        """Calls since ``watch_prepared``, by what was called; of hooks, all of a kind together.

        Without the optimizer's step where an engine steps by other means than ``optimizer.step``.
        """
        calls = Counter(self._calls)
        if self._owns_step and not calls[STEP]:
            self._kinds.discard(STEP)
        return {kind: calls[kind] // (self._copies if kind in ONCE_A_COPY else 1) for kind in sorted(self._kinds)}

    def _watch(self, table: Any, keys: set[int], kind: str) -> None:
        for key in keys:
            table[key] = self._counted(table[key], kind)
            self._kinds.add(kind)

    def _counted(self, call: Callable[..., Any], kind: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def counted(*arguments: Any, **more: Any) -> Any:
            self._calls.append(kind)
            return call(*arguments, **more)

        return counted


class SkippedParameters:
    """Watches a model's steps; made after ``prepare``, and goes with the model."""

    def __init__(self, prepared: Prepared) -> None:
        self.names: set[str] = set()
        """Parameters to be trained that some step left out."""
        self.steps_zeros = False
        """Whether the library fills in zeros then, which its optimizer steps: weight decay and momentum change the parameter."""
        self._ever: set[str] = set()
        self._prepared = prepared
        self._trained = {name: one for name, one in prepared.bare.named_parameters() if one.requires_grad}
        self._seen: set[str] = set()
        if not prepared.is_sharded:
            for name, parameter in self._trained.items():
                parameter.register_post_accumulate_grad_hook(lambda _, name=name: self._seen.add(name))

    def note(self) -> None:
        """Note what the step that was just taken left out; call it after each."""
        if self._prepared.is_sharded:  # whose gradients come by no hook of a parameter, and are not filled in
            self._seen = {name for name, one in self._trained.items() if one.grad is not None}
        left_out = self._trained.keys() - self._seen
        gradients = [self._trained[name].grad for name in left_out]
        self.steps_zeros |= any(one is not None and not bool(one.any()) for one in gradients)
        self.names |= left_out
        self._ever |= self._seen
        self._seen = set()

    @property
    def some_steps(self) -> set[str]:
        """Those of ``names`` that another step had."""
        return self.names & self._ever


def _model_hooks(model: nn.Module) -> Iterator[tuple[dict[int, Any], str]]:
    for module in model.modules():
        yield from _tables(module, MODULE_HOOKS)
    for parameter in model.parameters():
        yield from _tables(parameter, PARAMETER_HOOKS)


def _tables(owner: Any, names: dict[str, str]) -> Iterator[tuple[dict[int, Any], str]]:
    """The tables of hooks that are not empty: a tensor without hooks has none."""
    for name, kind in names.items():
        table = getattr(owner, name, None)
        if table:
            yield table, kind
