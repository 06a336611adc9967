"""A workload whose batches take memory, on a rank that has little of it: an address-space limit
stands in for a card's memory."""

import resource
from pathlib import Path

import torch
from torch import nn, optim

from workloads.base import Workload

ROOM, SAMPLE = 512 << 20, 4 << 20
"""Bytes that rank 1 may take beyond what its process has before its first batch, and bytes of a
sample."""


def limit_memory():
    """Let this process map no more than ``ROOM`` beyond what it has."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, most))


class Wide(Workload):
    """A layer over the means of wide samples."""

    def build_model(self):
        return nn.Linear(1, 1)

    def build_optimizer(self, model):
        return optim.SGD(model.parameters(), lr=0.1)

    def batches(self, *, rank, world_size, device):
        if rank == 1 and resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
            limit_memory()
        generator = torch.Generator().manual_seed(self.seed + rank)
        while True:
            batch = torch.empty(self.local_batch_size, SAMPLE // 4).fill_(rank)
            batch[:, 0] = torch.rand(self.local_batch_size, generator=generator)
            yield batch

    def compute_loss(self, model, batch):
        return (model(batch.mean(dim=1, keepdim=True)) - 1).square().mean()

    def count_samples(self, batch):
        return len(batch)
