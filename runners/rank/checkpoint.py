"""A training that can be interrupted anywhere and gone on with: one file, written whole by rank 0 and read by it alone.

It holds what the next step depends on, of every rank: model, optimizer, scaler, and each rank's own buffers and random numbers;
where in which epoch the next step is; what was seen so far, so that the record is whole; and what was trained, so that it is
not gone on with as something else. The backend is not part of that: all backends compute the same.

On two ranks the losses after resuming are those of an uninterrupted run to the last bit. On more, a sum of their gradients may
be rounded in another order: DDP arranges its buckets anew in its second step, Horovod fuses what happens to be ready.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from measurement.errors import PlanError
from measurement.files import write_whole
from measurement.training import EpochRecord
from runners.epochs import EpochRunner, Seen, put
from runners.job import Job
from runners.trainer import Trainer
from workloads.pretrained import UNREADABLE

FORMAT = 1
HOW_LOADED = ("data_dir", "download", "loader_workers", "prefetch_factor")
"""Workload options that may be others when a training is resumed: the samples are the same."""
LEARNING_RATE_RULES = ("learning_rate_scaling", "warmup_epochs", "decay_epochs", "decay_factor")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Tensors on the CPU, and plain values."""

    trained: dict[str, Any]
    """See ``what_is_trained``."""
    epoch: int
    """Of the next step."""
    finished: list[dict[str, Any]]
    """``EpochRecord`` of every epoch before it."""
    model: dict[str, Any]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    ranks: list[dict[str, Any]]
    """By rank: see ``_of_this_rank``."""

    def epochs(self) -> list[EpochRecord]:
        """The finished ones."""
        return [EpochRecord.model_validate(epoch) for epoch in self.finished]

    def seen(self, rank: int) -> Seen:
        """What a rank saw of the epoch that was interrupted; nothing where it was interrupted between two."""
        return Seen(**self.ranks[rank]["seen"])

    def write(self, path: Path) -> None:
        """Whole, or not at all.

        Raises:
            PlanError: nothing can be written there.
        """
        content = io.BytesIO()
        torch.save({"format": FORMAT, **{part.name: getattr(self, part.name) for part in fields(self)}}, content)
        try:
            write_whole(path, content.getvalue())
        except OSError as error:
            raise _cannot_write(path, error) from error


def require_place(path: Path) -> None:
    """Find out before training that the first checkpoint can be written.

    Raises:
        PlanError: it cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> PlanError:
    return PlanError(f"checkpoint '{path}' cannot be written: {error.strerror}; give --checkpoint another place")


def what_is_trained(job: Job, runner: EpochRunner) -> dict[str, Any]:
    """All that must be the same for a training to be gone on with, by names that a message can use."""
    trainer = runner.trainer
    assert job.training is not None and trainer.bare is not None
    options = trainer.workload.options.model_dump(mode="json", exclude=set(HOW_LOADED))
    rules = job.training.model_dump(mode="json", include=set(LEARNING_RATE_RULES))
    names = ("workload", "world_size", "local_batch_size", "micro_steps", "seed", "precision", "max_gradient_norm")
    return {
        **{name: getattr(job, name) for name in names},
        **options,
        **rules,
        "steps per epoch": runner.steps,
        "model": _fingerprint(trainer.bare.state_dict()),
    }


def _fingerprint(state: Mapping[str, torch.Tensor]) -> str:
    shapes = hashlib.sha256(repr([(name, list(tensor.shape)) for name, tensor in state.items()]).encode()).hexdigest()
    return f"{sum(tensor.numel() for tensor in state.values())} numbers in {len(state)} tensors, {shapes[:8]}"


def capture(job: Job, runner: EpochRunner, *, epoch: int, seen: Seen, finished: list[EpochRecord]) -> Checkpoint:
    """The training as it stands between two steps. Collective; rank 0's counts."""
    trainer = runner.trainer
    assert trainer.bare is not None and trainer.optimizer is not None
    return Checkpoint(
        trained=what_is_trained(job, runner),
        epoch=epoch,
        finished=[record.model_dump() for record in finished],
        model=dict(trainer.bare.state_dict()),
        optimizer=trainer.optimizer.state_dict(),
        scaler=trainer.arithmetic.scaler.state_dict(),
        ranks=list(trainer.backend.all_gather_object(_of_this_rank(trainer, seen))),
    )


def _of_this_rank(trainer: Trainer, seen: Seen) -> dict[str, Any]:
    assert trainer.bare is not None
    on_gpu = trainer.device.type == "cuda"
    return {
        "buffers": {name: buffer.detach().cpu() for name, buffer in trainer.bare.named_buffers()},
        "random": torch.get_rng_state(),
        "random_on_gpu": torch.cuda.get_rng_state(trainer.device) if on_gpu else None,
        "seen": vars(seen),
    }


def restore(checkpoint: Checkpoint, runner: EpochRunner) -> None:
    """Build everything anew and put the checkpoint into it. Collective.

    The optimizer's state goes in after ``prepare``: Horovod's wrapper starts without any, and its own way of sending it takes a
    step with zero gradients (0.28.1).
    """
    trainer = runner.trainer
    mine = checkpoint.ranks[trainer.world.rank]
    trainer.release()
    bare = trainer.build_bare()
    bare.load_state_dict(checkpoint.model)
    trainer.join(bare)
    assert trainer.optimizer is not None
    runner.note_rates()
    trainer.optimizer.load_state_dict(checkpoint.optimizer)
    trainer.arithmetic.scaler.load_state_dict(checkpoint.scaler)
    put(mine["buffers"], dict(bare.named_buffers()))
    torch.set_rng_state(mine["random"])
    if mine["random_on_gpu"] is not None:
        torch.cuda.set_rng_state(mine["random_on_gpu"], trainer.device)


def read(path: Path, *, trained: Mapping[str, Any]) -> Checkpoint:
    """Read and check a checkpoint; tensors and plain values are all that is ever unpickled.

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
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise PlanError(f"checkpoint '{path}' holds no training of this version; give a file that --checkpoint wrote")
    checkpoint = Checkpoint(**content)
    known = [*trained, *(name for name in checkpoint.trained if name not in trained)]
    different = [
        f"{name} {checkpoint.trained.get(name)!r}, not {trained.get(name)!r}"
        for name in known
        if checkpoint.trained.get(name) != trained.get(name)
    ]
    if different:
        raise PlanError(
            f"checkpoint '{path}' is of another training: {'; '.join(different)}; resume it as it began, or give another file"
        )
    return checkpoint
