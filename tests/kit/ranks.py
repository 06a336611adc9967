"""What the modules of ``tests.distributed.ranks`` share: a rank's place, for every backend over
Gloo, and what it leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from torch.distributed import PrefixStore

from measurement.agent.ringside_agent.place import HOROVOD
from runners.launchers import read_own_world
from runners.processes.process_exit import leave_in_order
from runners.protocol import Job
from runners.rank.precision import StepPrecision
from runners.rank.trainer import Trainer
from runners.standalone.run import rendezvous_store

USUAL = {
    "arm": "x",
    "backend": "ddp",
    "transport": "gloo",
    "workload": "digits",
    "local_batch_size": 1,
    "seed": 0,
}


def own_world():
    """This rank's place.

    For Horovod over Gloo rank 0 serves the rendezvous under ``spawn``, too, as under ``mpirun``."""
    world = read_own_world()
    return replace(world, gives=world.gives | {HOROVOD})


def job_of(world, **changes):
    """A job of all ranks."""
    return Job(**USUAL | changes, world_size=world.world_size)


def trainer_of(engine, workload, backend):
    """What trains a workload on this rank as the engine's own would."""
    cpu = torch.device("cpu")
    return Trainer(
        workload=workload,
        backend=backend,
        world=engine.world,
        device=cpu,
        seed=1,
        step_precision=StepPrecision(precision="fp32", max_gradient_norm=None, device=cpu),
    )


def leave_what_is_seen(folder, names, see):
    """End with a file of what ``see`` returned for each name; it is given the name, this rank's
    place and a store. Collective."""
    torch.set_num_threads(1)
    world = own_world()
    base = rendezvous_store(job_of(world), world)
    seen = {name: see(name, world, PrefixStore(name, base)) for name in names}
    Path(folder, f"{world.rank}.json").write_text(json.dumps(seen))
    leave_in_order(0)
