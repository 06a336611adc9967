"""Checkpoints, so that a training can be interrupted anywhere and resumed: one file, written and read by rank 0.

It holds everything that the next step depends on: model, optimizer, scaler, each rank's own buffers and random state, the epoch
and step, each rank's progress in the epoch (so that the record is whole), and a description of what is trained, so that nothing
else is resumed from it. The backend is not part of the description: all backends compute the same.

On two ranks the losses after resuming are those of an uninterrupted run to the last bit. On more, a sum of their gradients may
be rounded in another order: DDP arranges its buckets anew in its second step, Horovod fuses what happens to be ready.
"""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from measurement.conditions.conditions import CONDITIONS, MAY_CHANGE_IN_A_TRAINING
from measurement.errors import PlanError, cut, joined, quoted
from measurement.files import write_whole
from measurement.plans.settings import EpochRecord
from runners.protocol.messages import Job
from runners.protocol.tensor_bytes import read_tensors, write_tensors
from runners.rank.epochs import EpochProgress, EpochRunner, put
from runners.rank.trainer import Trainer
from workloads import Workload
from workloads.data.pretrained import UNREADABLE

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Tensors on the CPU, and plain values."""

    trained: dict[str, Any]
    """See ``what_is_trained``."""
    epoch: int
    """The epoch of the next step."""
    finished: list[dict[str, Any]]
    """``EpochRecord`` of every epoch before it."""
    model: dict[str, Any]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    ranks: list[dict[str, Any]]
    """By rank: see ``_of_this_rank``."""
    workload: dict[str, Any] = field(default_factory=dict)
    """See ``Workload.state_dict``."""

    def epochs(self) -> list[EpochRecord]:
        """The epochs that ended."""
        return [EpochRecord.model_validate(epoch) for epoch in self.finished]

    def require_form(self) -> None:
        """Raise a ``TypeError`` or ``ValueError`` where a part is not of the form that it was written in."""
        parts: dict[str, type] = {"trained": dict, "epoch": int, "finished": list, "model": dict, "optimizer": dict, "ranks": list}
        for name, kind in parts.items():
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} is {quoted(getattr(self, name))}, not of type {kind.__name__}")
        if not self.ranks or self.epoch < 0 or not all(isinstance(name, str) for name in self.trained):
            raise ValueError("it tells of no rank, no epoch or no training")
        self.epochs()
        for rank in range(len(self.ranks)):
            progress = self.progress(rank)
            if not all(isinstance(part, list) for part in (progress.samples, progress.phases_s, progress.losses)):
                raise TypeError(f"the progress of rank {rank} is no list of steps")

    def progress(self, rank: int) -> EpochProgress:
        """A rank's progress in the epoch that was interrupted; empty if the interruption came between two epochs."""
        return EpochProgress(**self.ranks[rank]["seen"])

    def content(self) -> bytes:
        """What its file holds."""
        return write_tensors({"format": FORMAT, **{part.name: getattr(self, part.name) for part in fields(self)}})

    @classmethod
    def of(cls, content: Any) -> Checkpoint:
        """Make a checkpoint from what its file holds.

        Raises:
            PlanError: it is none of this version.
            Exception: of ``UNREADABLE``, where parts are not of the form that they were written in.
        """
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise PlanError("it holds no training of this version; give a file that --checkpoint wrote")
        found = cls(**{name: value for name, value in content.items() if name != "format"})
        found.require_form()
        return found

    def write(self, path: Path) -> None:
        """Write the whole file, or nothing; raises a ``PlanError`` where it cannot be written."""
        try:
            write_whole(path, self.content())
        except OSError as error:
            raise _cannot_write(path, error) from error


def require_whole(workload: Workload) -> None:
    """Refuse a workload of which a checkpoint would lack something, with a ``PlanError``."""
    cls = type(workload)
    if cls.after_step is not Workload.after_step and cls.state_dict is Workload.state_dict:
        raise PlanError(
            f"workload '{cls.__name__}' has after_step, and a checkpoint would not hold what that keeps (a schedule, an average); "
            "define state_dict() and load_state_dict(state), or train without --checkpoint"
        )


def require_place(path: Path) -> None:
    """Refuse a place where no checkpoint can be written, before training, with a ``PlanError``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> PlanError:
    return PlanError(f"checkpoint '{path}' cannot be written: {error.strerror}; give --checkpoint another place")


def what_is_trained(job: Job, runner: EpochRunner) -> dict[str, Any]:
    """Return all that must be equal for a training to be resumed, by names that a message can use."""
    trainer = runner.trainer
    assert job.training is not None
    conditions = [condition for condition in CONDITIONS if condition.resume]
    state = trainer.joined.bare.state_dict()
    shapes = hashlib.sha256(repr([(name, list(tensor.shape)) for name, tensor in state.items()]).encode()).hexdigest()
    model = f"{sum(tensor.numel() for tensor in state.values())} numbers in {len(state)} tensors, {shapes[:8]}"
    return {
        **{one.field: getattr(job, one.field) for one in conditions if one.source != "training"},
        **trainer.workload.options.model_dump(mode="json", exclude=set(MAY_CHANGE_IN_A_TRAINING)),
        **{one.field: getattr(job.training, one.field) for one in conditions if one.source == "training"},
        "steps per epoch": runner.steps,
        "model": model,
    }


def capture(job: Job, runner: EpochRunner, *, epoch: int, progress: EpochProgress, finished: list[EpochRecord]) -> Checkpoint:
    """Make a checkpoint between two steps. Collective; rank 0's is written."""
    trainer = runner.trainer
    return Checkpoint(
        trained=what_is_trained(job, runner),
        epoch=epoch,
        finished=[record.model_dump() for record in finished],
        model=trainer.joined.full_parameters(),
        optimizer=trainer.joined.full_optimizer_state(),
        scaler=trainer.step_precision.scaler.state_dict(),
        ranks=[read_tensors(state) for state in trainer.backend.all_gather_bytes(write_tensors(_of_this_rank(trainer, progress)))],
        workload=trainer.workload.state_dict(),
    )


