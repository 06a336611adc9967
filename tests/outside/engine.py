"""A backend in one file, in the manner of DeepSpeed: an engine that builds the optimizer and owns
backward and step."""

import torch
import torch.distributed as dist
from torch import nn

from backends.base import Prepared
from backends.torch_distributed import TorchDistributed


class Engine(nn.Module):
    """Reduces all gradients in one flat buffer in the last backward of a step, and drops them in
    ``step``."""

    def __init__(self, module, build_optimizer, micro_steps):
        super().__init__()
        self.module, self.micro_steps, self.backwards = module, micro_steps, 0
        self.optimizer = build_optimizer(module)

    def forward(self, *inputs, **more):
        return self.module(*inputs, **more)

    def trained(self):
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def backward(self, loss):
        loss.backward()
        self.backwards += 1
        if self.backwards % self.micro_steps == 0:
            flat = torch.cat([parameter.grad.flatten() for parameter in self.trained()])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for parameter, part in zip(
                self.trained(), flat.split([p.numel() for p in self.trained()]), strict=True
            ):
                parameter.grad.copy_(part.view_as(parameter))

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class EnginePrepared(Prepared):
    """Hands everything on to the engine."""

    owns_step = True

    def __init__(self, engine):
        super().__init__(engine.module, engine.optimizer, model=engine)
        self.gradients = {}

    def zero_grad(self):
        """The engine's step has done it."""

    def backward(self, loss):
        self.model.backward(loss)

    def step(self):
        if self.keeps_gradients:
            self.gradients = {
                name: gradient.clone() for name, gradient in super().full_gradients().items()
            }
        self.model.step()

    def full_gradients(self):
        return self.gradients


class EngineBackend(TorchDistributed):
    """Over ``torch.distributed``; an engine takes no step without the others."""

    has_local_steps = False

    def prepare(self, model, build_optimizer):
        for tensor in [*model.parameters(), *model.buffers()]:
            sent = tensor.detach().contiguous()
            dist.broadcast(sent, src=0)
            tensor.detach().copy_(sent)
        return EnginePrepared(Engine(model, build_optimizer, self.micro_steps))
