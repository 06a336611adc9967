"""A rank that trains a language model under DDP and under what shards, and writes down where that
leads: see ``test_sharded``.

``python -m runners.spawn --nproc-per-node N -m tests.distributed.ranks.sharded FOLDER TEXT``
"""

from __future__ import annotations

import sys
from functools import partial

import torch
from torch.distributed.fsdp import FSDPModule

from runners.rank.engine import start_engine
from tests.kit.ranks import job_of, leave_what_is_seen

STEPS = 4
OPTIONS = {
    "ddp": ("ddp", {}),
    "zero": ("ddp", {"zero_redundancy_optimizer": True}),
    "fsdp2": ("fsdp2", {}),
    "fsdp2-whole": ("fsdp2", {"module_classes": [], "reshard_after_forward": False}),
    "fsdp2-ahead": ("fsdp2", {"prefetch": 2}),
    "fsdp2-replicas": ("fsdp2", {}),
    "replicate": ("replicate", {}),
    "fsdp2-blocks": ("fsdp2", {"module_classes": ["Block"]}),
}


def ahead_of(unit):
    """What a unit gathers ahead in forward passes."""
    return unit._get_fsdp_state()._states_to_forward_prefetch


def flat(tensors):
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)]).tolist()


def seen(text, name, world, store):
    """Gradients of the last step, parameters after it, and what this rank keeps.

    A step has two micro-steps."""
    backend, options = OPTIONS[name]
    options = {"replicas": world.world_size} if name == "fsdp2-replicas" else options
    job = job_of(
        world,
        backend=backend,
        options=options,
        workload="language_model",
        workload_options={"data_dir": text, "size": "nano", "sequence_length": 16},
        local_batch_size=4,
        micro_steps=2,
        device="cpu",
    )
    engine = start_engine(job, world, store=store)
    engine.trainer.run_block(steps=STEPS, warmup_steps=0, local=False)
    joined = engine.trainer.joined
    gradients, parameters = joined.full_gradients(), joined.full_parameters()
    found = {
        "gradients": flat(gradients),
        "parameters": flat({name: parameters[name] for name in gradients}),
        "described": engine.backend.describe(),
        "kept_bytes": engine.report().kept_bytes,
        "ahead": [
            len(ahead_of(unit)) for unit in joined.bare.modules() if isinstance(unit, FSDPModule)
        ],
        "elements": sum(parameter.numel() for parameter in joined.bare.parameters()),
    }
    if name == "zero":
        for kind, is_local in (("after_local", True), ("after_both", False)):
            engine.trainer.run_block(steps=1, warmup_steps=0, local=is_local)
            own = joined.bare.parameters()
            found[kind] = float(sum(parameter.double().sum() for parameter in own))
    engine.runner.release()
    engine.backend.teardown()
    return found


if __name__ == "__main__":
    leave_what_is_seen(sys.argv[1], OPTIONS, partial(seen, sys.argv[2]))
