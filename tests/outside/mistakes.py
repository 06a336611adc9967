"""Workloads as people write them at first: each has one thing that fails later, or that looks like
a mistake and is none."""

import collections
import dataclasses

import numpy as np
import torch
from torch import nn

from tests.outside.idioms import Plain


class Scripted(Plain):
    """Takes no hooks."""

    def build_model(self):
        return torch.jit.script(super().build_model())


class Net(nn.Module):
    """With a method beside ``forward``, and a part that can be called by itself."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(10, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.body(x))

    def loss(self, x, y):
        return nn.functional.mse_loss(self(x), y)


class OwnLoss(Plain):
    def build_model(self):
        return Net()

    def compute_loss(self, model, batch):
        return model.loss(*batch)


class InnerModule(OwnLoss):
    def compute_loss(self, model, batch):
        return nn.functional.mse_loss(getattr(model, "module", model)(batch[0]), batch[1])


class PartAlone(OwnLoss):
    def compute_loss(self, model, batch):
        net = getattr(model, "module", model)
        return nn.functional.mse_loss(net.head(net.body(batch[0])), batch[1])


class KeptModel(OwnLoss):
    def build_model(self):
        self.net = Net()
        return self.net

    def compute_loss(self, model, batch):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])


class NeverCalled(OwnLoss):
    def build_model(self):
        self.net = Net()
        return self.net

    def compute_loss(self, model, batch):
        hidden = nn.functional.linear(batch[0], self.net.body.weight)
        return nn.functional.mse_loss(nn.functional.linear(hidden, self.net.head.weight), batch[1])


class Checkpointed(OwnLoss):
    """Parts are called again in the backward pass, which is no mistake."""

    def build_model(self):
        net = Net()
        net.forward = lambda x: net.head(
            torch.utils.checkpoint.checkpoint(net.body, x, use_reentrant=False)
        )
        return net

    def compute_loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0].requires_grad_()), batch[1])


@dataclasses.dataclass
class Inner:
    x: torch.Tensor
    note: str | None = None


@dataclasses.dataclass
class Outer:
    inner: Inner
    y: torch.Tensor


class Graph:
    """As PyTorch Geometric's batches: attributes, and a way to move them."""

    def __init__(self, **given):
        self.__dict__.update(given)


Pair = collections.namedtuple("Pair", "x y")
KINDS = {
    "coo": lambda x, y: (x, y, torch.eye(len(x)).to_sparse()),
    "none": lambda x, y: (x, y, None, "a text", b"bytes", 3, {"a": [None]}),
    "dataclass": lambda x, y: Outer(inner=Inner(x), y=y),
    "graph": lambda x, y: Graph(x=x, y=y, edges=torch.eye(len(x)).to_sparse()),
    "numpy": lambda x, y: {"x": x, "y": y, "ids": np.arange(9), "names": np.array([None, "a"])},
    "named": Pair,
    "jagged": lambda x, y: (x, y, torch.nested.nested_tensor([*x], layout=torch.jagged)),
    "quantised": lambda x, y: (x, y, torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)),
}
"""Batches of every kind that people have, by name."""


class Batches(Plain):
    """``kind`` is set by the test."""

    kind = "coo"

    def batches(self, **place):
        for x, y in super().batches(**place):
            yield KINDS[self.kind](x, y)

    def count_samples(self, batch):
        return self.local_batch_size

    def compute_loss(self, model, batch):
        if isinstance(batch, Outer):
            x, y = batch.inner.x, batch.y
        elif isinstance(batch, Graph):
            x, y = batch.edges @ batch.x, batch.y
        elif isinstance(batch, dict):
            x, y = batch["x"], batch["y"]
        else:
            x, y = batch[:2]
        if self.kind == "coo":
            x = batch[2] @ x
        return nn.functional.mse_loss(model(x), y)


class Exits(Plain):
    def build_model(self):
        raise SystemExit("no GPU")
