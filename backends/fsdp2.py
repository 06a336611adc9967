"""Sharded data parallelism: ``torch.distributed.fsdp.fully_shard`` (FSDP2) over NCCL, Gloo or MPI,
and ``replicate`` beside it.

Each rank keeps its share of parameters, gradients and optimizer state. Parameters are gathered for
each forward and backward pass, gradients are reduced and scattered. So no step is possible without
communication, and there are no local steps. ``replicate`` is the same with a whole copy on each
rank: gradients are reduced unit by unit, and stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from backends.base import BuildOptimizer, Prepared, Setting, Value, state_tensors
from backends.torch_distributed import ProcessGroupOptions, TorchDistributed
from measurement.distances import arithmetic_of
from measurement.errors import PlanError, shortened

Dtype = Literal["float32", "bfloat16", "float16"]


class ReplicateOptions(ProcessGroupOptions):
    """Named as in ``replicate`` and ``MixedPrecisionPolicy``; None leaves PyTorch's default."""

    module_classes: list[str] | None = None
    """Classes whose instances are exchanged one at a time, by name. None: the elements of each
    outermost ``nn.ModuleList`` and ``nn.Sequential``. An empty list: the whole model at once."""
    param_dtype: Dtype | None = None
    """Type of the gathered parameters, in which forward and backward passes compute."""
    reduce_dtype: Dtype | None = None
    """Type of the gradients while they are reduced."""
    cast_forward_inputs: bool = True
    """Cast the inputs of forward passes to ``param_dtype``."""


class FSDP2Options(ReplicateOptions):
    """Named as in ``fully_shard``."""

    reshard_after_forward: bool | int | None = None
    """Whether parameters are freed after the forward pass and gathered again. An integer: spread
    over so many ranks meanwhile."""
    replicas: int = Field(default=1, ge=1)
    """Copies of the model, each sharded over as many ranks (a mesh of two dimensions, HSDP); it
    divides the number of ranks."""
    prefetch: int | None = Field(default=None, ge=1)
    """Units that are gathered ahead (``set_modules_to_forward_prefetch`` and
    ``..._backward_prefetch``); it takes their memory."""


class FSDP2Prepared(Prepared):
    """A module whose parameters are ``DTensor``s."""

    is_sharded = True

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Gradients add up unsharded and are reduced in the last micro-step."""
        assert isinstance(self.bare, FSDPModule)
        self.bare.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.bare.set_requires_gradient_sync(True)

    def full_gradients(self) -> dict[str, Tensor]:
        """Gathered from all ranks. Collective."""
        return _full(super().full_gradients())

    def full_parameters(self) -> dict[str, Tensor]:
        """Gathered from all ranks. Collective."""
        return _full(super().full_parameters())

    def full_optimizer_state(self) -> dict[str, Any]:
        """Gathered from all ranks. Collective."""
        return _full(self.optimizer.state_dict())


class Replicate(TorchDistributed):
    """``replicate`` on each unit and on the whole model, PyTorch's successor of DDP.

    Buffers are sent only once.
    """

    Options = ReplicateOptions
    options: ReplicateOptions
    has_local_steps = False
    _units: int = 0

    def check_model(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        missing: Sequence[str],
        sparse: Sequence[str],
    ) -> list[str]:
        """Gradients are reduced as dense tensors."""
        if sparse:
            raise PlanError(
                f"{type(self).__name__} reduces dense gradients, and those of {shortened(sparse)}"
                " are sparse; build the embedding with sparse=False, or leave this arm out"
            )
        return []

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Send rank 0's parameters and buffers to all ranks, wrap the model, then build the
        optimizer. Collective.

        Gradient hooks of parameters are lost, since parameters are replaced; the gate sees it.
        """
        for tensor in state_tensors(model).values():
            # Gloo sends the wrong memory of a tensor with gaps (torch 2.15)
            sent = tensor.contiguous()
            dist.broadcast(sent, src=0)
            if sent is not tensor:
                tensor.copy_(sent)
        units = [*sharding_units(model, self.options.module_classes), model]
        wrap = self.wrapper()
        for unit in units:
            wrap(unit)
        self._units = len(units)
        return FSDP2Prepared(model, build_optimizer(model))

    def wrapper(self) -> Callable[[nn.Module], Any]:
        """The function that wraps each unit. Collective."""
        from torch.distributed._composable.replicate_with_fsdp import replicate

        mesh = init_device_mesh(self._device.type, (dist.get_world_size(),))
        return partial(replicate, mesh=mesh, mp_policy=self._mixed_precision())

    def _mixed_precision(self) -> MixedPrecisionPolicy:
        options = self.options
        param_dtype, reduce_dtype = (
            name and getattr(torch, name) for name in (options.param_dtype, options.reduce_dtype)
        )
        return MixedPrecisionPolicy(
            param_dtype, reduce_dtype, cast_forward_inputs=options.cast_forward_inputs
        )

    def describe(self) -> dict[str, Any]:
        """The facts of the process group, and the number of units."""
        return super().describe() | ({"sharding_units": self._units} if self._units else {})

    @property
    def gradient_tolerance(self) -> float:
        """The tolerance of the coarser of both dtypes."""
        return max(
            arithmetic_of(dtype or "float32").gradient
            for dtype in (self.options.param_dtype, self.options.reduce_dtype)
        )


