"""A rank whose model and optimizer have every kind of hook, and which counts how often they ran:
see ``test_hooks``.

``python -m runners.spawn --nproc-per-node N -m tests.distributed.ranks.hooked FOLDER NAME ...``
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import torch
from torch import nn

from backends import make_backend
from runners.rank.precision import StepPrecision
from tests.distributed.ranks.contract import make_batch, make_model
from tests.kit.ranks import leave_what_is_seen

MICRO_STEPS, STEPS = 2, 3
ENGINE = f"{Path(__file__).parents[2] / 'outside' / 'engine.py'}:EngineBackend"
BACKENDS = {
    "single": ("single", None, {}),
    "ddp": ("ddp", "gloo", {}),
    "zero": ("ddp", "gloo", {"zero_redundancy_optimizer": True}),
    "naive": ("naive", "gloo", {}),
    "fsdp2": ("fsdp2", "gloo", {}),
    "engine": (ENGINE, "gloo", {}),
    "horovod": ("horovod", "gloo", {}),
}


class Decaying(torch.optim.SGD):
    """Does what an attribute says that is in no parameter group."""

    def __init__(self, params, lr=0.1, momentum=0.9):
        super().__init__(params, lr=lr, momentum=momentum)
        self.factor = 1.0

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(self.factor)
        return super().step(closure)


class Hooked:
    """Makes model and optimizer, and keeps what their hooks saw."""

    def __init__(self, *, parameter_hooks=False):
        self.parameter_hooks = parameter_hooks
        self.ran, self.rates, self.groups, self.norms = Counter(), [], set(), []

    def counting(self, kind):
        def hook(*arguments, **more):
            self.ran[kind] += 1

        return hook

    def model(self, rank):
        model = make_model(rank)
        for name, module in (("model", model), ("layer", model[0])):
            module.register_forward_pre_hook(self.counting(f"{name} forward pre"))
            module.register_forward_hook(self.counting(f"{name} forward"))
            module.register_full_backward_pre_hook(self.counting(f"{name} backward pre"))
            module.register_full_backward_hook(self.counting(f"{name} backward"))
        if self.parameter_hooks:
            model[2].bias.register_hook(self.counting("gradient"))
            model[2].bias.register_post_accumulate_grad_hook(self.counting("accumulated gradient"))
        return model

    def optimizer(self, model):
        optimizer = Decaying(model.parameters())
        optimizer.factor = 0.5
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        optimizer.register_step_pre_hook(self.before_step)
        optimizer.register_step_post_hook(self.after_step)
        optimizer.register_step_post_hook(lambda *arguments: schedule.step())
        return optimizer

    def before_step(self, optimizer, arguments, more):
        self.ran["step pre"] += 1
        self.norms.append(
            sum(whole(p.grad).square().sum().item() for p in self.parameters(optimizer))
        )

    def after_step(self, optimizer, arguments, more):
        self.ran["step post"] += 1
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.groups.add(len(self.parameters(optimizer)))

    def parameters(self, optimizer):
        return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def backend_of(name, world, store):
    reference, transport, given = BACKENDS[name]
    backend = make_backend(reference, transport=transport, options=given, micro_steps=MICRO_STEPS)
    os.environ |= backend.environment()
    backend.setup(world, device=torch.device("cpu"), store=store)
    return backend


def train(backend, hooked, world, *, max_gradient_norm):
    """What the hooks saw in a few steps, and the parameters after them. Collective."""
    prepared = backend.prepare(hooked.model(world.rank), hooked.optimizer)
    precision = StepPrecision(
        precision="fp32", max_gradient_norm=max_gradient_norm, device=torch.device("cpu")
    )
    # as many samples as can be halved for two ranks and two micro-steps
    inputs, labels = (torch.cat([part, part[:1]]) for part in make_batch(0))
    mine = [
        part.chunk(world.world_size)[world.rank].chunk(MICRO_STEPS) for part in (inputs, labels)
    ]
    parts = list(zip(*mine, strict=True))
    for _ in range(STEPS):
        prepared.zero_grad()
        for number, (some, wanted) in enumerate(parts):
            context = prepared.accumulating() if number + 1 < MICRO_STEPS else torch.enable_grad()
            with context:
                prepared.backward(
                    nn.functional.cross_entropy(prepared.model(some), wanted) / MICRO_STEPS
                )
        precision.step(prepared)
    parameters = prepared.full_parameters().values()
    return {
        "steps": dict(hooked.ran),
        "rates": hooked.rates,
        "groups": sorted(hooked.groups),
        "norms": hooked.norms,
        "parameters": torch.cat([tensor.flatten() for tensor in parameters]).tolist(),
    }


def seen(name, world, store=None):
    """From ``setup`` to ``teardown``. Collective."""
    backend = backend_of(name, world, store)
    cases = {"plain": Hooked(), "parameter": Hooked(parameter_hooks=True)}
    if name != "engine":
        cases["clipped"] = Hooked()
    found = {
        case: train(backend, hooked, world, max_gradient_norm=0.01 if case == "clipped" else None)
        for case, hooked in cases.items()
    }
    backend.barrier()
    backend.teardown()
    return found


if __name__ == "__main__":
    leave_what_is_seen(sys.argv[1], sys.argv[2:], seen)
