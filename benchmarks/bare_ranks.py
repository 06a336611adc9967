"""The ranks that benchmarks compare with Ringside's: a bare loop, which imports torch, the library
and the workload alone.

    python benchmarks/bare_ranks.py PLAN BACKEND FOLDER

builds and wraps the plan's model as a user's script does, and notes in FOLDER when that was done.
``none`` wraps nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

REPOSITORY = Path(__file__).parent.parent


def launcher(arm: dict[str, Any], ranks: int) -> list[str]:
    """Return the command that starts the ranks of an arm, without what they run."""
    backend, transport = arm["backend"], arm.get("transport", "gloo")
    if arm.get("options") or (backend, transport) not in {
        ("ddp", "gloo"),
        ("horovod", "gloo"),
        ("horovod", "mpi"),
    }:
        sys.exit(
            f"a bare rank trains DDP over Gloo and Horovod over Gloo or MPI without options, not {arm}"
        )
    if backend == "ddp":
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
        ]
    how = (
        ["--gloo"]
        if transport == "gloo"
        else ["--mpi", "--mpi-args=--oversubscribe --bind-to none"]
    )
    return ["horovodrun", *how, "-np", str(ranks), "-H", f"localhost:{ranks}", sys.executable]


def build_workload(plan: dict[str, Any]) -> Any:
    """Return the plan's workload: one of ours by name, or a class as ``module:Class``."""
    from workloads import workload_class

    cls, preset = workload_class(plan["workload"])
    options = cls.Options(**{**preset, **plan.get("workload_options", {})})
    return cls(
        local_batch_size=plan.get("local_batch_size", 32), seed=plan.get("seed", 0), options=options
    )


Step = Callable[[Any], int]
Agree = Callable[[float], float]


def join_ddp(workload: Any, model: torch.nn.Module) -> tuple[Step, Agree]:
    """Wrap a model as PyTorch's tutorial does."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    wrapped = DistributedDataParallel(model)
    optimizer = workload.build_optimizer(wrapped.module)

    def agree(seconds: float) -> float:
        told = torch.tensor([seconds])
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return float(told)

    return _step(workload, wrapped, optimizer), agree


def join_horovod(workload: Any, model: torch.nn.Module) -> tuple[Step, Agree]:
    """Wrap a model as Horovod's PyTorch example does."""
    import horovod.torch as hvd

    hvd.init()
    optimizer = workload.build_optimizer(model)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return _step(workload, model, optimizer), lambda seconds: float(
        hvd.allreduce(torch.tensor([seconds]), op=hvd.Max)
    )


def _step(workload: Any, model: torch.nn.Module, optimizer: Any) -> Step:
    def step(batch: Any) -> int:
        optimizer.zero_grad()
        workload.compute_loss(model, batch).backward()
        optimizer.step()
        return int(workload.count_samples(batch))

    return step


def be_ready(plan: dict[str, Any], backend: str, folder: Path) -> None:
    """Note when this rank has its model, and end."""
    workload = build_workload(plan)
    torch.manual_seed(workload.seed)
    model = workload.build_model()
    if backend == "none":
        workload.build_optimizer(model)
    else:
        (join_ddp if backend == "ddp" else join_horovod)(workload, model)
    (folder / f"{backend}-{os.getpid()}").write_text(repr(time.time()))
    os._exit(0)  # libraries' teardowns are not what is measured


if __name__ == "__main__":
    be_ready(yaml.safe_load(Path(sys.argv[1]).read_text()), sys.argv[2], Path(sys.argv[3]))
