"""The training loop every arm runs, whoever measures it: build, step, block. Nothing in it knows which backend it drives."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from backends import Backend
from measurement.record import PHASES
from measurement.step_timer import StepTimer
from measurement.world import World
from runners.precision import Arithmetic
from workloads import Workload

DATA_WAIT, FORWARD, BACKWARD, OPTIMIZER = range(len(PHASES))
LAYOUT_ALLOCATIONS = 16
LAYOUT_BYTES = 1 << 20


@dataclass(kw_only=True)
class TimedBlock:
    """What a rank timed: phases_s float64 [steps, len(PHASES)] in seconds, samples per step, and what came before."""

    phases_s: Any
    samples: list[int]
    untimed_s: float
    wrong: str | None = None
    """A micro-benchmark's result that was wrong before the timed steps."""


class Tally:
    """What steps leave on the device to be read when they are over: their losses, and how often they were right."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._hits: list[Tensor | None] = []

    def add(self, loss: Tensor, hits: Tensor | None) -> None:
        """After a micro-step; waits for nothing."""
        self._losses.append(loss.detach())
        self._hits.append(hits)

    def losses(self, *, micro_steps: int) -> list[float]:
        """Per step, the mean over its micro-steps."""
        if not self._losses:
            return []
        means: list[float] = torch.stack(self._losses).double().reshape(-1, micro_steps).mean(dim=1).tolist()
        return means

    def hits(self) -> tuple[int, int] | None:
        """How many labels were ranked first, and among the first five; None where the workload does not tell."""
        told = [hits for hits in self._hits if hits is not None]
        if len(told) < len(self._hits):
            return None
        first, among_five = torch.stack(told).sum(dim=0).tolist() if told else (0, 0)
        return first, among_five


class Trainer:
    """One rank's model, optimizer and batches, rebuilt as often as asked."""

    def __init__(
        self, *, workload: Workload, backend: Backend, world: World, device: torch.device, seed: int, arithmetic: Arithmetic
    ) -> None:
        self.workload = workload
        self.arithmetic = arithmetic
        self.backend = backend
        self.world = world
        self.device = device
        self.seed = seed
        self.micro_steps = backend.micro_steps
        self.bare: nn.Module | None = None
        self.model: nn.Module | None = None
        self.optimizer: Optimizer | None = None
        self.batches = self.new_batches()
        self._held: list[torch.Tensor] = []

    def new_batches(self) -> Iterator[Any]:
        """This rank's batches from the first on."""
        return self.workload.batches(rank=self.world.rank, world_size=self.world.world_size, device=self.device)

    def build_bare(self, *, seed: int | None = None) -> nn.Module:
        """A model no backend has touched, in training mode, on this rank's device."""
        torch.manual_seed(self.seed if seed is None else seed)
        return self.workload.build_model().to(self.device).train()

    def build(self, *, layout: int | None = None) -> None:
        """Build model, optimizer and wrapper anew. Collective.

        Args:
            layout: seed of the random allocations that go before, so that memory lies elsewhere each time.
        """
        self.release()
        if layout is not None:
            self._held = allocate_at_random(random.Random(layout * 65_537 + self.world.rank), self.device)
        self.join(self.build_bare())

    def join(self, bare: nn.Module) -> None:
        """Make a model of this rank's, with a new optimizer, one with those of the other ranks. Collective."""
        self.arithmetic.start()
        self.bare = bare
        self.model, self.optimizer = self.backend.prepare(bare, self.workload.build_optimizer(bare))

    def release(self) -> None:
        """Let go of model and optimizer; wrappers hold reference cycles, so collect them now and not inside a step."""
        self.bare = self.model = self.optimizer = None
        self._held = []
        gc.collect()

    def step(self, timer: StepTimer, *, tally: Tally | None = None) -> int:
        """One optimizer step under the clock; returns this rank's samples. Collective unless local.

        Args:
            timer: told where each phase ends.
            tally: keeps the losses and the right answers, where they are wanted.
        """
        assert self.model is not None and self.optimizer is not None
        samples = 0
        for micro_step in range(1, self.micro_steps + 1):
            batch = next(self.batches)
            timer.mark(DATA_WAIT)
            if micro_step == 1:
                self.model.zero_grad(set_to_none=True)
            with nullcontext() if micro_step == self.micro_steps else self.backend.accumulating(self.model, self.optimizer):
                loss = self._loss(self.model, batch, tally)
                timer.mark(FORWARD)
                self.arithmetic.backward(loss)
                timer.mark(BACKWARD)
            samples += self.workload.count_samples(batch)
        self.arithmetic.step(self.backend, self.model, self.optimizer)
        timer.mark(OPTIMIZER)
        timer.end_step()
        return samples

    def _loss(self, model: nn.Module, batch: Any, tally: Tally | None) -> Tensor:
        """Of a micro-step, as it enters the step's mean."""
        with self.arithmetic.forward():
            if tally is None:
                loss = self.workload.compute_loss(model, batch)
            else:
                loss, hits = self.workload.compute_loss_and_hits(model, batch)
                tally.add(loss, hits)
            return loss / self.micro_steps if self.micro_steps > 1 else loss

    def run_block(self, *, steps: int, warmup_steps: int, local: bool, rebuild: bool, layout: int | None = None) -> TimedBlock:
        """Rebuild if asked, warm up, meet, and time ``steps`` steps. Collective."""
        began = time.perf_counter()
        if rebuild or self.model is None:
            self.build(layout=layout)
        assert self.model is not None and self.optimizer is not None
        timer = StepTimer(self.device)
        with self.backend.local_only(self.model, self.optimizer) if local else nullcontext():
            timer.start()
            for _ in range(warmup_steps):
                self.step(timer)
            meet(self.backend, self.device)
            untimed_s = time.perf_counter() - began
            timer.start()
            samples = [self.step(timer) for _ in range(steps)]
            phases_s = timer.read()
        return TimedBlock(phases_s=phases_s, samples=samples, untimed_s=untimed_s)

    def describe(self) -> dict[str, Any]:
        """For the rank's report: what it really trains with."""
        return {
            "seed": self.seed,
            "local_batch_size": self.workload.local_batch_size,
            "micro_steps": self.micro_steps,
            "optimizer": describe_optimizer(self.optimizer),
            "model": describe_model(self.model) | self.arithmetic.describe() if self.model else {},
        }


