"""A fast model whose batches come slowly: each takes one of the two loader processes 100 ms.

Named by path in plans."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import Dataset

from workloads.data.input import InputOptions
from workloads.supervised import SGDOptions, SGDTrained

SLICES = 10
"""Ten of 5 ms for each of a batch's two samples: a sleep ends even while its process is stopped, so
it must be short."""
BATCH_S = 2 * SLICES * 0.005
"""What a loader sleeps for a batch of two: on no machine it comes sooner."""
WORKERS = 2


class SlowSamples(Dataset):
    """As many as are never used up."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        for _ in range(SLICES):
            time.sleep(0.005)
        return torch.ones(4), index % 2


class SlowLoader(SGDTrained):
    """One linear layer, which takes as long to build as a large model: long enough to fill the
    loaders' queue."""

    class Options(SGDOptions):
        loader_workers: int = WORKERS

    options: InputOptions

    def build_model(self):
        time.sleep(0.3)
        return nn.Linear(4, 2)

    def read_training_set(self):
        return SlowSamples()

    def read_held_out_set(self):
        return SlowSamples()
