"""A GPT-style decoder: pre-norm blocks of causal attention and a GELU layer, learnt positions, tied embeddings.

After Radford et al., Language Models are Unsupervised Multitask Learners (2019); the small sizes are those of minGPT.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

INITIAL_DEVIATION = 0.02


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a decoder."""

    layers: int
    heads: int
    width: int


SIZES = {
    "nano": Size(layers=3, heads=3, width=48),
    "micro": Size(layers=4, heads=4, width=128),
    "mini": Size(layers=6, heads=6, width=192),
    "gpt2-small": Size(layers=12, heads=12, width=768),
}


class Block(nn.Module):
    """Attention, then a hidden layer four times as wide, each with a residual connection. float [batch, length, width]."""

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
        apart = self.attention(hidden).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = apart.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended: Tensor = self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return attended


class Decoder(nn.Module):
    """Predicts the next token at every place: int64 [batch, length] to logits [batch, length, vocabulary]."""

    def __init__(self, size: Size, *, vocabulary: int, sequence_length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, size.width)
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
    """Initialise as GPT-2 does: the more layers add to the residual path, the smaller their output weights start."""
    if parameter.dim() >= 2:
        nn.init.normal_(parameter, std=INITIAL_DEVIATION / ((2 * layers) ** 0.5 if "_out." in name else 1.0))
    elif name.endswith("bias"):
        nn.init.zeros_(parameter)
