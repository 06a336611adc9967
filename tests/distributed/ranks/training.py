"""A rank that trains a little under one backend after another, and writes down what it saw: see ``test_training``.

``python -m tests.distributed.ranks.training OUTPUT BACKEND...``
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch.distributed import PrefixStore, TCPStore

from measurement.training import Training
from runners.engine import start_engine
from runners.gates import judge_gate
from runners.job import Job
from runners.rank_environment import read_world

WORKLOAD = "tests.distributed.ranks.interrupted:Interrupted"
LOCAL_BATCH_SIZE = 8


def started(world, backend, store, **changes):
    """An engine with a model in it."""
    job = Job(
        arm=backend,
        backend=backend,
        transport=None if backend == "single" else "gloo",
        workload=WORKLOAD,
        workload_options={"learning_rate": 0.1},
        local_batch_size=LOCAL_BATCH_SIZE,
        world_size=world.world_size,
        seed=5,
        device="cpu",
        training=Training(epochs=2, learning_rate_scaling="linear", warmup_epochs=0.5),
        **changes,
    )
    engine = start_engine(job, world, store=store)
    engine.epochs.begin()
    return engine


def held_out(engine) -> dict[str, float]:
    """Over all ranks, of one and the same model, though every rank has buffers of its own."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in engine.trainer.bare.parameters():
            parameter.normal_(std=0.2)
        for buffer in engine.trainer.bare.buffers():
            buffer.fill_(1 + 3 * engine.world.rank)
    own = [buffer.clone() for buffer in engine.trainer.bare.buffers()]
    sums = engine.backend.all_gather_object(engine.epochs.evaluate())
    assert all(torch.equal(a, b) for a, b in zip(own, engine.trainer.bare.buffers(), strict=True)), "its own again"
    return vars(sum(sums[1:], start=sums[0]))


def clipped(engine) -> list[float]:
    """All parameters after three steps of clipped gradients; their norms show that they were clipped."""
    engine.trainer.run_block(steps=3, warmup_steps=0, local=False, rebuild=True)
    parameters = [parameter.detach().flatten() for parameter in engine.trainer.bare.parameters()]
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in engine.trainer.bare.parameters()]))
    assert abs(norm - engine.job.max_gradient_norm) < 1e-4, norm
    return torch.cat(parameters).tolist()


def trained(engine) -> dict[str, object]:
    """The gate's verdict, and the losses of an epoch and of a local block after it."""
    gate, _ = judge_gate(engine.backend.all_gather_object(engine.run_gate(steps=2)), steps=2)
    report = engine.run_epoch(0)
    engine.trainer.run_block(steps=1, warmup_steps=0, local=True, rebuild=False)
    return {"gate": gate.failures, "losses": report.losses}


def main(output: str, *backends: str) -> None:
    """Every backend in turn; rank 0 writes."""
    torch.set_num_threads(1)
    world, found = read_world(os.environ), {}
    address = os.environ.get("MASTER_ADDR")
    base = TCPStore(address, int(os.environ["MASTER_PORT"]), is_master=False) if address else None
    for backend in backends:
        store = PrefixStore(backend, base) if base else None
        engine = started(world, backend, store)
        seen = found[backend] = {"held_out": held_out(engine)}
        if world.world_size == 2:
            trainer, arithmetic = engine.trainer, engine.trainer.arithmetic
            engine.job.max_gradient_norm = arithmetic.max_gradient_norm = 0.05
            seen["clipped"] = clipped(engine)
            for precision in ("amp-bf16", "amp-fp16"):
                arithmetic.precision, arithmetic.max_gradient_norm = precision, 5.0
                seen[precision] = trained(engine)
            trainer.release()
        engine.backend.teardown()
    if world.rank == 0:
        Path(output).write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
