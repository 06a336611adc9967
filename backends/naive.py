"""Data parallelism as the tutorials write it by hand: one ``all_reduce`` for each parameter, after backward.

What DDP and Horovod are worth is what they win against this: no buckets, no fusion, no overlap with backward.
Source: S. Arnold, "Writing Distributed Applications with PyTorch" (``average_gradients``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from backends.torch_distributed import TorchDistributed


class Naive(TorchDistributed):
    """``sync_hyperparameters`` once and ``sync_gradients`` before each step."""

    _is_local = False
    _has_met = False

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Rank 0 sends its parameters and buffers to each other rank in turn; gradients meet before each step. Collective."""
        self._is_local = self._has_met = False
        sync_hyperparameters(model)

        def before_step(*_: Any) -> None:
            if not self._is_local and not self._has_met:
                sync_gradients(model)

        optimizer.register_step_pre_hook(before_step)
        return model, optimizer

    @contextmanager
    def local_only(self, model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
        """Steps leave the gradients as they are."""
        self._is_local = True
        try:
            yield
        finally:
            self._is_local = False

    @contextmanager
    def exchanged(self, model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
        """Gradients meet now, and not before the step."""
        if not self._is_local:
            sync_gradients(model)
        self._has_met = True
        try:
            yield
        finally:
            self._has_met = False

    def accumulating(self, model: nn.Module, optimizer: Optimizer) -> AbstractContextManager[None]:
        """Nothing is exchanged before the step anyway."""
        return nullcontext()


@torch.no_grad()
def sync_hyperparameters(model: nn.Module) -> None:
    """Every rank takes rank 0's parameters and buffers, by send and recv. Collective."""
    for tensor in model.state_dict().values():
        if dist.get_rank() == 0:
            for rank in range(1, dist.get_world_size()):
                dist.send(tensor, dst=rank)
        else:
            dist.recv(tensor, src=0)


@torch.no_grad()
def sync_gradients(model: nn.Module) -> None:
    """Every gradient becomes the mean of all ranks' gradients. Collective.

    A parameter without gradient counts as zero, as in Horovod: a rank must not wait for an exchange that others skip.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad /= dist.get_world_size()
