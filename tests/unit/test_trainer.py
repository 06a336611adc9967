"""The training loop in one process: what is built anew, and where."""

from __future__ import annotations

import gc
import multiprocessing
from datetime import timedelta

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

import runners.rank.trainer
from measurement.record import LaunchRecord
from measurement.world import World
from runners.processes.rank_supervisor import state
from runners.protocol.messages import Job
from runners.rank.engine import settle_garbage, start_engine
from runners.rank.precision import INITIAL_SCALE
from runners.standalone.throughput import StandaloneSettings, measure
from tests.conftest import wait_until


@pytest.fixture
def engine():
    job = Job(arm="single", backend="single", workload="digits", local_batch_size=4, world_size=1, seed=1, device="cpu")
    return start_engine(job, World())


def test_a_block_is_rebuilt_only_when_asked(engine):
    trainer = engine.trainer
    before = trainer.prepared
    trainer.run_block(steps=1, warmup_steps=0, local=False, rebuild=False)
    assert trainer.prepared is before
    block = trainer.run_block(steps=2, warmup_steps=1, local=False, rebuild=True, layout=3)
    assert trainer.prepared is not before
    assert [len(phases) for phases in block.phases_s] == [4, 4]
    assert block.samples == [4, 4]


@pytest.fixture
def steep_engine():
    """Trains in fp16, with gradients that are finite only at a far lower scale than PyTorch's first."""
    job = Job(arm="single", backend="single", workload="digits", local_batch_size=4, world_size=1, seed=1, device="cpu")
    changes = {"precision": "amp-fp16", "workload_options": {"learning_rate": 1e-9}}
    engine = start_engine(job.model_copy(update=changes), World())
    workload = engine.trainer.workload
    compute_loss = workload.compute_loss
    workload.compute_loss = lambda model, batch: 1024 * compute_loss(model, batch)
    return engine


@pytest.fixture
def steps_taken():
    """One entry for each step that an optimizer took; a step that overflows is skipped."""
    taken = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: taken.append(optimizer))
    yield taken
    hook.remove()


def test_after_a_rebuild_no_step_is_skipped_to_find_the_loss_scale_again(steep_engine, steps_taken):
    """The scale began anew at 2^16 with each rebuild, so that the timed steps were largely skipped ones."""
    trainer = steep_engine.trainer
    block = trainer.run_block(steps=20, warmup_steps=0, local=False, rebuild=False)
    assert 0 < len(steps_taken) < 20, "the first steps overflow"
    assert block.skipped_steps == 20 - len(steps_taken)
    scale = trainer.step_precision.scaler.get_scale()
    steps_taken.clear()
    assert trainer.run_block(steps=4, warmup_steps=1, local=False, rebuild=True).skipped_steps == 0
    assert len(steps_taken) == 5
    assert trainer.step_precision.scaler.get_scale() == scale


def test_steps_without_exchange_leave_the_loss_scale_as_it_was(steep_engine):
    """Each rank may find another one in them, and gradients of different scales have no mean."""
    trainer = steep_engine.trainer
    trainer.run_block(steps=4, warmup_steps=0, local=True, rebuild=True)
    assert trainer.step_precision.scaler.get_scale() == INITIAL_SCALE


def test_the_gates_low_loss_scale_is_not_carried_over(steep_engine):
    steep_engine.run_gate(steps=2)
    assert steep_engine.trainer.step_precision.scaler.get_scale() == INITIAL_SCALE


@pytest.fixture
def loading_engine():
    """With two loader processes, each of which loads three batches ahead."""
    options = {"loader_workers": 2, "prefetch_factor": 3}
    job = Job(arm="single", backend="single", workload="digits", local_batch_size=4, world_size=1, seed=1, device="cpu")
    engine = start_engine(job.model_copy(update={"workload_options": options}), World())
    yield engine
    engine.trainer.batches = iter(())
    gc.collect()


def test_loader_processes_fill_no_queue_while_a_block_is_rebuilt(loading_engine, monkeypatch):
    trainer = loading_engine.trainer
    trainer.run_block(steps=1, warmup_steps=0, local=False, rebuild=False)
    prepare, seen = trainer.backend.prepare, []

    def look_and_prepare(*arguments):
        wait_until(lambda: {state(child.pid) for child in multiprocessing.active_children()} == {"T"})
        seen.append(len(multiprocessing.active_children()))
        return prepare(*arguments)

    monkeypatch.setattr(trainer.backend, "prepare", look_and_prepare)
    trainer.run_block(steps=1, warmup_steps=0, local=False, rebuild=True)
    assert seen == [2]
    wait_until(lambda: "T" not in {state(child.pid) for child in multiprocessing.active_children()})


def test_the_first_block_uses_up_what_was_loaded_before_it(loading_engine, steps_taken):
    trainer = loading_engine.trainer
    for expected in (7 + 2, 1 + 2):
        steps_taken.clear()
        block = trainer.run_block(steps=2, warmup_steps=1, local=False, rebuild=True)
        assert (len(steps_taken), len(block.samples)) == (expected, 2)


def test_standing_alone_places_memory_as_a_users_own_run_would(engine, monkeypatch):
    """A fixed random layout made standing-alone runs up to 6% slower than a bare loop."""
    monkeypatch.setattr(runners.rank.trainer, "allocate_at_random", lambda *_: pytest.fail("allocated before building"))
    fields = {"comparison_id": "c", "plan_digest": "d", "launch": 0, "arm": "single", "role": "baseline", "backend": "single"}
    more = {"transport": "none", "launcher": "none", "workload": "digits", "world_size": 1, "status": "ok"}
    settings = StandaloneSettings(
        warmup_steps=1, blocks=2, block_steps=2, parity_steps=0, local_every=0, timeout=timedelta(seconds=9)
    )
    record = LaunchRecord(**fields, **more)
    measure(engine, record, settings)
    rows = [row for block in record.blocks for row in block.rows()]
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
