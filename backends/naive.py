"""Data parallelism as the tutorials write it by hand: one ``all_reduce`` for each parameter, after
backward.

The value of DDP and Horovod is their gain over this: it has no buckets, no fusion, no overlap with
backward. Source: S. Arnold, "Writing Distributed Applications with PyTorch"
(``average_gradients``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from backends.base import BuildOptimizer, Prepared, state_tensors, trained_parameters
from backends.torch_distributed import TorchDistributed


class NaivePrepared(Prepared):
    """Gradients are exchanged before each step, unless it is local."""

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """``sync_gradients``, unless the step is local."""
        if not self.is_local:
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
    for tensor in state_tensors(model).values():
        sent = tensor.contiguous()  # itself, unless its memory is in another order
        if dist.get_rank() == 0:
            for rank in range(1, dist.get_world_size()):
                dist.send(sent, dst=rank)
        else:
            dist.recv(sent, src=0)
            tensor.copy_(sent)


@torch.no_grad()
def sync_gradients(model: nn.Module) -> None:
    """Every gradient becomes the mean of all ranks' gradients. Collective.

    A parameter without gradient counts as zero, as in Horovod: a rank must not wait for an exchange
    that others skip.
    """
    for parameter in trained_parameters(model).values():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= dist.get_world_size()
