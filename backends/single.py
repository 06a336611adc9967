"""One process: without any wrapper, which shows a step's cost without exchange, or with
``nn.DataParallel``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from backends.base import Backend, BuildOptimizer, Prepared, Store
from measurement.agent.ringside_agent.place import World
from measurement.errors import PlanError


class Single(Backend):
    """The plain training loop; the baseline of scaling and of a wrapper's own cost."""

    interface_version = 1
    customary_launchers = ("spawn", "torchrun", "mpirun")

    def check(self, *, world_size: int) -> None:
        """One rank only."""
        if world_size != 1:
            raise PlanError(
                f"backend 'single' is one process, not {world_size}; set world_size: 1 or use 'ddp'"
            )

    def setup(self, world: World, *, device: torch.device, store: Store | None = None) -> World:
        """Nothing to connect."""
        return world

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Neither is wrapped."""
        return Prepared(model, build_optimizer(model))

    def synchronize_batch_norm(self, model: nn.Module) -> nn.Module:
        """Unchanged: the one process sees the whole batch."""
        return model

    def all_gather_bytes(self, data: bytes) -> Sequence[bytes]:
        """The bytes of the one rank."""
        return [data]

    def barrier(self) -> None:
        """Returns at once: there are no other ranks."""

    def describe(self) -> dict[str, Any]:
        """The library is torch itself."""
        return {"library": "torch", "version": torch.__version__, "transport": "none"}

    def teardown(self) -> None:
        """Nothing to disconnect."""


class Floor(Single):
    """The no-op backend: ``Single`` on as many ranks as the other arms, each with batches of its
    own.

    Ringside adds it to a comparison by itself, as arm ``floor``.
    """

    exchanges = False

    def check(self, *, world_size: int) -> None:
        """Any number of ranks."""


class ScriptBackend(Single):
    """A script's own library, which only its ranks know. It has no requirements for a launcher."""


class DataParallel(Single):
    """``nn.DataParallel``: one process that splits the global batch of a plan's ranks over all
    visible GPUs.

    One Python thread for each GPU scatters the batches and gathers the gradients. PyTorch advises
    DDP instead; this arm shows by how much.
    """

    takes_all_ranks_batches = True

    def check(self, *, world_size: int) -> None:
        """One process only."""
        if world_size != 1:
            raise PlanError(
                f"backend 'dp' is one process for all GPUs, not {world_size}; set world_size: 1"
                " (CUDA_VISIBLE_DEVICES says which GPUs), or use 'ddp'"
            )

    def check_device(self, kind: str) -> None:
        """Refuse the CPU."""
        if kind != "cuda":
            raise PlanError(
                "backend 'dp' (nn.DataParallel) shares a batch out among the GPUs of one process,"
                " and this run is on the CPU; use 'ddp' with one rank per core group, or 'single'"
                " for one process"
            )

    def synchronize_batch_norm(self, model: nn.Module) -> nn.Module:
        """Refused: ``torch.nn.SyncBatchNorm`` needs a process for each GPU."""
        raise PlanError(
            "speed.sync_batchnorm: nn.DataParallel has no synchronised batch norm; leave it out, or"
            " leave out 'dp'"
        )

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Wrap the model for all visible GPUs; without any, the wrapper passes everything
        through.
        """
        return Prepared(model, build_optimizer(model), model=nn.DataParallel(model))

    def describe(self) -> dict[str, object]:
        """With the GPUs it uses."""
        return super().describe() | {"gpus": torch.cuda.device_count()}

    @property
    def gradient_scale(self) -> float | None:
        """Each GPU normalises over its own part of the batch, so batch-norm models have other
        gradients than on one device.
        """
        return 1.0 if torch.cuda.device_count() < 2 else None
