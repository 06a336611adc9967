"""A rank ready to train: world, device, backend and trainer, put together from a job.

Shared by the worker under the driver and by the runners that stand alone.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from backends import Backend, backend_class
from measurement.errors import WorldSizeMismatchError
from measurement.fingerprint import fingerprint, usable_cores
from measurement.plan import checked
from measurement.record import RankReport
from measurement.world import World
from runners.job import Job
from runners.planning import resolve_workload
from runners.trainer import Trainer, resolve_device


@dataclass(kw_only=True)
class Engine:
    """One rank, connected."""

    job: Job
    world: World
    """As the launcher told it."""
    backend: Backend
    trainer: Trainer

    def report(self, environment: Mapping[str, str]) -> RankReport:
        """What this rank is, read back from inside it."""
        trainer = self.trainer
        return RankReport(
            rank=self.world.rank,
            local_rank=self.world.local_rank,
            node_rank=self.world.node_rank,
            world_size=trainer.world.world_size,
            local_world_size=self.world.local_world_size,
            launcher=self.world.launcher,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=str(trainer.device) if trainer.device.type == "cpu" else torch.cuda.get_device_name(trainer.device),
            threads=torch.get_num_threads(),
            affinity=usable_cores(),
            seed=trainer.seed,
            local_batch_size=trainer.workload.local_batch_size,
            micro_steps=trainer.micro_steps,
            optimizer=describe_optimizer(trainer.optimizer),
            backend=self.backend.describe(),
            model=describe_model(trainer.model),
            environment=dict(environment),
            fingerprint=fingerprint(),
        )

    def peak_memory_bytes(self) -> int:
        """Peak resident memory of the process on CPU, peak allocated device memory on GPU."""
        if self.trainer.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.trainer.device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def start_engine(job: Job, world: World, *, store: Any = None) -> Engine:
    """Connect this rank and build its first model. Collective.

    Raises:
        WorldSizeMismatchError: the library counts other ranks than the job asks for.
        PlanError: the job names something that is not here.
    """
    chosen = resolve_workload(job.workload, job.workload_options)
    cls = backend_class(job.backend)
    options = checked(cls.Options, job.options, source=f"options of backend '{job.backend}'")
    backend = cls(transport=job.transport, options=options, micro_steps=job.micro_steps)
    device = resolve_device(job.device, local_rank=world.local_rank)
    counted = backend.setup(world, device=device, store=store)
    if counted.world_size != job.world_size:
        raise WorldSizeMismatchError(
            f"backend '{job.backend}' counts {counted.world_size} ranks where {job.world_size} were asked for "
            f"(rank variables seen: {world.launcher}); start it with {' or '.join(cls.launchers) or 'a fitting launcher'}"
        )
    workload = chosen.workload(local_batch_size=job.local_batch_size, seed=job.seed, options=chosen.options)
    trainer = Trainer(workload=workload, backend=backend, world=counted, device=device, seed=job.seed)
    trainer.build()
    settle_garbage()
    return Engine(job=job, world=world, backend=backend, trainer=trainer)


def settle_garbage() -> None:
    """Set aside all that was imported, so that collecting before each rebuild looks at what training made and not at torch."""
    gc.collect()
    gc.freeze()


def describe_optimizer(optimizer: Optimizer | None) -> dict[str, Any]:
    """Class and hyperparameters of the first parameter group, as they are after wrapping."""
    if optimizer is None:
        return {}
    group = {k: v for k, v in optimizer.param_groups[0].items() if isinstance(v, int | float | bool | str)}
    return {"class": type(optimizer).__name__, **group}


def describe_model(model: nn.Module | None) -> dict[str, Any]:
    """Size of the model and of what must be exchanged for one step."""
    if model is None:
        return {}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "gradient_tensors": len(trained),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in trained),
    }
