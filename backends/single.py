"""One process without any wrapper: what a step costs before anything is exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from backends.base import Backend, BuildOptimizer, Prepared, Store
from measurement.errors import PlanError
from measurement.world import World


class Single(Backend):
    """The plain training loop; the baseline of scaling and of a wrapper's own cost."""

    interface_version = 1
    customary_launchers = ("spawn", "torchrun", "mpirun")

    def check(self, *, world_size: int) -> None:
        """One rank only."""
        if world_size != 1:
            raise PlanError(f"backend 'single' is one process, not {world_size}; set world_size: 1 or use 'ddp'")

    def setup(self, world: World, *, device: torch.device, store: Store | None = None) -> World:
        """Nothing to connect."""
        return world

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Both as they are."""
        return Prepared(model, build_optimizer(model))

    def synchronize_batch_norm(self, model: nn.Module) -> nn.Module:
        """The one process sees the whole batch as it is."""
        return model

    def all_gather_bytes(self, data: bytes) -> Sequence[bytes]:
        """The one rank's."""
        return [data]

    def barrier(self) -> None:
        """Nobody to wait for."""

    def describe(self) -> dict[str, Any]:
        """The library is torch itself."""
        return {"library": "torch", "version": torch.__version__, "transport": "none"}

    def teardown(self) -> None:
        """Nothing to disconnect."""


class Floor(Single):
    """The no-op backend: ``Single`` on as many ranks as the other arms, each with batches of its own.

    Ringside adds it to a comparison by itself, as arm ``floor``.
    """

    def check(self, *, world_size: int) -> None:
        """Any number of ranks."""
