"""Refuses models with tensors that a library cannot send to the ranks or reduce among them, by
their names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor, nn

from measurement.errors import PlanError

GLOO = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128}
    | {torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool}
)
"""Dtypes that ``torch.distributed`` sends and reduces over Gloo, and over NCCL (torch 2.15)."""
Named = Iterable[tuple[str, Tensor]]


def state_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of ``state_dict()``; a module's extra state may be anything."""
    return {
        name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)
    }


def trained_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters whose gradients are exchanged."""
    return (
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    )


def require_sent(tensors: Named, *, library: str, dtypes: Collection[torch.dtype] | None) -> None:
    """Refuse parameters and buffers that rank 0 cannot send to the other ranks.

    ``dtypes``: those that can be sent; None: any.

    Raises:
        PlanError: the first, with what to do.
    """
    for name, tensor in tensors:
        reason = _unsent_reason(tensor, dtypes)
        if reason:
            raise PlanError(
                f"{library} cannot send rank 0's '{name}' to the other ranks: {reason}; or leave"
                " this arm out"
            )


def require_reduced(
    model: nn.Module, *, library: str, dtypes: Collection[torch.dtype], remedy: str
) -> None:
    """Refuse parameters to be trained whose gradients cannot be reduced, with a ``PlanError``."""
    for name, parameter in trained_parameters(model):
        if parameter.dtype not in dtypes:
            raise PlanError(
                f"{library} reduces no {_name(parameter.dtype)} gradients, which '{name}' has;"
                f" {remedy}"
            )


def _unsent_reason(tensor: Tensor, dtypes: Collection[torch.dtype] | None) -> str | None:
    if tensor.layout != torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else _name(tensor.layout)
        return (
            f"its layout is {layout}; keep it as a plain attribute that register_buffer() does not"
            " know, or in the batch"
        )
    if tensor.is_quantized:
        return (
            f"it is quantised ({_name(tensor.dtype)}); register what it stands for, .dequantize()"
        )
    if any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    ):
        return "its elements share memory, as expand() makes them; register a copy of it, .clone()"
    if dtypes is not None and tensor.dtype not in dtypes:
        accepted = ", ".join(sorted(map(_name, dtypes)))
        return f"its dtype is {_name(tensor.dtype)}, and {accepted} can be sent; convert it"
    return None


def _name(what: torch.dtype | torch.layout) -> str:
    return str(what).removeprefix("torch.")
