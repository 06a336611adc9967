"""A workload that dies in the middle of an epoch where the environment says so; with dropout and batch norm."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from workloads.data.input import Sample
from workloads.digits import Digits

DIES_AT = "RINGSIDE_TEST_DIES_AT"
"""epoch:batch."""


class Interrupted(Digits):
    """A small model on 211 digits, of which 53 are held out besides."""

    def build_model(self) -> nn.Module:
        """Its losses depend on random numbers drawn in every step."""
        layers = [nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10)]
        return nn.Sequential(*layers)

    def read_training_set(self) -> Dataset[Sample]:
        """Divides by nothing."""
        return Subset(super().read_training_set(), range(211))

    def read_held_out_set(self) -> Dataset[Sample]:
        """Nor does this."""
        return Subset(super().read_held_out_set(), range(53))

    def epoch_batches(self, epoch: int, *, first_batch: int, **where) -> Iterator[tuple[Tensor, Tensor]]:
        """Until it is killed, as by kill -9."""
        for number, batch in enumerate(super().epoch_batches(epoch, first_batch=first_batch, **where), start=first_batch):
            if os.environ.get(DIES_AT) == f"{epoch}:{number}":
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch
