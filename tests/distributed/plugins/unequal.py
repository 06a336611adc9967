"""A workload whose optimizer averages the weights in a hook, and a backend that takes right
gradients and drops the hook."""

import copy

import torch

from backends.ddp import DDP
from workloads.digits import Digits

UPDATES = 40
"""Of the average after each step: it costs more than the step."""


class Averaged(Digits):
    """Digits with an exponential moving average of the weights, kept in a hook as people keep it,
    which also shrinks them."""

    def build_optimizer(self, model):
        optimizer = super().build_optimizer(model)
        average = copy.deepcopy(list(model.parameters()))

        @torch.no_grad()
        def update(optimizer, _arguments, _more):
            parameters = [
                parameter for group in optimizer.param_groups for parameter in group["params"]
            ]
            for _ in range(UPDATES):
                torch._foreach_lerp_(average, parameters, 0.01)
            torch._foreach_mul_(parameters, 0.999)

        optimizer.register_step_post_hook(update)
        return optimizer


class DropsHooks(DDP):
    """Makes an optimizer of its own from the parameter groups, as Horovod does."""

    def prepare(self, model, build_optimizer):
        def build(model):
            optimizer = build_optimizer(model)
            return type(optimizer)(optimizer.param_groups)

        return super().prepare(model, build)
