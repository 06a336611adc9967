"""A backend in one file: DeepSpeed's ZeRO, stages 1 to 3 (Rajbhandari et al., SC 2020).

``pip install deepspeed``.

Its engine owns the backward pass and the step. On CPUs it compiles an operation of its own at the
first start, by a C++ compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from backends.base import BuildOptimizer, Prepared
from backends.torch_distributed import ProcessGroupOptions, TorchDistributed
from measurement.errors import PlanError


class ZeroOptions(ProcessGroupOptions):
    """Named as in DeepSpeed's ``zero_optimization``."""

    stage: Literal[1, 2, 3] = 1
    """What is spread over the ranks: 1 the optimizer's state, 2 gradients too, 3 parameters too."""


class ZeroPrepared(Prepared):
    """A model, and the engine that trains it."""

    owns_step = True

    def __init__(self, bare: nn.Module, engine: Any) -> None:
        super().__init__(bare, engine.optimizer, model=engine)
        self.engine, self.gradients = engine, {}
        self.is_sharded = engine.zero_optimization_stage() == 3
        if self.is_sharded:
            for parameter in bare.parameters():  # empty from here on; ds_tensor is the rank's part
                parameter.to_local = lambda owner=parameter: owner.ds_tensor

    def zero_grad(self) -> None:
        """The engine's step has done it."""

    def backward(self, loss: Tensor) -> None:
        """Reduces gradients meanwhile. The trainer has weighed the micro-steps. Collective."""
        self.engine.backward(loss, scale_wrt_gas=False)

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """The engine counts micro-steps by calls of its step."""
        yield
        self.engine.step()

    def step(self) -> None:
        """Collective."""
        if self.keeps_gradients:
            from deepspeed.utils import safe_get_full_grad

            named = [
                (name, parameter)
                for name, parameter in self.bare.named_parameters()
                if parameter.requires_grad
            ]
            self.gradients = {
                name: safe_get_full_grad(parameter).clone() for name, parameter in named
            }
        self.engine.step()

    def full_gradients(self) -> dict[str, Tensor]:
        """Those of the last step that keeps them."""
        return self.gradients

    def full_parameters(self) -> dict[str, Tensor]:
        """Gathered from all ranks in stage 3. Collective."""
        import deepspeed

        with deepspeed.zero.GatheredParameters([*self.bare.parameters()]):
            return {name: tensor.clone() for name, tensor in self.bare.state_dict().items()}

    def full_optimizer_state(self) -> dict[str, Any]:
        """Refused: it is in flat buffers, of a rank's part of all parameters."""
        raise NotImplementedError


class Zero(TorchDistributed):
    """``deepspeed.initialize`` with the workload's optimizer."""

    Options = ZeroOptions
    options: ZeroOptions
    has_local_steps = False

    def imports(self) -> Mapping[str, str]:
        """Without it, ``--available`` leaves the arm out."""
        return {**super().imports(), "deepspeed": "DeepSpeed"}

    def environment(self) -> dict[str, str]:
        """On which device DeepSpeed's own operations run."""
        return {
            **super().environment(),
            "DS_ACCELERATOR": "cuda" if self.transport == "nccl" else "cpu",
        }

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Send rank 0's parameters and buffers to all ranks, and have DeepSpeed wrap the model.

        Collective.
        """
        try:
            import deepspeed
        except ImportError as error:
            raise PlanError(
                "DeepSpeed is not installed for the ranks: pip install deepspeed, or leave the"
                " arm out"
            ) from error
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=build_optimizer(model),
            config={
                "train_micro_batch_size_per_gpu": 1,  # used for its log only
                "gradient_accumulation_steps": self.micro_steps,
                "gradient_clipping": 0.0,  # it clips to a norm of 1 by itself
                "zero_optimization": {"stage": self.options.stage},
                "zero_allow_untested_optimizer": True,
            },
        )
        engine.register_forward_pre_hook(_refuse_autocast)
        return ZeroPrepared(model, engine)


def _refuse_autocast(engine: Any, _: Any) -> None:
    if torch.is_autocast_enabled() and not engine.torch_autocast_enabled():
        raise PlanError(
            "DeepSpeed switches autocast off in its forward pass; leave out the plan's precision,"
            " or this arm"
        )
