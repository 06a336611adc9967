"""A rank that takes the gate and a block with one workload after another: see ``test_idioms``.

``python -m runners.spawn --nproc-per-node N -m tests.distributed.ranks.idioms FOLDER BACKEND=WORKLOAD,... ...``
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import torch
from torch.distributed import PrefixStore

from runners.planning.workload import resolve_workload
from runners.processes.process_exit import leave_in_order
from runners.protocol.messages import Job
from runners.rank.engine import start_engine
from runners.rank.parity import run_gate
from runners.rank.precision import StepPrecision
from runners.rank.trainer import Trainer
from runners.standalone.rendezvous import rendezvous_store
from tests.conftest import REPOSITORY
from tests.kit.ranks import own_world

OUTSIDE = REPOSITORY / "tests" / "outside"
MICRO_STEPS = {"Uneven": 2, "Finite": 2, "everyday:Augmented": 2}
BACKEND_OPTIONS = {name: {"ddp": {"find_unused_parameters": True}} for name in ("Unused", "LayerDrop")}


def take(engine, name: str, backend_name: str) -> dict[str, object]:
    """The gate and two blocks of one workload. Collective."""
    backend = copy.copy(engine.backend)
    backend.micro_steps = MICRO_STEPS.get(name, 1)
    backend.options = type(backend).Options(**BACKEND_OPTIONS.get(name, {}).get(backend_name, {}))
    file, _, cls = name.rpartition(":")
    setup = resolve_workload(f"{OUTSIDE / (file or 'idioms')}.py:{cls}", {})
    cpu = torch.device("cpu")
    trainer = Trainer(
        workload=setup.build(local_batch_size=4, seed=1),
        backend=backend,
        world=engine.world,
        device=cpu,
        seed=1,
        step_precision=StepPrecision(precision="fp32", max_gradient_norm=None, device=cpu),
    )
    gate = run_gate(trainer)
    blocks = [trainer.run_block(steps=3, warmup_steps=1, local=False) for _ in range(2)]
    found = {"gate": gate.model_dump(), "samples": [block.samples for block in blocks], "restarts": [b.restarts for b in blocks]}
    found["drift"] = trainer.drift().model_dump()
    if backend.has_local_steps:
        trainer.run_block(steps=2, warmup_steps=0, local=True)
    rates = [group["lr"] for group in trainer.joined.optimizer.param_groups]
    trainer.run_block(steps=4, warmup_steps=0, local=False)
    found["drift_with_local"] = trainer.drift().model_dump()
    trainer.release()
    return {**found, "rates": rates}


def main(folder: str, *asked: str) -> None:
    """Every backend in turn, with every workload; each rank writes."""
    torch.set_num_threads(1)
    world, found = own_world(), {}
    job = Job(arm="x", backend="ddp", transport="gloo", workload="digits", local_batch_size=1, world_size=world.world_size, seed=0)
    base = rendezvous_store(job, world)
    for backend_name, _, names in (one.partition("=") for one in asked):
        own = job.model_copy(update={"backend": backend_name})
        engine = start_engine(own, world, store=PrefixStore(backend_name, base))
        found[backend_name] = {name: take(engine, name, backend_name) for name in names.split(",")}
        engine.backend.teardown()
    Path(folder, f"{world.rank}.json").write_text(json.dumps(found))
    leave_in_order(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
