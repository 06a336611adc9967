"""Workloads with what a named cause needs, such as ``path/to/planted_models.py:BufferedDigits``."""

from __future__ import annotations

import torch
from torch import nn

from workloads.digits import Digits

NUM_BUFFER_BYTES = 4 << 20


class BufferedDigits(Digits):
    """The digits, with 4 MiB of buffers that nothing uses."""

    def build_model(self) -> nn.Module:
        """Return the model with its buffer."""
        model = super().build_model()
        model.register_buffer("unused", torch.zeros(NUM_BUFFER_BYTES // 4))
        return model


class DeepDigits(Digits):
    """Thirty narrow linear layers: sixty tensors of 16 KiB or less."""

    LAYERS = 30

    def build_model(self) -> nn.Module:
        """Return the model."""
        narrow = [layer for _ in range(self.LAYERS) for layer in (nn.Linear(64, 64), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), *narrow, nn.Linear(64, 10))


class DeeperDigits(DeepDigits):
    """150 narrow linear layers: 300 tensors of 16 KiB or less."""

    LAYERS = 150
