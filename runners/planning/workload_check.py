"""Tries a user's workload out in a rank, before any library has started: every method that a run will call, once.

What cannot work is one line, with the line of the user's code and the remedy. What takes several ranks, or two runs of a step, is
found by the gate: a loss that is not repeatable, and ranks that take the same samples.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from backends import Backend
from measurement.errors import PlanError, shortened
from runners.planning.schedule_check import find_end
from runners.planning.trial_findings import Findings, StopTrial
from runners.planning.workload import WorkloadSetup
from runners.planning.wrapped_model import WrappedModel
from runners.protocol.messages import Job
from workloads.base import EvaluationSums
from workloads.optimizers import as_one, seed_generators
from workloads.tensors import by_pixels


def check_workload(setup: WorkloadSetup, job: Job, *, rank: int, device: torch.device, backend: Backend) -> list[str]:
    """Try a workload out on this process alone; nothing of it stays but what the workload itself keeps. Not collective.

    Returns:
        What works and should be known, a sentence each.

    Raises:
        PlanError: it cannot work, or the backend cannot train it; a finding to a line.
    """
    trial = _Trial(setup, job, rank=rank, device=device)
    findings = trial.findings
    with suppress(StopTrial):
        trial.run()
    if findings.errors:
        raise PlanError("\n".join(f"workload '{job.workload}': {error}" for error in findings.errors))
    notes = backend.check_model(trial.model, trial.optimizer, missing=findings.missing, sparse=findings.sparse)
    if findings.sparse and job.max_gradient_norm is not None:
        raise PlanError(
            f"max_gradient_norm = {job.max_gradient_norm:g}, but PyTorch clips no sparse gradients, which "
            f"{shortened(findings.sparse)} have; leave it out, or build the embedding with sparse=False"
        )
    return [*findings.notes, *(f"arm '{job.arm}': {note}" for note in notes)]


class _Trial:
    """One pass over a workload's methods, in the order in which a run calls them."""

    model: nn.Module
    optimizer: Optimizer

    def __init__(self, setup: WorkloadSetup, job: Job, *, rank: int, device: torch.device) -> None:
        self.findings = Findings()
        self._setup, self._job, self._device = setup, job, device
        self._place: dict[str, Any] = {"rank": rank, "world_size": job.world_size, "device": device}

    def run(self) -> None:
        """Try everything."""
        with self.findings.trying("constructor", self._setup.workload):
            self._workload = self._setup.build(local_batch_size=self._job.local_batch_size, seed=self._job.seed)
        workload = self._workload
        self.findings.notes += workload.data_notes()
        batch = self._batch()
        self.model = self._built_model()
        if self._job.speed.channels_last:
            batch = by_pixels(batch)
        self.optimizer = self._built_optimizer()
        self._step(batch)
        if self._job.tries:
            with self.findings.trying("evaluation_batches and evaluation_sums", workload.evaluation_sums):
                self._evaluate()
        with self.findings.trying("the schedule", workload.after_step):
            find_end(self.findings, workload, self.model, self.optimizer, needed=self._steps())

    def _batch(self) -> Any:
        method = self._workload.batches
        with self.findings.trying("batches", method):
            batch = next(iter(method(**self._place)), None)
        if batch is None:
            message = "batches() gave none to rank {rank} of {world_size}; give each rank one batch at least"
            self.findings.wrong(message.format(**self._place), method, stop=True)
        with self.findings.trying("count_samples", self._workload.count_samples):
            count: Any = self._workload.count_samples(batch)
        if not isinstance(count, int) or count <= 0:
            message = (
                f"count_samples() gave {count!r}; return how many {self._workload.sample_unit} the batch holds, an int above 0"
            )
            self.findings.wrong(message, self._workload.count_samples, stop=True)
        return batch

    def _built_model(self) -> nn.Module:
        method = self._workload.build_model
        with self.findings.trying("build_model", method):
            seed_generators(self._job.seed)
            built: Any = method()
        if not isinstance(built, nn.Module):
            self.findings.wrong(f"build_model() gave a {type(built).__name__}; return a torch.nn.Module", method, stop=True)
        tensors = built.state_dict(keep_vars=True)
        empty = [name for name, tensor in tensors.items() if is_lazy(tensor) or getattr(tensor, "is_meta", False)]
        if empty:
            message = f"build_model() gave {shortened(empty)} without values, of a lazy module or on the device 'meta'"
            message += "; do a forward pass there, such as model(torch.zeros(1, ...)), or build the model on the CPU"
            self.findings.wrong(message, method, stop=True)
        if not any(parameter.requires_grad for parameter in built.parameters()):
            self.findings.wrong("no parameter of the model has requires_grad; there is nothing to train", method, stop=True)
        with self.findings.trying("the model's move to its device", method):
            model: nn.Module = built.to(self._device).train()
            return model.to(memory_format=torch.channels_last) if self._job.speed.channels_last else model

    def _built_optimizer(self) -> Optimizer:
        method = self._workload.build_optimizer
        with self.findings.trying("build_optimizer", method):
            built: Any = method(self.model)
        given = list(built) if isinstance(built, Sequence) else [built]
        closed = [type(one).__name__ for one in given if isinstance(one, Optimizer) and _needs_closure(one)]
        if closed:
            message = f"build_optimizer() gave {closed[0]}, whose step() needs a closure, which is not supported"
            self.findings.wrong(f"{message}; take another, such as Adam", method, stop=True)
        if not given or not all(isinstance(one, Optimizer) for one in given):
            seen = " and ".join(type(one).__name__ for one in given) or "nothing"
            self.findings.wrong(
                f"build_optimizer() gave {seen}; return a torch.optim.Optimizer, or a list of them", method, stop=True
            )
        with self.findings.trying("build_optimizer", method):
            optimizer = as_one(built)
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if stepped - set(map(id, self.model.parameters())):
            message = "build_optimizer() steps parameters that are not the model's; use those of the model it is given"
            self.findings.wrong(message, method)
        trained = [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        left = [name for name, parameter in trained if id(parameter) not in stepped]
        if left:
            told = f"no optimizer steps {shortened(left)}; their gradients are computed and exchanged all the same"
            self.findings.notes.append(told)
        return optimizer

    def _step(self, batch: Any) -> None:
        workload, wrapped = self._workload, WrappedModel(self.model)
        with self.findings.trying("compute_loss", workload.compute_loss), wrapped.watched():
            loss = workload.compute_loss(wrapped, batch)
        self.findings.judge_loss(loss, wrapped, workload.compute_loss)
        with self.findings.trying("backward() of the loss", workload.compute_loss):
            loss.backward()
        self.findings.judge_gradients(self.model, workload.compute_loss)
        with self.findings.trying("the optimizer's step", workload.build_optimizer):
            self.optimizer.step()
        with self.findings.trying("after_step", workload.after_step):
            workload.after_step(1, model=self.model, optimizer=self.optimizer)

    def _steps(self) -> int | None:
        """How many steps a training takes; None: blocks go on for as long as they are given."""
        epochs, batches = self._job.tries, self._workload.batches_per_epoch(world_size=self._job.world_size)
        return epochs * batches // self._job.micro_steps if epochs and batches else None

    def _evaluate(self) -> None:
        batch = next(iter(self._workload.evaluation_batches(**self._place)), None)
        if batch is None:
            return
        with torch.no_grad():
            sums: Any = self._workload.evaluation_sums(self.model.eval(), batch)
        if not isinstance(sums, EvaluationSums):
            message = f"evaluation_sums() gave a {type(sums).__name__}; return a workloads.base.EvaluationSums"
            self.findings.wrong(message, self._workload.evaluation_sums)


def _needs_closure(optimizer: Optimizer) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
