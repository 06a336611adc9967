"""A small GPT on any text. The tokens are bytes, so no vocabulary is needed."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer
from torch.utils.data import Dataset

from measurement.errors import PlanError
from workloads.data.files import DataOptions, ExpandedPath, readable
from workloads.data.input import Sample
from workloads.supervised import Supervised

BYTES = 256
HELD_OUT_SHARE = 10
"""In a single file, the last 1/HELD_OUT_SHARE is held out for evaluation."""


class LanguageModelOptions(DataOptions):
    """What a plan may set under ``workload_options``. ``local_batch_size`` counts sequences."""

    data_dir: ExpandedPath = Path("data/input.txt")
    """A text file, or a folder with train.txt and val.txt."""
    size: Literal["nano", "micro", "mini", "gpt2-small"] = "nano"
    """Size of the decoder. Tokens are bytes, so gpt2-small has 86 million parameters instead of
    124."""
    sequence_length: int = Field(default=256, ge=2)
    """Bytes of a sequence."""
    learning_rate: float = Field(default=6e-4, gt=0)
    """Learning rate of the optimizer, before any scaling by ranks."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Weight decay of matrices; biases and norms have none."""


class LanguageModel(Supervised):
    """``Decoder``, trained to predict each byte of a text from those before it."""

    Options = LanguageModelOptions
    options: LanguageModelOptions
    sample_unit = "tokens"

    def build_model(self) -> nn.Module:
        """Return a model of 0.1 (nano), 0.8 (micro), 2.7 (mini) or 85 (gpt2-small) million
        parameters, besides the positions.
        """
        return Decoder(SIZES[self.options.size], sequence_length=self.options.sequence_length)

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """Return AdamW, without weight decay for biases and norms."""
        matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
        vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
        groups = [
            {"params": matrices, "weight_decay": self.options.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return AdamW(groups, lr=self.options.learning_rate, betas=(0.9, 0.95))

    def read_training_set(self) -> Dataset[Sample]:
        """Return the sequences of train.txt, or of the first nine tenths of the file."""
        return Sequences(*self._parts[0], length=self.options.sequence_length)

    def read_held_out_set(self) -> Dataset[Sample]:
        """Return the sequences of val.txt, or of the last tenth of the file."""
        return Sequences(*self._parts[1], length=self.options.sequence_length)

    @cached_property
    def _parts(self) -> list[tuple[Path, range]]:
        """Name the file and the range of its bytes: of the training set, then of the held-out
        set.
        """
        place = self.options.data_dir
        remedy = "set data_dir to a text file, or to a folder with train.txt and val.txt"
        with readable(f"text '{place.absolute()}'", remedy=remedy):
            if place.is_dir():
                paths = [place / "train.txt", place / "val.txt"]
                return [(path, range(path.stat().st_size)) for path in paths]
            size = place.stat().st_size
        cut = size - size // HELD_OUT_SHARE
        return [(place, range(cut)), (place, range(cut, size))]


class Sequences(Dataset[Sample]):
    """Consecutive sequences of a file, read on demand.

    Bytes at the end that fill no sequence are left out.

    Each sample is ``length`` tokens, int64, and for each of them the next one.

    Raises:
        PlanError: the file is too short for one sequence.
    """

    def __init__(self, path: Path, part: range, *, length: int) -> None:
        if len(part) <= length:
            raise PlanError(
                f"'{path}' is too short: {len(part)} bytes"
                f" {'(of its last tenth) ' if part.start else ''}to make sequences of {length}"
                " bytes and the next one; give a longer text, or a smaller sequence_length"
            )
        self.length = length
        self._bytes = np.memmap(
            path, dtype=np.uint8, mode="r", offset=part.start, shape=(len(part),)
        )

    def __len__(self) -> int:
        return (len(self._bytes) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        begin = index * self.length
        tokens = torch.from_numpy(self._bytes[begin : begin + self.length + 1].astype(np.int64))
        return tokens[:-1], tokens[1:]


INITIAL_DEVIATION = 0.02


class Size(NamedTuple):
    """The size of a decoder."""

    layers: int
    heads: int
    width: int


SIZES = {
    "nano": Size(3, 3, 48),
    "micro": Size(4, 4, 128),
    "mini": Size(6, 6, 192),
    "gpt2-small": Size(12, 12, 768),
}


class Block(nn.Module):
    """Attention, then a hidden layer four times as wide, each with a residual connection. float
    [batch, length, width].
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = nn.Linear(size.width, 3 * size.width)
        self.attention_out = nn.Linear(size.width, size.width)
        self.wide_norm = nn.LayerNorm(size.width)
        self.wide = nn.Linear(size.width, 4 * size.width)
        self.wide_out = nn.Linear(4 * size.width, size.width)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self._attend(self.attention_norm(hidden))
        wide = functional.gelu(self.wide(self.wide_norm(hidden)), approximate="tanh")
        out: Tensor = hidden + self.wide_out(wide)
        return out

    def _attend(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        projected = self.attention(hidden).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended: Tensor = self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return attended


class Decoder(nn.Module):
    """Predicts the next byte at every position: int64 [batch, length] to [batch, length, BYTES]."""

    def __init__(self, size: Size, *, sequence_length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(BYTES, size.width)
        self.positions = nn.Embedding(sequence_length, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        for name, parameter in self.named_parameters():
            _initialise(name, parameter, layers=size.layers)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.blocks(self.tokens(tokens) + self.positions(places))
        return functional.linear(self.norm(hidden), self.tokens.weight)


def _initialise(name: str, parameter: Tensor, *, layers: int) -> None:
    """Initialise as GPT-2 does: the more layers add to the residual path, the smaller their output
    weights start.
    """
    if parameter.dim() >= 2:
        nn.init.normal_(
            parameter, std=INITIAL_DEVIATION / ((2 * layers) ** 0.5 if "_out." in name else 1.0)
        )
    elif name.endswith("bias"):
        nn.init.zeros_(parameter)
