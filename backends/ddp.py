"""Native data parallelism: ``torch.nn.parallel.DistributedDataParallel`` over NCCL, Gloo or MPI."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from backends.base import MIB, BuildOptimizer, Prepared, Setting
from backends.remade_optimizer import (
    STEP_HOOKS,
    require_remade,
    share_attributes,
    share_hooks,
)
from backends.torch_distributed import ProcessGroupOptions, TorchDistributed
from measurement.distances import arithmetic_of
from measurement.errors import PlanError, shortened

CommHook = Literal["none", "allreduce", "fp16", "bf16", "powersgd"]
DEFAULT_HOOKS = {
    "allreduce": "allreduce_hook",
    "fp16": "fp16_compress_hook",
    "bf16": "bf16_compress_hook",
}
"""Names in ``default_hooks`` of PyTorch."""


NOT_THE_CONSTRUCTORS = {
    *ProcessGroupOptions.model_fields,
    "first_bucket_mb",
    "comm_hook",
    "powersgd_rank",
    "powersgd_start_step",
    "broadcast_buffers",
    "zero_redundancy_optimizer",
}
"""Options that ``DistributedDataParallel`` does not take by these names."""


class DDPOptions(ProcessGroupOptions):
    """Named as in ``DistributedDataParallel``; None leaves PyTorch's default."""

    bucket_cap_mb: float | None = Field(default=None, gt=0)
    """MiB of gradients exchanged at once. PyTorch's default is 25, after a first bucket of 1."""
    first_bucket_mb: float | None = Field(default=None, gt=0)
    """MiB of the first bucket (``torch.distributed._DEFAULT_FIRST_BUCKET_BYTES``), where
    ``bucket_cap_mb`` is left out: what is given there holds for the first one, too."""
    gradient_as_bucket_view: bool = False
    """Let gradients be views of the buckets, which saves memory and a copy."""
    static_graph: bool = False
    """Promise that every step uses the same parameters in the same order."""
    find_unused_parameters: bool = False
    """Search each step's graph for parameters that get no gradient."""
    broadcast_buffers: bool = True
    """Send rank 0's buffers (batch-norm statistics) to all ranks before each forward pass. Horovod
    does not. From PyTorch 2.13 it is given as ``forward_sync_buffers``; before that, false also
    left out the sending at the start."""
    batched_grad_copy: bool = False
    """Copy and divide all gradients of a bucket at once. Since PyTorch 2.12."""
    lazy_bucket_allocation: bool = False
    """Allocate buckets as their gradients become ready, and free them after backward: less memory.
    Since PyTorch 2.15."""
    bucket_cap_mb_list: list[Annotated[int, Field(gt=0)]] | None = None
    """MiB of each bucket, in the order in which gradients become ready; replaces ``bucket_cap_mb``.
    Since PyTorch 2.11."""
    skip_all_reduce_unused_params: bool = False
    """Leave out the exchange of buckets without a used parameter, with ``find_unused_parameters``.
    Ranks that use different parameters hang."""
    comm_hook: CommHook = "none"
    """Compression of the exchanged gradients, by PyTorch's hooks of these names."""
    powersgd_rank: int = Field(default=1, ge=1)
    """Rank of the matrices that the powersgd hook exchanges."""
    powersgd_start_step: int = Field(default=10, ge=2)
    """Steps of plain all_reduce before PowerSGD begins, counted from the model's first."""
    zero_redundancy_optimizer: bool = False
    """Each rank keeps the optimizer state of a share of the parameters and broadcasts them after
    the step (``torch.distributed.optim.ZeroRedundancyOptimizer``)."""


class DDPPrepared(Prepared):
    """DDP's own ``no_sync`` for steps without exchange: autograd hooks run, nothing is sent."""

    def __init__(
        self, bare: nn.Module, optimizer: Optimizer, *, model: DistributedDataParallel
    ) -> None:
        super().__init__(bare, optimizer, model=model)
        self._wrapped = model  # ``model`` may become its compiled version
        self._is_after_local = False

    def zero_grad(self) -> None:
        """Set gradients to zeros where DDP looks for unused parameters and the last steps were
        without exchange.

        DDP counts the parameters of these steps as used, and fails in the next exchange where one
        has no gradient (torch 2.15).
        """
        super().zero_grad()
        if self._is_after_local and self._wrapped.find_unused_parameters:
            sparse = [
                module.weight
                for module in self.bare.modules()
                if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
            ]
            for parameter in {*self.bare.parameters()} - {*sparse}:
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        self._is_after_local = False

    @contextmanager
    def local_only(self) -> Iterator[None]:
        """``no_sync``."""
        with super().local_only(), self._wrapped.no_sync():
            yield
        self._is_after_local = True

    def accumulating(self) -> AbstractContextManager[None]:
        """``no_sync``."""
        return self._wrapped.no_sync()