def _of_this_rank(trainer: Trainer, progress: EpochProgress) -> dict[str, Any]:
    on_gpu = trainer.device.type == "cuda"
    numpys: Any = np.random.get_state()
    return {
        "buffers": {name: buffer.detach().cpu() for name, buffer in trainer.joined.bare.named_buffers()},
        "random": torch.get_rng_state(),
        "random_of_numpy": [part.tolist() if isinstance(part, np.ndarray) else part for part in numpys],
        "random_of_python": random.getstate(),
        "random_on_gpu": torch.cuda.get_rng_state(trainer.device) if on_gpu else None,
        "seen": vars(progress),
    }


def restore(checkpoint: Checkpoint, runner: EpochRunner) -> None:
    """Build everything anew and load the checkpoint into it. Collective.

    The optimizer's state is loaded after ``prepare``: Horovod's own way of broadcasting it takes a step with zero gradients
    (0.28.1).
    """
    trainer, mine = runner.trainer, checkpoint.ranks[runner.trainer.world.rank]
    bare = _build(checkpoint, trainer)
    runner.note_rates()
    trainer.joined.load_optimizer_state(checkpoint.optimizer)
    trainer.step_precision.scaler.load_state_dict(checkpoint.scaler)
    put(mine["buffers"], dict(bare.named_buffers()))
    trainer.workload.load_state_dict(checkpoint.workload)
    trainer.steps_taken = checkpoint.epoch * runner.steps + len(mine["seen"]["losses"])
    torch.set_rng_state(mine["random"])
    np.random.set_state(tuple(mine["random_of_numpy"]))
    random.setstate(mine["random_of_python"])
    if mine["random_on_gpu"] is not None:
        torch.cuda.set_rng_state(mine["random_on_gpu"], trainer.device)


def _build(checkpoint: Checkpoint, trainer: Trainer) -> nn.Module:
    """Build everything anew, the model with the checkpoint's weights. Collective."""
    trainer.release()
    bare = trainer.build_bare()
    bare.load_state_dict(checkpoint.model)
    trainer.join(bare)
    return bare


def _is_same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal; a tensor, which a damaged file may hold instead, is equal to none."""
    try:
        return not isinstance(one, torch.Tensor) and bool(one == other)
    except RuntimeError:
        return False


def load_model(checkpoint: Checkpoint, runner: EpochRunner) -> None:
    """Build the model and load its weights and rank 0's buffers, to evaluate it. Collective."""
    bare = _build(checkpoint, runner.trainer)
    put(checkpoint.ranks[0]["buffers"], dict(bare.named_buffers()))


def read(path: Path, *, trained: Mapping[str, Any], only_model: bool = False) -> Checkpoint:
    """Read and check a checkpoint. Nothing but tensors and plain values is unpickled.

    ``trained``: what it must be a training of; with ``only_model``, workload and model alone must be the same.

    Raises:
        PlanError: it is missing or damaged, or another training's than ``trained``.
    """
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise PlanError(f"checkpoint '{path}' does not exist; leave out --resume to begin a new training") from error
    except UNREADABLE as error:
        raise PlanError(
            f"checkpoint '{path}' cannot be read ({type(error).__name__}): it is damaged, or no checkpoint; give another "
            "file, or remove it and leave out --resume"
        ) from error
    try:
        checkpoint = Checkpoint.of(content)
    except PlanError as error:
        raise PlanError(f"checkpoint '{path}': {error}") from error
    except UNREADABLE as error:
        raise PlanError(
            f"checkpoint '{path}' is damaged: {cut(str(error))}; give another file, or remove it and leave out --resume"
        ) from error
    known = [*trained, *(name for name in checkpoint.trained if name not in trained)]
    known = [name for name in known if not only_model or name in ("workload", "model")]
    kept = checkpoint.trained
    different = [name for name in known if not _is_same(kept.get(name), trained.get(name))]
    if different:
        raise PlanError(
            f"checkpoint '{path}' is of another training: "
            + joined([f"{cut(str(name))} {quoted(kept.get(name))}, not {quoted(trained.get(name))}" for name in different])
            + "; resume it as it began, or give another file"
        )
    return checkpoint
