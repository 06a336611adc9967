"""The training loop of every arm: build, step, block. It is independent of the backend.

A rank's batches start again after the last.
"""

from __future__ import annotations

import gc
import math
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from backends import Backend
from backends.base import BuildOptimizer, Prepared, trained_parameters
from measurement.agent.ringside_agent.machine import (
    own_threads,
    read_threads,
    threads_between,
)
from measurement.agent.ringside_agent.place import World
from measurement.agent.ringside_agent.reading.values import hyperparameters, some_elements
from measurement.errors import PlanError
from measurement.plans.settings import SpeedSettings
from measurement.records.block import PHASES, RankSteps, ThreadTimes
from measurement.records.record import Case
from measurement.step_timer import StepTimer
from runners.protocol import DriftReport
from runners.rank.precision import StepPrecision
from workloads import Workload
from workloads.optimizers import IsolatedRng, as_one, members_of, seed_generators
from workloads.tensors import to_channels_last

LEARNING_RATE = "lr"
"""The name that PyTorch's optimizers have for it."""

DATA_WAIT, FORWARD, BACKWARD, OPTIMIZER, _ = range(len(PHASES))
DRIFT_ELEMENTS = 32
"""How many elements of each parameter are compared between ranks; a step changes nearly all."""


class StepOutputs:
    """Losses and correct predictions of steps, kept on the device until they are read after the
    last step.
    """

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._hits: list[Tensor | None] = []

    def add(self, loss: Tensor, hits: Tensor | None) -> None:
        """Keep the outputs of a micro-step. Does not wait for the device."""
        self._losses.append(loss.detach())
        self._hits.append(hits)

    def losses(self, *, micro_steps: int) -> list[float]:
        """The loss of each step: the mean over its micro-steps."""
        means: list[float] = (
            torch.stack(self._losses).double().reshape(-1, micro_steps).mean(dim=1).tolist()
        )
        return means

    def hits(self) -> tuple[int, int] | None:
        """The numbers of top-1 and top-5 hits; None if the workload does not count them."""
        counted = [hits for hits in self._hits if hits is not None]
        if len(counted) < len(self._hits):
            return None
        first, among_five = torch.stack(counted).sum(dim=0).tolist()
        return first, among_five