class FSDP2(Replicate):
    """``fully_shard`` on each unit and on the whole model, as in PyTorch's tutorial."""

    Options = FSDP2Options
    options: FSDP2Options

    def check(self, *, world_size: int) -> None:
        """Require that all copies have equally many ranks."""
        if world_size % self.options.replicas:
            raise PlanError(
                f"replicas is {self.options.replicas}, which does not divide {world_size} ranks;"
                " give one that does"
            )

    def search_space(self, *, has_buffers: bool, several_hosts: bool) -> list[Setting]:
        """Whether parameters stay gathered until the backward pass, and how many units are gathered
        ahead.
        """
        freed = Setting(option="reshard_after_forward", values=(None, False))
        return [freed, Setting(option="prefetch", values=(None, 1, 2))]

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """As ``Replicate``, and set the units that each gathers ahead. Collective."""
        prepared, ahead = super().prepare(model, build_optimizer), self.options.prefetch
        units: list[Any] = (
            [unit for unit in model.modules() if isinstance(unit, FSDPModule)] if ahead else []
        )
        for number, unit in enumerate(units):
            unit.set_modules_to_forward_prefetch(units[number + 1 :][:ahead])
            unit.set_modules_to_backward_prefetch(units[:number][::-1][:ahead])
        return prepared

    def wrapper(self) -> Callable[[nn.Module], Any]:
        """``fully_shard`` over all ranks, or over those of each copy. Collective."""
        ranks, copies = dist.get_world_size(), self.options.replicas
        sizes = {"replicate": copies, "shard": ranks // copies} if copies > 1 else {"shard": ranks}
        mesh = init_device_mesh(
            self._device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)
        )
        reshard = self.options.reshard_after_forward
        return partial(
            fully_shard, mesh=mesh, mp_policy=self._mixed_precision(), reshard_after_forward=reshard
        )


def sharding_units(model: nn.Module, class_names: list[str] | None) -> Iterator[nn.Module]:
    """The modules that are gathered one at a time, inner ones first; see
    ``FSDP2Options.module_classes``.
    """
    if class_names is None:
        yield from _elements(model)
        return
    units = [
        module
        for module in model.modules()
        if type(module).__name__ in class_names and module is not model
    ]
    yield from reversed(units)


def _elements(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            for element in child.children():
                if next(element.parameters(), None) is not None:
                    yield element
        else:
            yield from _elements(child)


def _full(sharded: dict[str, Value]) -> dict[str, Value]:
    """Gather the sharded tensors in it, at any depth. Collective."""
    whole: dict[str, Value] = tree_map_only(DTensor, DTensor.full_tensor, sharded)
    return whole
