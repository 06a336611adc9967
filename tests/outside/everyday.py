"""Workloads whose steps draw, keep state or hold tensors of unusual kinds, as everyday training
scripts do."""

from __future__ import annotations

import itertools
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from tests.outside.idioms import Plain

RNG = np.random.default_rng()
"""Of the module, so that nobody can put it back."""


class Noisy(Dataset):
    """Sixty-four samples with random transforms that draw from every default generator."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        inputs = (
            torch.full((10,), float(index)) / 64
            + 0.1 * torch.randn(10)
            + 0.1 * float(np.random.rand())
        )
        return inputs * random.choice([1.0, -1.0]), torch.tensor([float(index % 3)])


class Augmented(Plain):
    """A loader without a generator of its own, random transforms and dropout: nearly every
    script."""

    workers = 0

    def build_model(self):
        return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 1))

    def batches(self, *, rank, world_size, device):
        sampler = DistributedSampler(Noisy(), num_replicas=world_size, rank=rank, seed=self.seed)
        return iter(
            DataLoader(
                Noisy(), batch_size=self.local_batch_size, sampler=sampler, num_workers=self.workers
            )
        )


class AugmentedByWorkers(Augmented):
    workers = 1


class OwnGenerators(Plain):
    """Generators that the workload keeps, for samples and for noise in the loss; more noise from
    the default ones."""

    def __init__(self, **more):
        super().__init__(**more)
        self.generator = torch.Generator().manual_seed(self.seed)
        self.rng = np.random.default_rng(self.seed)

    def samples(self, rank):
        while True:
            inputs = torch.randn(2, self.local_batch_size, 10, generator=self.generator)[rank]
            yield inputs, inputs.sum(dim=1, keepdim=True)

    def compute_loss(self, model, batch):
        inputs, targets = batch
        noise = (
            torch.randn(inputs.shape, generator=self.generator)
            + self.rng.random()
            + random.random()
            + torch.rand(())
        )
        return nn.functional.mse_loss(model(inputs + noise), targets)


class Distilled(Plain):
    """A teacher that the constructor makes, and numbers that ``batches`` leaves for the loss."""

    def __init__(self, **more):
        super().__init__(**more)
        self.teacher = nn.Linear(10, 1)

    def batches(self, *, rank, world_size, device):
        self.weight = 0.5
        yield from super().batches(rank=rank, world_size=world_size, device=device)

    def compute_loss(self, model, batch):
        with torch.no_grad():
            taught = self.teacher(batch[0])
        return super().compute_loss(model, batch) + self.weight * nn.functional.mse_loss(
            model(batch[0]), taught
        )


class ChangesItsBatch(Plain):
    """Normalises in place, as memory is short."""

    def compute_loss(self, model, batch):
        batch[0].mul_(0.5)
        return super().compute_loss(model, batch)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(10, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, inputs, hidden=None):
        found, hidden = self.cell(inputs[None], hidden)
        return self.out(found[0]), hidden


class KeepsHidden(Plain):
    """A hidden state that the workload keeps from batch to batch."""

    hidden = None

    def build_model(self):
        return Recurrent()

    def compute_loss(self, model, batch):
        found, hidden = model(batch[0], self.hidden)
        self.hidden = tuple(one.detach() for one in hidden)
        return nn.functional.mse_loss(found, batch[1])


class RecurrentWithMemory(Recurrent):
    memory = None

    def forward(self, inputs):
        found, hidden = super().forward(inputs, self.memory)
        self.memory = tuple(one.detach() for one in hidden)
        return found


class KeepsHiddenInModel(Plain):
    def build_model(self):
        return RecurrentWithMemory()


class KeepsHiddenInClass(KeepsHidden):
    """Where no fresh workload is without it."""

    def compute_loss(self, model, batch):
        found, hidden = model(batch[0], type(self).hidden)
        type(self).hidden = tuple(one.detach() for one in hidden)
        return nn.functional.mse_loss(found, batch[1])


class DrawsFromTheModule(Plain):
    def compute_loss(self, model, batch):
        return super().compute_loss(model, batch) * (1 + RNG.random())


class LeavesOutALayerByTurns(Plain):
    """Every second pass of the process."""

    passes = itertools.count()

    def compute_loss(self, model, batch):
        part = model if next(self.passes) % 2 else model[:1]
        return part(batch[0]).square().mean()


class MaskedNet(nn.Module):
    """A causal mask of -inf in a persistent buffer, a best value that is infinite, and a mean that
    nobody has taken yet."""

    def __init__(self):
        super().__init__()
        self.attend = nn.Linear(10, 10)
        self.out = nn.Linear(10, 1)
        self.register_buffer("mask", torch.full((10, 10), float("-inf")).triu(1))
        self.register_buffer("best", torch.tensor(float("inf")))
        self.register_buffer("mean", torch.full((3,), float("nan")))
        self.frozen = nn.Parameter(torch.full((4,), float("-inf")), requires_grad=False)

    def forward(self, inputs):
        scores = (self.attend(inputs)[:, :, None] * inputs[:, None, :] + self.mask).softmax(dim=-1)
        return self.out((scores * inputs[:, None, :]).sum(dim=-1))


class Masked(Plain):
    def build_model(self):
        return MaskedNet()


class OddNet(nn.Sequential):
    """Tensors of other kinds than trained floats, a state that is no tensor, and buffers that come
    and grow in forward."""

    def __init__(self):
        super().__init__(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
        self.version = nn.Parameter(torch.tensor([3, 4]), requires_grad=False)
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("nothing", torch.zeros(0, 3))
        self.register_buffer("turned", torch.arange(100.0).reshape(10, 10).t())
        self.register_buffer("projection", torch.randn(10, 10), persistent=False)
        self.table = torch.randn(10)

    def forward(self, inputs):
        self.steps += 1
        return super().forward(inputs @ self.projection + self.table)

    def get_extra_state(self):
        return {"calls": int(self.steps)}

    def set_extra_state(self, state):
        self.restored = state


class Odd(Plain):
    def build_model(self):
        return OddNet()


class Half(Plain):
    dtype = torch.bfloat16

    def build_model(self):
        return super().build_model().to(self.dtype)

    def samples(self, rank):
        return (
            (inputs.to(self.dtype), targets.to(self.dtype))
            for inputs, targets in super().samples(rank)
        )


class ComplexNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 16, dtype=torch.complex64) / 4)
        self.out = nn.Linear(16, 1)

    def forward(self, inputs):
        return self.out((inputs.to(torch.complex64) @ self.weight).abs())


class Complex(Plain):
    def build_model(self):
        return ComplexNet()

    def build_optimizer(self, model):
        return torch.optim.Adam(model.parameters(), lr=0.01)


class Clipping(torch.optim.SGD):
    """Clips and scales gradients in its step, then frees them."""

    @torch.no_grad()
    def step(self, closure=None):
        gradients = [
            parameter.grad
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for gradient in gradients:
            gradient.mul_(0.1 / norm)
        found = super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None
        return found


class ClipsInStep(Plain):
    def build_optimizer(self, model):
        return Clipping(model.parameters(), lr=0.05, momentum=0.9)


class ClipsInHook(Plain):
    def build_optimizer(self, model):
        optimizer = super().build_optimizer(model)

        def clip(*_):
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)

        optimizer.register_step_pre_hook(clip)
        return optimizer


class Normalised(Plain):
    """A bias before a batch norm has a gradient of nothing but rounding."""

    def build_model(self):
        return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))


class Wrapped:
    """A batch of a class of one's own."""

    def __init__(self, inputs, targets):
        self.content = inputs, targets


class OpaqueBatches(Plain):
    def samples(self, rank):
        return map(
            Wrapped,
            *zip(
                *[one for one, _ in zip(super().samples(rank), range(40), strict=False)],
                strict=True,
            ),
        )

    def batches(self, *, rank, world_size, device):
        yield from self.samples(rank)

    def compute_loss(self, model, batch):
        return super().compute_loss(model, batch.content)

    def count_samples(self, batch):
        return len(batch.content[0])
