"""A rank that takes the gate and a block with one workload after another: see ``test_idioms``.

``python -m runners.spawn --nproc-per-node N -m tests.distributed.ranks.idioms FOLDER
BACKEND=WORKLOAD,... ...``
"""

from __future__ import annotations

import copy
import sys

from runners.planning.workload import resolve_workload
from runners.rank.engine import start_engine
from runners.rank.parity import run_gate
from tests.conftest import REPOSITORY
from tests.kit.ranks import job_of, leave_what_is_seen, trainer_of

OUTSIDE = REPOSITORY / "tests" / "outside"
MICRO_STEPS = {"Uneven": 2, "Finite": 2, "everyday:Augmented": 2}
FIND_UNUSED = ("Unused", "LayerDrop")
"""What DDP must be told of."""


def take(engine, name, backend_name):
    """The gate and two blocks of one workload. Collective."""
    backend = copy.copy(engine.backend)
    backend.micro_steps = MICRO_STEPS.get(name, 1)
    options = (
        {"find_unused_parameters": True} if backend_name == "ddp" and name in FIND_UNUSED else {}
    )
    backend.options = type(backend).Options(**options)
    file, _, cls = name.rpartition(":")
    setup = resolve_workload(f"{OUTSIDE / (file or 'idioms')}.py:{cls}", {})
    trainer = trainer_of(engine, setup.build(local_batch_size=4, seed=1), backend)
    gate = run_gate(trainer)
    blocks = [trainer.run_block(steps=3, warmup_steps=1, local=False) for _ in range(2)]
    found = {
        "gate": gate.model_dump(),
        "restarts": [block.restarts for block in blocks],
        "drift": trainer.drift().model_dump(),
    }
    if backend.has_local_steps:
        trainer.run_block(steps=2, warmup_steps=0, local=True)
    rates = [group["lr"] for group in trainer.joined.optimizer.param_groups]
    trainer.run_block(steps=4, warmup_steps=0, local=False)
    found["drift_with_local"] = trainer.drift().model_dump()
    trainer.release()
    return {**found, "rates": rates}


def take_all(asked, world, store):
    """With one backend every workload."""
    backend_name, _, names = asked.partition("=")
    engine = start_engine(job_of(world, backend=backend_name), world, store=store)
    found = {name: take(engine, name, backend_name) for name in names.split(",")}
    engine.backend.teardown()
    return found


if __name__ == "__main__":
    leave_what_is_seen(sys.argv[1], sys.argv[2:], take_all)