@dataclass(kw_only=True, eq=False)
class Trainer:
    """One rank's model, optimizer and batches."""

    cases: ClassVar[Mapping[str, Case]] = {}
    """The cases of a micro-benchmark, by name: a training has none."""
    workload: Workload
    backend: Backend
    world: World
    device: torch.device
    seed: int
    step_precision: StepPrecision
    speed: SpeedSettings = field(default_factory=SpeedSettings)
    threads_before: frozenset[int] = field(default_factory=lambda: frozenset(own_threads()))
    """Threads that existed before the backend was set up, so not the library's."""
    prepared: Prepared | None = field(default=None, init=False)
    steps_taken: int = field(default=0, init=False)
    """Since the model was built."""
    _has_begun: bool = field(default=False, init=False)
    """Whether a block has trained on the batches."""
    _before_local: dict[str, list[float]] | None = field(default=None, init=False)
    """Samples of the parameters before the model's first steps without exchange; None: it has taken
    none."""
    _model: dict[str, int] = field(default_factory=dict, init=False)
    """The model's size, counted before a library may empty its parameters."""
    _rates: list[float] = field(default_factory=list, init=False)
    """Learning rates after each of the model's blocks: different schedules may end at the same
    rate."""

    def __post_init__(self) -> None:
        self.micro_steps = self.backend.micro_steps
        self.batches = Batches(self.workload, self.world, self.device)
        self.has_after_step = type(self.workload).after_step is not Workload.after_step

    def to_channels_last(self, batch: Any) -> Any:
        """Convert a batch's images to channels-last, if asked."""
        return to_channels_last(batch) if self.speed.channels_last else batch

    def another_workload(self, *, local_batch_size: int | None = None) -> Workload:
        """Return a new workload with the same arguments, for another model: a workload may keep
        state of its model.

        ``local_batch_size``: None: this one's.
        """
        workload = self.workload
        seed_generators(workload.seed)
        return type(workload)(
            local_batch_size=local_batch_size or workload.local_batch_size,
            seed=workload.seed,
            options=workload.options,
        )

    def build_bare(self, *, seed: int | None = None, workload: Workload | None = None) -> nn.Module:
        """Build a model without wrapper, in training mode, on this rank's device; ``workload``:
        None: the one that is trained.
        """
        seed_generators(self.seed if seed is None else seed)
        model = (workload or self.workload).build_model().to(self.device).train()
        return model.to(memory_format=torch.channels_last) if self.speed.channels_last else model

    def build(self) -> None:
        """Build model, optimizer and wrapper again. Collective."""
        self.release()
        self.join(self.build_bare())

    def evaluation_model(self) -> nn.Module:
        """A model that each rank can run by itself, with the current parameters and buffers.

        Collective if they are sharded.
        """
        if not self.joined.is_sharded:
            return self.joined.bare
        parameters = self.joined.full_parameters()
        with torch.random.fork_rng():
            whole = self.build_bare(workload=self.another_workload())
        whole.load_state_dict(parameters)
        return whole

    def join(self, bare: nn.Module, *, build_optimizer: BuildOptimizer | None = None) -> None:
        """Have the backend join the model and its optimizer with those of the other ranks.

        Collective.
        """
        self.step_precision.start()
        if self.speed.sync_batchnorm:
            bare = self.backend.synchronize_batch_norm(bare)
        trained = [parameter for parameter in bare.parameters() if parameter.requires_grad]
        self._model = {
            "parameters": sum(p.numel() for p in bare.parameters()),
            "gradient_tensors": len(trained),
            "gradient_bytes": sum(p.numel() * p.element_size() for p in trained),
            "buffer_bytes": sum(b.numel() * b.element_size() for b in bare.buffers()),
        }
        build = self.workload.build_optimizer
        prepared = self.backend.prepare(
            bare, build_optimizer or (lambda model: as_one(build(model)))
        )
        self.step_precision.require_fit(prepared)
        if self.speed.compile:
            prepared.compile()
        self.prepared, self.steps_taken, self._before_local, self._rates = prepared, 0, None, []

    @property
    def gradient_scale(self) -> float | None:
        """The backend's; None with synchronised batch norm, where gradients are no linear function
        of the ranks' local ones.
        """
        return (
            None
            if self.speed.sync_batchnorm and self.world.world_size > 1
            else self.backend.gradient_scale
        )

    @property
    def joined(self) -> Prepared:
        """The model and its optimizer, once built."""
        assert self.prepared is not None, "nothing has been built"
        return self.prepared

    def release(self) -> None:
        """Drop model and optimizer.

        Wrappers hold reference cycles, so collect garbage now and not inside a step.
        """
        self.prepared = None
        gc.collect()

    def step(
        self,
        timer: StepTimer,
        *,
        batches: Iterator[Any] | None = None,
        outputs: StepOutputs | None = None,
    ) -> int:
        """Take and time one optimizer step; returns this rank's samples. Collective unless local.

        ``batches``: None: the trainer's. ``outputs`` keeps losses and correct predictions; None:
        they are not kept.
        """
        joined, samples = self.joined, 0
        batches = map(self.to_channels_last, self.batches if batches is None else batches)
        ready = (
            list(islice(batches, self.micro_steps)) if self.workload.weighs_micro_batches else []
        )
        for micro_step in range(1, self.micro_steps + 1):
            batch = ready[micro_step - 1] if ready else next(batches)
            timer.mark(DATA_WAIT)
            if micro_step == 1:
                joined.zero_grad()
            with nullcontext() if micro_step == self.micro_steps else joined.accumulating():
                loss = self._loss(joined.model, batch, outputs)
                if self.micro_steps > 1:
                    loss = loss * self.share_of(batch, ready)
                timer.mark(FORWARD)
                self.step_precision.backward(joined, loss)
                timer.mark(BACKWARD)
            samples += self.workload.count_samples(batch)
        self.step_precision.step(joined)
        self.steps_taken += 1
        timed = self.workload.after_step_is_timed
        models: dict[str, Any] = {"model": joined.bare, "optimizer": joined.optimizer}
        if timed:
            self.workload.after_step(self.steps_taken, **models)
        timer.mark(OPTIMIZER)
        timer.end_step()
        if not timed:
            self.workload.after_step(self.steps_taken, **models)
            timer.skip()
        return samples

    def share_of(self, batch: Any, batches: Sequence[Any]) -> float:
        """A micro-batch's share of its step's loss: equal, or by its samples if ``batches`` has all
        of the step.
        """
        if not batches:
            return 1 / self.micro_steps
        return self.workload.count_samples(batch) / sum(map(self.workload.count_samples, batches))

    def _loss(self, model: nn.Module, batch: Any, outputs: StepOutputs | None) -> Tensor:
        with self.step_precision.forward():
            if outputs is None:
                return self.workload.compute_loss(model, batch)
            loss, hits = self.workload.compute_loss_and_hits(model, batch)
            outputs.add(loss, hits)
            return loss

    def run_block(self, *, steps: int, warmup_steps: int, local: bool) -> RankSteps:
        """Build the model if needed, warm up, wait for all ranks, and time ``steps`` steps.

        Collective.

        The first block warms up until all batches that were loaded before it are used.
        """
        began = time.perf_counter()
        if self.prepared is None:
            self.build()
        if not self._has_begun:  # its loaders have had time to fill their queue
            self._has_begun = True
            warmup_steps = max(
                warmup_steps, math.ceil((self.workload.prefetched_batches + 1) / self.micro_steps)
            )
        timer = StepTimer(self.device)
        with self._local() if local else nullcontext():
            timer.start()
            for _ in range(warmup_steps):
                self.step(timer)
            before = read_threads()
            synchronize_ranks(self.backend, self.device)
            scale = self.step_precision.scaler.get_scale()
            untimed_s = time.perf_counter() - began
            restarts, faults = self.batches.restarts, _page_faults()
            timer.start()
            samples = [self.step(timer) for _ in range(steps)]
            phases_s = timer.read()
            faults = _page_faults() - faults
            threads = threads_between(
                before, read_threads(), is_library=lambda thread: thread not in self.threads_before
            )
            skipped = self.step_precision.skipped_since(scale)
        self._rates += hyperparameters(self.joined.optimizer.param_groups).get(LEARNING_RATE, [])
        return RankSteps(
            rank=self.world.rank,
            untimed_s=untimed_s,
            samples=samples,
            phases_s=phases_s,
            skipped_steps=skipped,
            restarts=self.batches.restarts - restarts,
            threads=ThreadTimes(**threads) if threads else None,
            page_faults=faults,
        )

    @contextmanager
    def _local(self) -> Iterator[None]:
        """A context of steps without exchange."""
        if self._before_local is None:
            self._before_local = sampled(self.joined.bare)
        with self.joined.local_only(), self.step_precision.local():
            yield

    def drift(self, *, rates: Sequence[float] = ()) -> DriftReport | None:
        """What must be equal on all ranks; None if nothing is built.

        Not collective. ``rates``: more learning rates.
        """
        if self.prepared is None:
            return None
        bare, numbers = self.prepared.bare, hyperparameters(self.prepared.optimizer.param_groups)
        numbers[LEARNING_RATE] = [*rates, *self._rates, *numbers.get(LEARNING_RATE, [])]
        if self._before_local is None:
            return DriftReport(hyperparameters=numbers, parameters=sampled(bare))
        rates = numbers[LEARNING_RATE]  # other values may depend on a rank's local gradients
        return DriftReport(hyperparameters={LEARNING_RATE: rates}, parameters=self._before_local)

    def describe(self) -> dict[str, Any]:
        """Describe the model that is trained, for the rank's report; ``kept_bytes`` are a share if
        the backend shards.
        """
        description: dict[str, Any] = {
            "seed": self.seed,
            "local_batch_size": self.workload.local_batch_size,
            "micro_steps": self.micro_steps,
        }
        if self.prepared is None:
            return description
        bare, optimizer = self.prepared.bare, self.prepared.optimizer
        names = [type(member).__name__ for member in members_of(optimizer)]
        group = {
            k: v
            for k, v in optimizer.param_groups[0].items()
            if isinstance(v, int | float | bool | str)
        }
        return description | {
            "model": {
                **self._model,
                "precision": self.step_precision.precision,
                "max_gradient_norm": self.step_precision.max_gradient_norm,
            },
            "optimizer": {"class": " and ".join(names[1:]) or names[0], **group},
            "kept_bytes": {
                "parameters": sum(map(local_bytes, bare.parameters())),
                "buffers": sum(map(local_bytes, bare.buffers())),
                "optimizer_state": sum(map(local_bytes, self.prepared.kept_optimizer_state())),
            },
            "owns_step": self.prepared.owns_step,
        }


