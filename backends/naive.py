"""Data parallelism as the tutorials write it by hand: one ``all_reduce`` for each parameter, after backward.

What DDP and Horovod are worth is what they win against this: no buckets, no fusion, no overlap with backward.
Source: S. Arnold, "Writing Distributed Applications with PyTorch" (``average_gradients``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from backends.base import BuildOptimizer, Prepared, tensors_of
from backends.torch_distributed import TorchDistributed


class NaivePrepared(Prepared):
    """Gradients meet before each step, unless they have met already or the step is local."""

    def __init__(self, bare: nn.Module, optimizer: Optimizer) -> None:
        super().__init__(bare, optimizer)
        self._is_local = False

    def step(self) -> None:
        """``sync_gradients``, then the step."""
        if not self._is_local:
            sync_gradients(self.bare)
        self.optimizer.step()

    @contextmanager
    def local_only(self) -> Iterator[None]:
        """Steps leave the gradients as they are."""
        self._is_local = True
        try:
            yield
        finally:
            self._is_local = False

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Gradients meet now; ``optimizer.step()`` itself exchanges nothing."""
        if not self._is_local:
            sync_gradients(self.bare)
        yield


class Naive(TorchDistributed):
    """``sync_hyperparameters`` once and ``sync_gradients`` before each step."""

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Rank 0 sends its parameters and buffers to each other rank in turn. Collective."""
        sync_hyperparameters(model)
        return NaivePrepared(model, build_optimizer(model))


@torch.no_grad()
def sync_hyperparameters(model: nn.Module) -> None:
    """Every rank takes rank 0's parameters and buffers, by send and recv. Collective."""
    for tensor in tensors_of(model):
        whole = tensor.contiguous()  # itself, if it is
        if dist.get_rank() == 0:
            for rank in range(1, dist.get_world_size()):
                dist.send(whole, dst=rank)
        else:
            dist.recv(whole, src=0)
            tensor.copy_(whole)


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
