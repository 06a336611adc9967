"""Few digits, and a small model with dropout and batch norm."""

from __future__ import annotations

from torch import nn
from torch.utils.data import Subset

from workloads.digits import Digits


class SmallDigits(Digits):
    """A small model on 211 digits, of which 53 are held out besides."""

    def build_model(self):
        """Its losses depend on random numbers drawn in every step."""
        layers = [
            nn.Flatten(),
            nn.Linear(784, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(16, 10),
        ]
        return nn.Sequential(*layers)

    def read_training_set(self):
        """Divides by nothing."""
        return Subset(super().read_training_set(), range(211))

    def read_held_out_set(self):
        """Nor does this."""
        return Subset(super().read_held_out_set(), range(53))
