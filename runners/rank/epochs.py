"""One rank's training, epoch after epoch: its steps under the clock, and after each epoch the evaluation.

The model that is evaluated is rank 0's. Parameters are the same on all ranks; buffers are not: every rank has batch-norm
statistics of its own shard, under Horovod and by hand ever since the start, under DDP since its last forward. So every rank
takes rank 0's buffers for the evaluation, whatever the backend, and its own back afterwards: evaluating changes nothing of the
training. It is done in float32 also where the training is not.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from measurement.errors import PlanError
from measurement.step_timer import StepTimer
from measurement.training import Training
from runners.job import EpochReport
from runners.schedule import LearningRates
from runners.trainer import Tally, Trainer, meet
from workloads import Workload
from workloads.evaluation import EvaluationSums, shard_sums


@dataclass(kw_only=True)
class Seen:
    """What a rank has seen of an epoch so far. Plain values, so that it can be kept in a checkpoint."""

    samples: list[int] = field(default_factory=list)
    phases_s: list[list[float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    """Of every step."""
    hits: tuple[int, int] | None = (0, 0)
    """Labels ranked first, and among the first five; None: the workload does not tell."""

    def add_hits(self, more: tuple[int, int] | None) -> None:
        """Of further steps."""
        self.hits = (self.hits[0] + more[0], self.hits[1] + more[1]) if self.hits and more else None


Pause = Callable[[int, Seen], None]
"""Called with the epoch and what was seen of it, between two steps and off the clock."""


def steps_per_epoch(workload: Workload, *, reference: str, world_size: int, micro_steps: int) -> int:
    """Optimizer steps in an epoch, the same on every rank. Not collective.

    Raises:
        PlanError: the workload has no epochs, or too few samples for one step.
    """
    batches = workload.batches_per_epoch(world_size=world_size)
    if batches is None:
        raise PlanError(f"workload '{reference}' has no epochs, so it cannot be trained to the end; use one with real data")
    if batches < micro_steps:
        raise PlanError(
            f"micro_steps {micro_steps} is more than the {batches} batches that each of {world_size} ranks has in an epoch; "
            "use fewer micro_steps, or a smaller local_batch_size"
        )
    return batches // micro_steps


class EpochRunner:
    """Runs the epochs of one rank's ``Trainer``."""

    def __init__(self, trainer: Trainer, training: Training, *, reference: str, scale: int | None) -> None:
        """``scale`` is ``Job.learning_rate_scale``, ``reference`` the workload's name for messages."""
        world_size = trainer.world.world_size
        self.trainer = trainer
        self._training = training
        self._scale = scale or world_size * trainer.micro_steps
        self.steps = steps_per_epoch(trainer.workload, reference=reference, world_size=world_size, micro_steps=trainer.micro_steps)
        self._rates: LearningRates | None = None

    def begin(self) -> None:
        """Build the model; from then on every rank draws random numbers of its own. Collective."""
        self.trainer.build()
        torch.manual_seed(self.trainer.seed + self.trainer.world.rank)
        self.note_rates()

    def note_rates(self) -> None:
        """The optimizer is as the workload built it: its learning rates are those that the schedule scales."""
        assert self.trainer.optimizer is not None
        self._rates = LearningRates(self._training, self.trainer.optimizer, steps_per_epoch=self.steps, scale=self._scale)

    def run(
        self, epoch: int, *, seen: Seen | None = None, pause: Pause | None = None, pause_every: int | None = None
    ) -> EpochReport:
        """Train one epoch, or what is left of it, and evaluate. Collective.

        Args:
            epoch: from 0, which builds the model; the others go on with it.
            seen: of this epoch, before it was interrupted; the steps that saw it are not taken again.
            pause: called after every ``pause_every`` steps of the epoch, but its last.
            pause_every: None: never.
        """
        if epoch == 0 and seen is None:
            self.begin()
        seen = seen or Seen()
        before, self.trainer.batches = self.trainer.batches, self._batches(epoch, len(seen.losses))
        meet(self.trainer.backend, self.trainer.device)
        for end in _stops(len(seen.losses), self.steps, pause_every):
            self._run_steps(epoch, end, seen)
            if pause is not None and end < self.steps:
                pause(epoch, seen)
        self.trainer.batches = before
        return self._report(seen)

    def _batches(self, epoch: int, step: int) -> Iterator[object]:
        trainer = self.trainer
        return trainer.workload.epoch_batches(
            epoch,
            first_batch=step * trainer.micro_steps,
            rank=trainer.world.rank,
            world_size=trainer.world.world_size,
            device=trainer.device,
        )

    def _run_steps(self, epoch: int, end: int, seen: Seen) -> None:
        """Up to step ``end`` of the epoch, under one timer."""
        trainer, rates = self.trainer, self._rates
        assert rates is not None and trainer.optimizer is not None
        timer, tally = StepTimer(trainer.device), Tally()
        timer.start()
        for step in range(len(seen.losses), end):
            seen.learning_rates.append(rates.set(trainer.optimizer, step=epoch * self.steps + step))
            seen.samples.append(trainer.step(timer, tally=tally))
        seen.phases_s += timer.read().tolist()
        seen.losses += tally.losses(micro_steps=trainer.micro_steps)
        seen.add_hits(tally.hits())

    def _report(self, seen: Seen) -> EpochReport:
        meet(self.trainer.backend, self.trainer.device)
        began = time.perf_counter()
        sums = self.evaluate()
        return EpochReport(
            rank=self.trainer.world.rank,
            samples=seen.samples,
            phases_s=seen.phases_s,
            losses=seen.losses,
            learning_rates=[seen.learning_rates[0], seen.learning_rates[-1]],
            count=sum(seen.samples),
            top1=seen.hits[0] if seen.hits else None,
            top5=seen.hits[1] if seen.hits else None,
            evaluate_s=time.perf_counter() - began,
            held_out_loss_sum=sums.loss_sum,
            held_out_top1=sums.top1,
            held_out_top5=sums.top5,
            held_out_count=sums.count,
        )

    def evaluate(self) -> EvaluationSums:
        """This rank's share of the held-out data, under rank 0's model. Collective."""
        trainer, world = self.trainer, self.trainer.world
        assert trainer.bare is not None
        with self._rank_0s_buffers(dict(trainer.bare.named_buffers())):
            return shard_sums(trainer.workload, trainer.bare, rank=world.rank, world_size=world.world_size, device=trainer.device)

    @contextmanager
    def _rank_0s_buffers(self, buffers: dict[str, Tensor]) -> Iterator[None]:
        own = {name: buffer.detach().cpu().clone() for name, buffer in buffers.items()}
        put(self.trainer.backend.broadcast_object(own), buffers)
        try:
            yield
        finally:
            put(own, buffers)


@torch.no_grad()
def put(values: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Overwrite each tensor by the value of its name."""
    for name, tensor in tensors.items():
        tensor.copy_(values[name])


def _stops(first: int, last: int, every: int | None) -> Iterator[int]:
    """Where a stretch of steps ends: at each multiple of ``every``, and at the last."""
    if every is not None:
        yield from itertools.takewhile(lambda step: step < last, itertools.count((first // every + 1) * every, every))
    if first < last:
        yield last
