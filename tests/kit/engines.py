"""One process that trains, as a rank does: its job and its engine."""

from __future__ import annotations

from typing import Any

from measurement.agent.ringside_agent.place import World
from runners.protocol import Job
from runners.rank.engine import Engine, start_engine


def make_job(workload: str = "digits", **changes: Any) -> Job:
    """Four samples a step on the CPU, but for ``changes``."""
    usual = {
        "arm": "single",
        "backend": "single",
        "local_batch_size": 4,
        "world_size": 1,
        "seed": 1,
        "device": "cpu",
    }
    return Job(**usual | {"workload": workload} | changes)


def make_engine(workload: str = "digits", **changes: Any) -> Engine:
    """The engine of such a job."""
    return start_engine(make_job(workload, **changes), World())