class Batches(Iterator[Any]):
    """One rank's batches, restarted when they end."""

    def __init__(
        self, workload: Workload, world: World, device: torch.device, *, seed: int | None = None
    ) -> None:
        """``seed``: of separate generators for their draws; None: they draw from the process's
        generators.
        """
        begin = partial(
            workload.batches, rank=world.rank, world_size=world.world_size, device=device
        )
        self._begin = begin if seed is None else partial(IsolatedRng(seed).iterate, begin)
        self._batches = self._begin()
        self._none = (
            f"batches() of workload '{type(workload).__name__}' gave none to rank {world.rank} of"
            f" {world.world_size}; give each rank at least one batch of local_batch_size"
            f" {workload.local_batch_size}"
        )
        self.restarts = 0
        """How often they ended and were restarted."""

    def __next__(self) -> Any:
        """Return the next batch; raises a ``PlanError`` if there is none at all."""
        for _ in range(2):
            with suppress(StopIteration):
                return next(self._batches)
            self.restarts += 1
            self._batches = self._begin()
        raise PlanError(self._none)


def sampled(model: nn.Module) -> dict[str, list[float]]:
    """Some elements of each trained parameter that every rank holds whole."""
    return {
        name: some_elements(parameter, DRIFT_ELEMENTS)
        for name, parameter in trained_parameters(model).items()
        if not hasattr(parameter, "to_local") and parameter.numel()
    }


def synchronize_ranks(backend: Backend, device: torch.device) -> None:
    """Wait until the device is idle and all ranks have called this, so that they begin the timed
    steps together. Collective.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    backend.barrier()


def local_bytes(tensor: Tensor) -> int:
    """The bytes of a tensor that this rank keeps, sharded or not."""
    # a DTensor, whose module takes long to import
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.numel() * local.element_size()


def _page_faults() -> int:
    """Minor page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
