"""A rank that trains a language model under DDP and under what shards, and writes down where that leads: see ``test_sharded``.

``python -m runners.spawn --nproc-per-node N -m tests.distributed.ranks.sharded TEXT OUTPUT``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.distributed import PrefixStore

from runners.processes.process_exit import leave_in_order
from runners.protocol.messages import Job
from runners.rank.engine import start_engine
from runners.standalone.rendezvous import rendezvous_store
from tests.kit.ranks import own_world

STEPS = 4
OPTIONS = {
    "ddp": ("ddp", {}),
    "zero": ("ddp", {"zero_redundancy_optimizer": True}),
    "fsdp2": ("fsdp2", {}),
    "fsdp2-whole": ("fsdp2", {"module_classes": [], "reshard_after_forward": False}),
    "fsdp2-blocks": ("fsdp2", {"module_classes": ["Block"]}),
}


def job_of(name: str, world_size: int, text: str) -> Job:
    """A small decoder, its steps made of two micro-steps."""
    backend, options = OPTIONS[name]
    return Job(
        arm=name,
        backend=backend,
        transport="gloo",
        options=options,
        workload="language_model",
        workload_options={"data_dir": text, "size": "nano", "sequence_length": 16},
        local_batch_size=4,
        micro_steps=2,
        world_size=world_size,
        seed=5,
        device="cpu",
    )


def seen(name: str, world, text: str, store) -> dict[str, object]:
    """Gradients of the last step, parameters after it, and what this rank keeps."""
    engine = start_engine(job_of(name, world.world_size, text), world, store=store)
    engine.trainer.run_block(steps=STEPS, warmup_steps=0, local=False)
    joined = engine.trainer.joined
    gradients, parameters = joined.full_gradients(), joined.full_parameters()
    found = {
        "gradients": torch.cat([gradients[name].flatten() for name in sorted(gradients)]).tolist(),
        "parameters": torch.cat([parameters[name].flatten() for name in sorted(gradients)]).tolist(),
        "described": engine.backend.describe(),
        "kept_bytes": engine.report({}).kept_bytes,
        "elements": sum(parameter.numel() for parameter in joined.bare.parameters()),
    }
    engine.runner.release()
    engine.backend.teardown()
    return found


def main(text: str, output: str) -> None:
    """Every backend in turn; rank 0 writes."""
    torch.set_num_threads(1)
    world, found = own_world(), {}
    base = rendezvous_store(job_of("ddp", world.world_size, text), world)
    for name in OPTIONS:
        found[name] = seen(name, world, text, PrefixStore(name, base))
    if world.rank == 0:
        Path(output).write_text(json.dumps(found))
    leave_in_order(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
