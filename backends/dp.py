"""``nn.DataParallel``: one process, several GPUs, every batch scattered and every gradient gathered by one Python thread each.

PyTorch advises DDP instead; this arm shows by how much.
"""

from __future__ import annotations

import torch
from torch import nn

from backends.base import BuildOptimizer, Prepared
from backends.single import Single
from measurement.errors import PlanError


class DataParallel(Single):
    """One process over all visible GPUs. The batch of a plan's ranks, all together, is shared out among them."""

    takes_all_ranks_batches = True

    def check(self, *, world_size: int) -> None:
        """One process only."""
        if world_size != 1:
            raise PlanError(
                f"backend 'dp' is one process for all GPUs, not {world_size}; set world_size: 1 (CUDA_VISIBLE_DEVICES says which "
                "GPUs), or use 'ddp'"
            )

    def check_device(self, kind: str) -> None:
        """There must be GPUs to share out."""
        if kind != "cuda":
            raise PlanError(
                "backend 'dp' (nn.DataParallel) shares a batch out among the GPUs of one process, and this run is on the CPU; "
                "use 'ddp' with one rank per core group, or 'single' for one process"
            )

    def synchronize_batch_norm(self, model: nn.Module) -> nn.Module:
        """Refused: ``torch.nn.SyncBatchNorm`` wants a process for each GPU."""
        raise PlanError("speed.sync_batchnorm: nn.DataParallel has no synchronised batch norm; leave it out, or leave out 'dp'")

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Wrap the model for all visible GPUs; without any, the wrapper passes everything through."""
        prepared = Prepared(model, build_optimizer(model), model=nn.DataParallel(model, device_ids=None))
        prepared.copies = max(torch.cuda.device_count(), 1)
        return prepared

    def describe(self) -> dict[str, object]:
        """With the GPUs it uses."""
        return super().describe() | {"gpus": torch.cuda.device_count()}

    @property
    def gradient_scale(self) -> float | None:
        """Each GPU normalises over its own part of the batch, so batch-norm models have other gradients than on one device."""
        return 1.0 if torch.cuda.device_count() < 2 else None
