"""A model of 3 MB whose steps take next to nothing: what a slow link adds is seen at once."""

import torch
from torch import nn

from workloads.base import Workload


class Large(Workload):
    """One layer."""

    def build_model(self):
        return nn.Linear(1024, 768)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def batches(self, *, rank, world_size, device):
        generator = torch.Generator().manual_seed(rank)
        while True:
            yield torch.randn(self.local_batch_size, 1024, generator=generator)

    def count_samples(self, batch):
        return len(batch)

    def compute_loss(self, model, batch):
        return model(batch).square().mean()
