"""Brings tensors into a form that Horovod takes, whatever their dtype and layout in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from backends.carried_tensors import trained_parameters

REDUCED = frozenset({torch.float64, torch.float32, torch.float16})
"""Dtypes of gradients that Horovod 0.28.1 reduces."""
SENT = REDUCED | {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
"""Dtypes that it broadcasts."""


def broadcast_state(hvd: Any, state: Mapping[str, Tensor]) -> None:
    """``hvd.broadcast_parameters``, of any dtype and layout. Collective.

    Horovod 0.28.1 sends no bool, bfloat16 or complex tensors, and none that is not contiguous: their bytes are sent, and copied
    back from where they lie contiguously.
    """
    ordered = {name: tensor.detach().contiguous() for name, tensor in state.items()}
    sent = {name: one if one.dtype in SENT else one.reshape(-1).view(torch.uint8) for name, one in ordered.items()}
    hvd.broadcast_parameters(sent, root_rank=0)
    for name, tensor in state.items():
        if not tensor.is_contiguous():
            tensor.detach().copy_(ordered[name])


class LayoutKept:
    """A compression of Horovod's, for gradients that lie in memory in another order than by their indices, as channels_last has it.

    Horovod 0.28.1 refuses them ("Tensor is required to be contiguous"), so it gets copies. Ranks may differ in their layouts.
    """

    def __init__(self, compression: Any) -> None:
        self._compression = compression

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """What is sent, and what ``decompress`` needs."""
        compressed, context = self._compression.compress(tensor)
        return compressed.contiguous(), (context, tensor.stride())

    def decompress(self, tensor: Tensor, context: Any) -> Tensor:
        """The reverse; the context is None for sparse gradients, which were not compressed."""
        if context is None:
            return tensor
        inner, stride = context
        found: Tensor = self._compression.decompress(tensor, inner)
        if found.stride() == stride:
            return found
        return torch.empty_strided(found.shape, stride, dtype=found.dtype, device=found.device).copy_(found)


def of_another_layout(model: nn.Module) -> list[str]:
    """Names of the parameters whose gradients Horovod does not take as they lie in memory."""
    return [name for name, parameter in trained_parameters(model) if not parameter.is_contiguous()]
