"""Tensors and plain values as bytes, for files and between ranks; nothing else comes out of what is read."""

from __future__ import annotations

import io
from typing import Any

import torch


def write_tensors(value: Any) -> bytes:
    """Write dicts, lists and tuples of tensors and plain values. Not collective."""
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def read_tensors(data: bytes) -> Any:
    """Read what ``write_tensors`` wrote; tensors come to the CPU. Not collective."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
