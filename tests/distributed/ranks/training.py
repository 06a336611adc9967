"""A rank that trains a little under one backend after another, and writes down what it saw: see
``test_training``.

``python -m runners.spawn --nproc-per-node N -m tests.distributed.ranks.training FOLDER BACKEND...``
"""

from __future__ import annotations

import sys

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from measurement.plans.settings import TrainingSettings
from runners.driver.gates import judge_gate
from runners.protocol import CheckReport, EpochCommand, ParityReport
from runners.rank.engine import start_engine
from tests.kit.ranks import job_of, leave_what_is_seen
from workloads.base import EvaluationSums

WORKLOAD = "tests.distributed.ranks.small_digits:SmallDigits"


def started(world, backend, store):
    """An engine with a model in it."""
    name, _, option = backend.partition("+")
    job = job_of(
        world,
        backend=name,
        transport=None if name == "single" else "gloo",
        options={option: True} if option else {},
        workload=WORKLOAD,
        workload_options={"learning_rate": 0.1},
        local_batch_size=8,
        seed=5,
        device="cpu",
        training=TrainingSettings(epochs=2, learning_rate_scaling="linear", warmup_epochs=0.5),
    )
    engine = start_engine(job, world, store=store)
    engine.epochs._rates = engine.epochs._begin()
    return engine


def held_out(engine):
    """Over all ranks, of one and the same model, though every rank has buffers of its own."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in engine.trainer.joined.bare.parameters():
            whole = torch.empty(parameter.shape).normal_(std=0.2)
            sharded = isinstance(parameter, DTensor)
            parameter.copy_(
                distribute_tensor(whole, parameter.device_mesh, parameter.placements)
                if sharded
                else whole
            )
        for buffer in engine.trainer.joined.bare.buffers():
            buffer.fill_(1 + 3 * engine.world.rank)
    own = [buffer.clone() for buffer in engine.trainer.joined.bare.buffers()]
    sums = engine.backend.all_gather_object(engine.epochs.evaluate(), EvaluationSums)
    assert all(
        torch.equal(a, b) for a, b in zip(own, engine.trainer.joined.bare.buffers(), strict=True)
    ), "its own again"
    return vars(sum(sums[1:], start=sums[0]))


def clipped(engine):
    """All parameters after three steps of clipped gradients; their norms show that they were
    clipped."""
    engine.trainer.run_block(steps=3, warmup_steps=0, local=False)
    joined = engine.trainer.joined
    found = joined.full_parameters()
    parameters = [found[name].flatten() for name, _ in joined.bare.named_parameters()]
    norm = torch.linalg.vector_norm(
        torch.stack([gradient.norm() for gradient in joined.full_gradients().values()])
    )
    assert abs(norm - engine.job.max_gradient_norm) < 1e-4, norm
    return torch.cat(parameters).tolist()


def trained(engine):
    """The gate's verdict, and the losses of an epoch and of a local block after it."""
    gate, _ = judge_gate(
        engine.backend.all_gather_object(engine.run_gate(), ParityReport | CheckReport)
    )
    report = engine.run_epoch(EpochCommand(turn=0, epoch=0))
    engine.trainer.run_block(steps=1, warmup_steps=0, local=engine.backend.has_local_steps)
    return {"gate": gate.failures, "losses": report.losses}


def seen(backend, world, store):
    """From ``setup`` to ``teardown``. Collective."""
    engine = started(world, backend, store)
    found = {"held_out": held_out(engine)}
    if world.world_size == 2:
        step_precision = engine.trainer.step_precision
        engine.job.max_gradient_norm = step_precision.max_gradient_norm = 0.05
        found["clipped"] = clipped(engine)
        for precision in ("amp-bf16", "amp-fp16"):
            step_precision.precision, step_precision.max_gradient_norm = precision, 5.0
            found[precision] = trained(engine)
        engine.trainer.release()
    engine.backend.teardown()
    return found


if __name__ == "__main__":
    leave_what_is_seen(sys.argv[1], sys.argv[2:], seen)