class ZeroPrepared(DDPPrepared):
    """DDP with a ``ZeroRedundancyOptimizer``, whose state is spread over the ranks."""

    @contextmanager
    def local_only(self) -> Iterator[None]:
        """``no_sync``, and no broadcast of the parameters that each rank has stepped, which the
        optimizer's step ends with.
        """
        optimizer: Any = self.optimizer
        optimizer._sync_params = lambda: None
        try:
            with super().local_only():
                yield
        finally:
            del optimizer._sync_params

    def full_optimizer_state(self) -> dict[str, Any]:
        """Gathered on rank 0; empty on the others. Collective."""
        optimizer: Any = self.optimizer
        optimizer.consolidate_state_dict(to=0)
        return self.optimizer.state_dict() if dist.get_rank() == 0 else {}

    def kept_optimizer_state(self) -> list[Tensor]:
        """The state of this rank's share, which an inner optimizer steps."""
        optimizer: Any = self.optimizer
        return Prepared(self.bare, optimizer.optim).kept_optimizer_state()


def zero_redundancy(optimizer: Optimizer) -> Optimizer:
    """An optimizer like the given one, of the same class and parameter groups, with its state
    spread over the ranks.

    Step hooks run after the ranks have sent each other their parameters, with all parameters. Hooks
    of the state, of which a rank has a share, do not run.

    Raises:
        PlanError: the optimizer has something that would be lost.
    """
    from torch.distributed.optim import ZeroRedundancyOptimizer

    _require_sharded(optimizer)
    sharded = ZeroRedundancyOptimizer(
        optimizer.param_groups, optimizer_class=type(optimizer), **_accepted_defaults(optimizer)
    )
    share_attributes(optimizer, sharded.optim)
    share_hooks(optimizer, sharded, STEP_HOOKS)
    return sharded


def _accepted_defaults(optimizer: Optimizer) -> dict[str, Any]:
    """The defaults that its constructor takes: AdamW's also have Adam's decoupled_weight_decay."""
    accepted = inspect.signature(type(optimizer)).parameters
    return {name: value for name, value in optimizer.defaults.items() if name in accepted}


def _require_sharded(optimizer: Optimizer) -> None:
    require_remade(
        optimizer,
        "ZeroRedundancyOptimizer",
        lambda groups: type(optimizer)(groups, **_accepted_defaults(optimizer)),
    )


