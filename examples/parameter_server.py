"""A backend in one file: a synchronous parameter server, as Li et al.

(OSDI 2014) describe one, with one server among the workers.

Rank 0 holds the optimizer. It adds up all ranks' gradients, steps, and sends the parameters back:
the other ranks never step. So its link carries every rank's gradients and parameters, where an
all-reduce shares them out.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from backends.base import BuildOptimizer, Prepared
from backends.torch_distributed import TorchDistributed

SERVER = 0


class Served(Prepared):
    """A worker's model, or the server's with the optimizer that is used."""

    owns_step = True
    """Gradients are averaged on the server alone, so that workers can neither clip nor unscale
    them."""

    @torch.no_grad()
    def step(self) -> None:
        """Push gradients, step on the server, pull parameters.

        Collective, unless local: then each rank steps by itself.
        """
        if self.is_local:
            self.optimizer.step()
            return
        for gradient in self._gradients().values():
            dist.reduce(gradient, dst=SERVER)
            gradient.div_(dist.get_world_size())
        if dist.get_rank() == SERVER:
            self.optimizer.step()
        for parameter in self.bare.parameters():
            dist.broadcast(parameter, src=SERVER)

    def full_gradients(self) -> dict[str, Tensor]:
        """The server's. Collective."""
        gradients = {name: gradient.clone() for name, gradient in self._gradients().items()}
        for gradient in gradients.values():
            dist.broadcast(gradient, src=SERVER)
        return gradients

    def _gradients(self) -> dict[str, Tensor]:
        """Zeros where a parameter has none: no rank may wait for what another does not send."""
        gradients = {}
        for name, parameter in self.bare.named_parameters():
            if parameter.requires_grad:
                parameter.grad = (
                    torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                )
                gradients[name] = parameter.grad
        return gradients


class ParameterServer(TorchDistributed):
    """One server, which is a worker, too."""

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Pull the server's parameters and buffers. Collective."""
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=SERVER)
        return Served(model, build_optimizer(model))
