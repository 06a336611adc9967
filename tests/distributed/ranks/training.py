"""A rank that trains a little under one backend after another, and writes down what it saw: see ``test_training``.

``python -m runners.spawn --nproc-per-node N -m tests.distributed.ranks.training OUTPUT BACKEND...``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.distributed import PrefixStore
from torch.distributed.tensor import DTensor, distribute_tensor

from measurement.plans.settings import TrainingSettings
from runners.processes.process_exit import leave_in_order
from runners.protocol.gate_verdict import judge_gate
from runners.protocol.messages import CheckReport, EpochCommand, Job, ParityReport
from runners.rank.engine import start_engine
from runners.standalone.rendezvous import rendezvous_store
from tests.kit.ranks import own_world
from workloads.base import EvaluationSums

WORKLOAD = "tests.distributed.ranks.small_digits:SmallDigits"
LOCAL_BATCH_SIZE = 8


def job_of(backend, world_size):
    """What is trained."""
    name, _, option = backend.partition("+")
    return Job(
        arm=name,
        backend=name,
        transport=None if name == "single" else "gloo",
        options={option: True} if option else {},
        workload=WORKLOAD,
        workload_options={"learning_rate": 0.1},
        local_batch_size=LOCAL_BATCH_SIZE,
        world_size=world_size,
        seed=5,
        device="cpu",
        training=TrainingSettings(epochs=2, learning_rate_scaling="linear", warmup_epochs=0.5),
    )


def started(world, backend, store):
    """An engine with a model in it."""
    engine = start_engine(job_of(backend, world.world_size), world, store=store)
    engine.epochs.begin()
    return engine


def held_out(engine) -> dict[str, float]:
    """Over all ranks, of one and the same model, though every rank has buffers of its own."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in engine.trainer.joined.bare.parameters():
            whole = torch.empty(parameter.shape).normal_(std=0.2)
            sharded = isinstance(parameter, DTensor)
            parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements) if sharded else whole)
        for buffer in engine.trainer.joined.bare.buffers():
            buffer.fill_(1 + 3 * engine.world.rank)
    own = [buffer.clone() for buffer in engine.trainer.joined.bare.buffers()]
    sums = engine.backend.all_gather_object(engine.epochs.evaluate(), EvaluationSums)
    assert all(torch.equal(a, b) for a, b in zip(own, engine.trainer.joined.bare.buffers(), strict=True)), "its own again"
    return vars(sum(sums[1:], start=sums[0]))


def clipped(engine) -> list[float]:
    """All parameters after three steps of clipped gradients; their norms show that they were clipped."""
    engine.trainer.run_block(steps=3, warmup_steps=0, local=False)
    joined = engine.trainer.joined
    found = joined.full_parameters()
    parameters = [found[name].flatten() for name, _ in joined.bare.named_parameters()]
    norm = torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in joined.full_gradients().values()]))
    assert abs(norm - engine.job.max_gradient_norm) < 1e-4, norm
    return torch.cat(parameters).tolist()


def trained(engine) -> dict[str, object]:
    """The gate's verdict, and the losses of an epoch and of a local block after it."""
    gate, _ = judge_gate(engine.backend.all_gather_object(engine.run_gate(), ParityReport | CheckReport))
    report = engine.run_epoch(EpochCommand(turn=0, epoch=0))
    engine.trainer.run_block(steps=1, warmup_steps=0, local=engine.backend.has_local_steps)
    return {"gate": gate.failures, "losses": report.losses}


def main(output: str, *backends: str) -> None:
    """Every backend in turn; rank 0 writes."""
    torch.set_num_threads(1)
    world, found = own_world(), {}
    base = rendezvous_store(job_of("ddp", world.world_size), world)
    for backend in backends:
        engine = started(world, backend, PrefixStore(backend, base))
        seen = found[backend] = {"held_out": held_out(engine)}
        if world.world_size == 2:
            trainer, step_precision = engine.trainer, engine.trainer.step_precision
            engine.job.max_gradient_norm = step_precision.max_gradient_norm = 0.05
            seen["clipped"] = clipped(engine)
            for precision in ("amp-bf16", "amp-fp16"):
                step_precision.precision, step_precision.max_gradient_norm = precision, 5.0
                seen[precision] = trained(engine)
            trainer.release()
        engine.backend.teardown()
    if world.rank == 0:
        Path(output).write_text(json.dumps(found))
    leave_in_order(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