class DDP(TorchDistributed):
    """Stock DDP, configured as a user would."""

    Options = DDPOptions
    options: DDPOptions
    _wrapped: DistributedDataParallel | None = None

    def check(self, *, world_size: int) -> None:
        """Refuse combinations that PyTorch accepts and that then hang."""
        options = self.options
        if (
            self.transport == "gloo"
            and options.comm_hook == "powersgd"
            and (options.bucket_cap_mb or 25) < 100
        ):
            raise PlanError(
                "comm_hook 'powersgd' over gloo deadlocks with two or more buckets (bucket_cap_mb"
                f" = {options.bucket_cap_mb or 25}); set bucket_cap_mb: 100 or more so that one"
                " bucket holds the model"
            )
        sizes = ("bucket_cap_mb", "first_bucket_mb", "bucket_cap_mb_list")
        given = [name for name in sizes if getattr(options, name) is not None]
        if len(given) > 1:
            raise PlanError(f"DDP heeds only one of {' and '.join(given)}; leave out the others")
        if options.static_graph and self.micro_steps > 1:
            raise PlanError(
                "static_graph and micro_steps > 1 do not work together in PyTorch's DDP (no_sync);"
                " drop one"
            )

    def search_space(self, *, has_buffers: bool, several_hosts: bool) -> list[Setting]:
        """Bucket sizes, views, a static graph where gradients are not accumulated, buffers where
        there are any; hooks are lossy.
        """
        flags = ["gradient_as_bucket_view"]
        if _wrapper_takes("batched_grad_copy"):
            flags.append("batched_grad_copy")
        if self.micro_steps == 1 and not self.options.find_unused_parameters:
            flags.append("static_graph")
        if has_buffers:
            flags.append("broadcast_buffers")
        return [
            Setting(option="bucket_cap_mb", values=(1.0, 5.0, 10.0, None, 50.0, 100.0, 400.0)),
            Setting(
                option="first_bucket_mb",
                values=(0.25, None, 5.0),
                only_with={"bucket_cap_mb": None},
            ),
            *(Setting(option=name, values=(False, True)) for name in flags),
            Setting(option="comm_hook", values=("none", "bf16", "fp16"), is_lossy=True),
        ]

    def users_code(self) -> list[str]:
        """The wrapper's arguments, and what is set around it."""
        options, lines = self.options, list[str]()
        first = options.first_bucket_mb
        if first is not None:
            lines.append(f"torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = {int(first * MIB)}")
        arguments = (f"{name}={value!r}" for name, value in self._arguments().items())
        lines.append(f"model = DistributedDataParallel({', '.join(['model', *arguments])})")
        if options.comm_hook == "powersgd":
            lines += [
                "state = powerSGD_hook.PowerSGDState(None,"
                f" matrix_approximation_rank={options.powersgd_rank},"
                f" start_powerSGD_iter={options.powersgd_start_step})",
                "model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)",
            ]
        elif options.comm_hook != "none":
            hook = DEFAULT_HOOKS[options.comm_hook]
            lines.append(f"model.register_comm_hook(None, default_hooks.{hook})")
        if options.zero_redundancy_optimizer:
            lines.append(
                "optimizer = ZeroRedundancyOptimizer(optimizer.param_groups,"
                " optimizer_class=type(optimizer))"
            )
        return lines

    def check_model(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        missing: Sequence[str],
        sparse: Sequence[str],
    ) -> list[str]:
        """DDP waits for every gradient, unless an option makes it look for missing ones."""
        options = self.options
        if options.zero_redundancy_optimizer:
            _require_sharded(optimizer)
        if missing and not (options.find_unused_parameters or options.static_graph):
            raise PlanError(
                f"DDP waits for the gradients of all parameters, and {shortened(missing)} got none"
                " from a batch; give the arm options: {find_unused_parameters: true}, or set"
                " requires_grad = False on what is never trained"
            )
        if sparse and (options.comm_hook != "none" or self.transport == "mpi"):
            raise PlanError(
                f"DDP exchanges sparse gradients ({shortened(sparse)}) over gloo or nccl without"
                " comm_hook only; change the arm, or build the embedding with sparse=False"
            )
        return []

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Wrap the model; its constructor broadcasts rank 0's parameters and buffers.
        Collective.
        """
        arguments = self._arguments()
        if self._device.type == "cuda":
            arguments["device_ids"] = [self._device.index]
        if self.options.first_bucket_mb is not None:
            dist._DEFAULT_FIRST_BUCKET_BYTES = int(self.options.first_bucket_mb * MIB)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            wrapped = DistributedDataParallel(model, **arguments)
        self._add_comm_hook(wrapped)
        self._wrapped = wrapped
        optimizer = build_optimizer(model)
        if self.options.zero_redundancy_optimizer:
            return ZeroPrepared(model, zero_redundancy(optimizer), model=wrapped)
        return DDPPrepared(model, optimizer, model=wrapped)

    def _arguments(self) -> dict[str, Any]:
        """Arguments of the wrapper's constructor besides model and device; those left out have
        PyTorch's default.
        """
        arguments = self.options.model_dump(exclude=NOT_THE_CONSTRUCTORS, exclude_defaults=True)
        # deprecated from PyTorch 2.13 in favour of forward_sync_buffers
        if not self.options.broadcast_buffers:
            name = "forward_sync_buffers"
            arguments[name if _wrapper_takes(name) else "broadcast_buffers"] = False
        return arguments

    def _add_comm_hook(self, wrapped: DistributedDataParallel) -> None:
        options = self.options
        if options.comm_hook == "none":
            return
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        if options.comm_hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None,
                matrix_approximation_rank=options.powersgd_rank,
                start_powerSGD_iter=options.powersgd_start_step,
            )
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            return
        hook = getattr(default_hooks, DEFAULT_HOOKS[options.comm_hook])
        wrapped.register_comm_hook(None, hook)

    def describe(self) -> dict[str, Any]:
        """Facts of the process group, and the bucket sizes of the last wrapped model."""
        return super().describe() | (
            _bucket_sizes(self._wrapped) if self._wrapped is not None else {}
        )

    def teardown(self) -> None:
        """Release the wrapper before its process group, which Gloo needs to end cleanly.

        Collective.
        """
        self._wrapped = None
        super().teardown()

    @property
    def gradient_scale(self) -> float | None:
        """PowerSGD approximates, so there is no exact value to compare with."""
        return None if self.options.comm_hook == "powersgd" else 1.0

    @property
    def gradient_tolerance(self) -> float:
        """The tolerance of the dtype in which gradients are exchanged."""
        return arithmetic_of(
            {"fp16": "float16", "bf16": "bfloat16"}.get(self.options.comm_hook, "float32")
        ).gradient


def _wrapper_takes(option: str) -> bool:
    """Whether the constructor of this PyTorch's wrapper has an argument."""
    return option in inspect.signature(DistributedDataParallel.__init__).parameters


def _bucket_sizes(wrapped: DistributedDataParallel) -> dict[str, Any]:
    """The buckets in force: those rebuilt in gradient-ready order after the first step, where that
    has happened.
    """
    data = wrapped._get_ddp_logging_data()
    sizes = str(data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or "")
    return {
        "bucket_sizes_bytes": [int(size) for size in sizes.replace(" ", "").split(",") if size],
        "bucket_cap_bytes": data.get("bucket_cap_bytes"),
    }
