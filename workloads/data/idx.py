"""Reads IDX files, the format of MNIST and its relatives: unsigned bytes, raw or compressed.

The format: http://yann.lecun.com/exdb/mnist, "FILE FORMATS FOR THE MNIST DATABASE".
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from measurement.errors import PlanError
from workloads.data.compressed import read_whole

UNSIGNED_BYTES = 0x08
MOST_BYTES = 2 << 30
"""The largest file, decompressed: EMNIST's largest has 0.5 GiB."""


def read_idx(path: Path, *, dimensions: int) -> Tensor:
    """Read a uint8 tensor with the given number of dimensions: 3 for a file of images, 1 for a file of labels.

    Raises:
        PlanError: the file is damaged, or has another format.
    """
    content = _content(path)
    magic = bytes([0, 0, UNSIGNED_BYTES, dimensions])
    if content[:4] != magic:
        raise PlanError(
            f"'{path}' is no IDX file of unsigned bytes in {dimensions} dimension{'s' * (dimensions > 1)}: it begins with "
            f"{content[:4].hex(' ') or 'nothing'} where {magic.hex(' ')} is right; fetch it again, or see whether it was renamed"
        )
    begin = 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, begin, 4)]
    if len(content) < begin or len(content) != begin + math.prod(shape):
        promised = f"{' x '.join(map(str, shape))} values ({begin + math.prod(shape)} bytes)"
        raise PlanError(f"'{path}' is truncated or damaged: {promised} promised, {len(content)} bytes found; fetch it again")
    if not math.prod(shape):
        raise PlanError(f"'{path}' is empty: its header says {' x '.join(map(str, shape))} values; fetch it again")
    return torch.frombuffer(content, dtype=torch.uint8, offset=begin).reshape(shape)


def _content(path: Path) -> bytearray:
    """Read the whole file, decompressed. A bytearray, because torch wants a writable buffer."""
    content = read_whole(path, most=MOST_BYTES, member=path.name)
    if len(content) > MOST_BYTES:
        raise PlanError(
            f"'{path}' holds more than {MOST_BYTES >> 20} MiB, decompressed, and MNIST's relatives hold less; fetch it again"
        )
    return content
