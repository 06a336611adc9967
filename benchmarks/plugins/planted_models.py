"""Workloads with what a named cause needs, such as ``path/to/planted_models.py:BufferedDigits``."""

from __future__ import annotations

import torch
from torch import nn

from workloads.digits import ConvNet, Digits

NUM_BUFFER_BYTES = 4 << 20


class BufferedDigits(Digits):
    """The digits, with 4 MiB of buffers that nothing uses."""

    def build_model(self) -> nn.Module:
        """Return the model with its buffer."""
        model = super().build_model()
        model.register_buffer("unused", torch.zeros(NUM_BUFFER_BYTES // 4))
        return model


class HalfTrained(ConvNet):
    """The digits' model beside a layer of a million parameters of which no output depends."""

    def __init__(self) -> None:
        super().__init__()
        self.never_used = nn.Linear(1000, 1000)


class HalfTrainedDigits(Digits):
    """The digits, with parameters that get no gradient."""

    def build_model(self) -> nn.Module:
        """Return the model with its unused layer."""
        return HalfTrained()


class WideDigits(Digits):
    """Eight linear layers of a million parameters each, in the order in which forward uses them.

    He's initialisation keeps the gradients of the first layers from being so small that float16 has
    too few digits for them.
    """

    def build_model(self) -> nn.Module:
        """Return the model."""
        wide = [layer for _ in range(8) for layer in (nn.Linear(1000, 1000), nn.ReLU())]
        model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 1000), *wide, nn.Linear(1000, 10))
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight)
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