def meet(backend: Backend, device: torch.device) -> None:
    """All ranks begin the timed steps together, with nothing left running on the device. Collective."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    backend.barrier()


def allocate_at_random(chance: random.Random, device: torch.device) -> list[torch.Tensor]:
    """Tensors of random sizes; every other one is freed again, which leaves holes for what is built next."""
    made = [torch.empty(chance.randrange(64, LAYOUT_BYTES), dtype=torch.uint8, device=device) for _ in range(LAYOUT_ALLOCATIONS)]
    return made[::2]


def describe_optimizer(optimizer: Optimizer | None) -> dict[str, Any]:
    """Class and hyperparameters of the first parameter group, as they are after wrapping."""
    if optimizer is None:
        return {}
    group = {k: v for k, v in optimizer.param_groups[0].items() if isinstance(v, int | float | bool | str)}
    return {"class": type(optimizer).__name__, **group}


def describe_model(model: nn.Module | None) -> dict[str, Any]:
    """Size of the model and of what must be exchanged for one step."""
    if model is None:
        return {}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "gradient_tensors": len(trained),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in trained),
    }


def resolve_device(wanted: str, *, local_rank: int) -> torch.device:
    """Where a rank computes: ``auto`` takes a GPU when there is one."""
    gpu = torch.cuda.is_available() if wanted == "auto" else wanted == "cuda"
    if not gpu:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % max(torch.cuda.device_count(), 1))
    torch.cuda.set_device(device)
    return device
