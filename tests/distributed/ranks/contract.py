"""A rank that leads one backend after another through its life, and writes down what it saw: see
``test_contract``.

``mpirun -np N python -m tests.distributed.ranks.contract FOLDER BACKEND=TRANSPORT ...``
"""

from __future__ import annotations

import math
import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

from backends import make_backend
from measurement.errors import PlanError
from tests.kit.ranks import leave_what_is_seen

LEARNING_RATE = 0.5


def make_model(rank):
    """Another one on every rank, until ``prepare`` gives all of them rank 0's."""
    torch.manual_seed(100 + rank)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def make_batch(rank):
    """Another one on every rank."""
    rng = torch.Generator().manual_seed(200 + rank)
    return torch.randn(7, 5, generator=rng), torch.randint(3, (7,), generator=rng)


def make_optimizer(model):
    """Its steps are the learning rate times the gradients."""
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def compute_loss(model, rank):
    """Of the rank's batch, in the model's precision."""
    inputs, labels = make_batch(rank)
    return nn.functional.cross_entropy(model(inputs.to(next(model.parameters()).dtype)), labels)


def flat(tensors, model):
    """Tensors by name as one list, in the order of the model's parameters."""
    return torch.cat(
        [tensors[name].detach().flatten() for name, _ in model.named_parameters()]
    ).tolist()


def parameters(model):
    """All of them."""
    return flat(dict(model.named_parameters()), model)


def gradients(model):
    """All of them."""
    return flat({name: parameter.grad for name, parameter in model.named_parameters()}, model)


class Joined:
    """A new model, joined with those of the other ranks."""

    def __init__(self, backend, rank):
        self.rank = rank
        self.bare = make_model(rank)
        self.prepared = backend.prepare(self.bare, make_optimizer)

    def parameters(self):
        """Of all ranks together."""
        return flat(self.prepared.full_parameters(), self.bare)

    def step(self, *, local):
        """Gradients and parameters after it."""
        prepared = self.prepared
        prepared.keeps_gradients = True
        with prepared.local_only() if local else nullcontext():
            prepared.zero_grad()
            prepared.backward(compute_loss(prepared.model, self.rank))
            prepared.step()
        return {
            "gradients": flat(prepared.full_gradients(), self.bare),
            "parameters": self.parameters(),
        }


class Odd(nn.Module):
    """A model with something that not every library carries."""

    def __init__(self, rank, kind):
        super().__init__()
        torch.manual_seed(100 + rank)
        self.kind, self.rank = kind, rank
        self.first = nn.Conv2d(2, 3, 3)
        self.last = nn.Linear(3, 3)
        if kind == "transposed":
            self.last.weight = nn.Parameter(torch.randn(3, 3).t())
        if kind == "buffers":
            for number, dtype in enumerate(
                (torch.bool, torch.bfloat16, torch.complex64, torch.int64, torch.uint8)
            ):
                self.register_buffer(f"of{number}", torch.randint(2, (4,)).to(dtype))
            self.register_buffer("scalar", torch.tensor(bool(rank)))
            self.register_buffer("rows", torch.randn(4, 6)[:, ::2])
        if kind == "frozen":
            self.table = nn.Parameter(torch.randint(9, (4,)), requires_grad=False)
        if kind in ("bfloat16", "complex64"):
            self.to(getattr(torch, kind))
        if kind == "channels_last":
            self.to(memory_format=torch.channels_last)

    def get_extra_state(self):
        return {"rank": self.rank}

    def set_extra_state(self, state):
        pass

    def forward(self, images):
        images = images.to(self.first.weight.dtype)
        if self.kind == "channels_last":
            images = images.contiguous(memory_format=torch.channels_last)
        return self.last(self.first(images).mean(dim=(2, 3))).abs()


class NeedsRate(torch.optim.SGD):
    """Without a default for its learning rate."""

    def __init__(self, params, rate):
        super().__init__(params, lr=rate)


class Around(torch.optim.Optimizer):
    """Steps another optimizer."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, inner.defaults)

    def step(self, closure=None):
        return self.inner.step(closure)


ODD = (
    "plain",
    "channels_last",
    "transposed",
    "buffers",
    "frozen",
    "bfloat16",
    "complex64",
    "needs_rate",
    "around",
)


def odd_optimizer(kind, model):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if kind == "needs_rate":
        return NeedsRate(trained, LEARNING_RATE)
    optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE)
    return Around(optimizer) if kind == "around" else optimizer


def odd_step(backend, rank, world_size, kind):
    """Why the backend refuses such a model; or how far a rank is from rank 0's tensors, from the
    mean gradient and its step."""
    model = Odd(rank, kind)
    try:
        backend.check_model(model, odd_optimizer(kind, model), missing=[], sparse=[])
        prepared = backend.prepare(model, lambda made: odd_optimizer(kind, made))
    except (PlanError, NotImplementedError) as error:
        return str(error)
    wanted, started = (
        {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}
        for state in (Odd(0, kind).state_dict(), prepared.full_parameters())
    )
    batches = [
        torch.randn(2, 2, 5, 5, generator=torch.Generator().manual_seed(one))
        for one in range(world_size)
    ]
    begun = {name: one.detach().clone() for name, one in started.items()}
    prepared.keeps_gradients = True
    prepared.zero_grad()
    prepared.backward(prepared.model(batches[rank]).float().mean())
    prepared.step()
    reference = Odd(0, kind)
    sum(reference(batch).float().mean() for batch in batches).div(world_size).backward()
    ended, found = prepared.full_parameters(), prepared.full_gradients()
    trained = {name: one.grad for name, one in reference.named_parameters() if one.requires_grad}
    return {
        "started": max(float((begun[name] != one).sum()) for name, one in wanted.items()),
        "gradients": max(
            float((found[name] - one).abs().max() / one.abs().max())
            for name, one in trained.items()
        ),
        "step": max(
            float((ended[n] - begun[n] + LEARNING_RATE * found[n]).abs().max()) for n in trained
        ),
    }


def life(one, world, store=None):
    """Of ``BACKEND=TRANSPORT``, from ``setup`` to ``teardown``. Collective."""
    reference, _, transport = one.rpartition("=")
    backend = make_backend(reference, transport=transport or None, options={})
    os.environ |= backend.environment()
    counted = backend.setup(world, device=torch.device("cpu"), store=store)
    first = Joined(backend, world.rank)
    seen = {"counted": [counted.rank, counted.world_size], "started": first.parameters()}
    if backend.has_local_steps:
        seen |= {"local": first.step(local=True), "after_local": first.step(local=False)}
    again = Joined(backend, world.rank)
    seen |= {
        "synced": again.step(local=False),
        "described": backend.describe(),
        "gathered": backend.all_gather_object(
            {"rank": world.rank, "not a number": math.inf}, dict[str, float]
        ),
        "told": [len(told) for told in backend.all_gather_bytes(b"x" * (1 + 5 * world.rank))],
        "broadcast": backend.broadcast_bytes(f"from {world.rank}".encode()).decode(),
    }
    seen["odd"] = {kind: odd_step(backend, world.rank, world.world_size, kind) for kind in ODD}
    backend.barrier()
    del first, again
    backend.teardown()
    return seen | {"is_connected": dist.is_initialized()}


if __name__ == "__main__":
    leave_what_is_seen(sys.argv[1], sys.argv[2:], life)
