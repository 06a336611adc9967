"""The training loop in one process: what is built anew, and where."""

from __future__ import annotations

import gc

import pytest

import runners.trainer
from measurement.record import LaunchRecord
from measurement.world import World
from runners.engine import settle_garbage, start_engine
from runners.job import Job
from runners.throughput import Lengths, measure


@pytest.fixture
def engine():
    job = Job(arm="single", backend="single", workload="digits", local_batch_size=4, world_size=1, seed=1, device="cpu")
    return start_engine(job, World())


def test_a_block_is_rebuilt_only_when_asked(engine):
    trainer = engine.trainer
    before = trainer.model
    trainer.run_block(steps=1, warmup_steps=0, local=False, rebuild=False)
    assert trainer.model is before
    block = trainer.run_block(steps=2, warmup_steps=1, local=False, rebuild=True, layout=3)
    assert trainer.model is not before
    assert block.phases_s.shape == (2, 4)
    assert block.samples == [4, 4]


def test_standing_alone_places_memory_as_a_users_own_run_would(engine, monkeypatch):
    """A fixed random layout made standing-alone runs up to 6% slower than a bare loop."""
    monkeypatch.setattr(runners.trainer, "allocate_at_random", lambda *_: pytest.fail("allocated before building"))
    fields = {"comparison_id": "c", "plan_digest": "d", "launch": 0, "arm": "single", "role": "baseline", "backend": "single"}
    more = {"transport": "none", "launcher": "none", "workload": "digits", "world_size": 1, "status": "ok"}
    lengths = Lengths(warmup_steps=1, blocks=2, block_steps=2, parity_steps=0)
    rows = measure(engine, LaunchRecord(**fields, **more), lengths)
    assert [(row["block"], row["step"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_garbage_is_collected_once_the_engine_stands():
    """Ranks start without; one that never began to collect would keep every wrapper it ever built."""
    gc.disable()
    try:
        settle_garbage()
        assert gc.isenabled() and gc.get_freeze_count()
    finally:
        gc.enable()
        gc.unfreeze()
