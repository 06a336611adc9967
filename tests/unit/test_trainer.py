"""The training loop in one process: what is built anew, and where."""

from __future__ import annotations

import gc
import mmap

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from measurement.agent.ringside_agent.place import World
from measurement.errors import PlanError
from measurement.plans.settings import SpeedSettings
from measurement.step_timer import StepTimer
from runners.driver.gates import judge_parity
from runners.rank.engine import start_engine
from runners.rank.parity import run_gate
from runners.rank.precision import INITIAL_SCALE
from tests.conftest import REPOSITORY
from tests.kit.engines import make_engine, make_job
from tests.kit.refusals import refusal
from workloads.tensors import to_channels_last


@pytest.fixture
def engine():
    return make_engine()


def take_steps(trainer, number):
    """What these steps gave."""
    timer = StepTimer(trainer.device)
    timer.start()
    return [trainer.step(timer) for _ in range(number)]


def assert_alike(mine, wanted):
    """All tensors, but for rounding."""
    for tensor, other in zip(mine, wanted, strict=True):
        assert torch.allclose(tensor, other, rtol=1e-4, atol=1e-6)


traced = torch.compile
IDIOMS = REPOSITORY / "tests" / "outside" / "idioms.py"
EVERYDAY = IDIOMS.with_name("everyday.py")


def test_images_and_models_can_lie_in_memory_by_pixels():
    trainer = make_engine(speed=SpeedSettings(channels_last=True)).trainer
    images, _ = trainer.to_channels_last(next(trainer.batches))
    weights = [each for each in trainer.joined.bare.parameters() if each.ndim == 4]
    assert weights
    for each in (images, *weights):
        assert each.is_contiguous(memory_format=torch.channels_last)
    nested = to_channels_last({"pair": (torch.zeros(2, 3, 4, 5), [torch.zeros(2)])})
    assert nested["pair"][0].stride() == (60, 1, 15, 3)


@pytest.mark.slow
def test_a_compiled_ddp_takes_steps_without_exchange(monkeypatch):
    """What it was asked of is its compiled version, which has no ``no_sync``."""
    monkeypatch.setattr(torch, "compile", lambda model: traced(model, backend="eager"))
    job = make_job(backend="ddp", transport="gloo", speed=SpeedSettings(compile=True))
    engine = start_engine(job, World(), store=torch.distributed.HashStore())
    try:
        block = engine.trainer.run_block(steps=2, warmup_steps=1, local=True)
    finally:
        engine.trainer.release()
        engine.backend.teardown()
    assert len(block.samples) == 2


def test_page_faults_of_the_timed_steps_are_counted(engine, monkeypatch):
    pages, trainer = 1000, engine.trainer
    compute_loss = trainer.workload.compute_loss

    def fault_in_and_compute(*arguments):
        with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
            for page in range(pages):
                memory[page * mmap.PAGESIZE] = 1
        return compute_loss(*arguments)

    monkeypatch.setattr(trainer.workload, "compute_loss", fault_in_and_compute)
    block = trainer.run_block(steps=2, warmup_steps=3, local=False)
    assert 2 * pages <= block.page_faults < 5 * pages


@pytest.mark.parametrize("timed", [True, False])
def test_what_follows_a_step_is_in_the_clock_as_declared(monkeypatch, timed):
    """By a clock that a step's parts set forward."""
    trainer = make_engine(f"{IDIOMS}:Plain").trainer
    seen = []
    trainer.workload.after_step = lambda step, **_: seen.append(step)
    trainer.has_after_step = True
    monkeypatch.setattr(type(trainer.workload), "after_step_is_timed", timed)
    timer = StepTimer(trainer.device)
    timer._stamp = lambda: len(seen) * 1_000_000_000
    timer.start()
    for _ in range(3):
        trainer.step(timer)
    assert seen == [1, 2, 3]
    assert timer.read().sum(axis=1).tolist() == [1.0 if timed else 0.0] * 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "NanLoss",
            "the loss is not finite on rank 0 in step 1, before anything was exchanged: look at the loss and the batches",
        ),
        (
            "NanGradient",
            "the gradient of '0.weight' is not finite on rank 0 in step 1, before anything was exchanged",
        ),
        (
            "Diverges",
            "is not finite after 3 steps, though the first step's gradients were: the training diverges; lower the",
        ),
    ],
)
def test_what_is_not_finite_is_the_workloads_and_no_backends(name, message):
    assert message in refusal(run_gate, make_engine(f"{IDIOMS}:{name}").trainer)


@pytest.mark.parametrize("name", ["DrawsFromTheModule", "LeavesOutALayerByTurns"])
def test_a_step_that_is_another_one_each_time_is_the_workloads_failure(name):
    with pytest.raises(
        PlanError, match="the workload's loss is not repeatable: rank 0 came to a loss of"
    ):
        run_gate(make_engine(f"{EVERYDAY}:{name}").trainer)


@pytest.mark.slow
@pytest.mark.costly
def test_a_compiled_models_dropout_is_the_references():
    """Drawn by Inductor itself, where it is not asked to draw as eager PyTorch does."""
    report = run_gate(
        make_engine(f"{EVERYDAY}:Augmented", speed=SpeedSettings(compile=True)).trainer
    )
    assert judge_parity([report]).failures == []


def test_the_gate_takes_another_workload(engine):
    engine.trainer.workload.compute_loss = lambda *_: pytest.fail("the one that is trained")
    assert judge_parity([engine.run_gate()]).passed


@pytest.fixture
def steep_engine():
    """Trains in fp16, with gradients that are finite only at a far lower scale than PyTorch's
    first."""
    engine = make_engine(precision="amp-fp16", workload_options={"learning_rate": 1e-9})
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


@pytest.mark.slow
def test_steps_that_overflow_are_skipped_until_the_loss_scale_is_low_enough(
    steep_engine, steps_taken
):
    trainer = steep_engine.trainer
    block = trainer.run_block(steps=20, warmup_steps=0, local=False)
    assert 0 < len(steps_taken) < 20, "the first steps overflow"
    assert block.skipped_steps == 20 - len(steps_taken)
    assert trainer.run_block(steps=4, warmup_steps=1, local=False).skipped_steps == 0


def test_gradients_are_dropped_by_the_optimizer_as_in_a_users_loop(engine, monkeypatch):
    """A model looks at each of its modules for that, which a user does not pay."""
    monkeypatch.setattr(torch.nn.Module, "zero_grad", lambda *_, **__: pytest.fail("by the model"))
    engine.trainer.run_block(steps=2, warmup_steps=1, local=False)
    engine.trainer.joined.zero_grad()
    assert all(parameter.grad is None for parameter in engine.trainer.joined.bare.parameters())


def test_steps_without_exchange_leave_the_loss_scale_as_it_was(steep_engine):
    """Each rank may find another one in them, and gradients of different scales have no mean."""
    trainer = steep_engine.trainer
    trainer.run_block(steps=4, warmup_steps=0, local=True)
    assert trainer.step_precision.scaler.get_scale() == INITIAL_SCALE


def test_the_gates_low_loss_scale_is_not_carried_over(steep_engine):
    steep_engine.run_gate()
    assert steep_engine.trainer.step_precision.scaler.get_scale() == INITIAL_SCALE


@pytest.fixture
def loading_engine():
    """With two loader processes, each of which loads three batches ahead."""
    engine = make_engine(workload_options={"loader_workers": 2, "prefetch_factor": 3})
    yield engine
    engine.trainer.batches = iter(())
    gc.collect()


def test_the_first_block_uses_up_what_was_loaded_before_it(loading_engine, steps_taken):
    trainer = loading_engine.trainer
    for expected in (7 + 2, 1 + 2):
        steps_taken.clear()
        block = trainer.run_block(steps=2, warmup_steps=1, local=False)
        assert (len(steps_taken), len(block.samples)) == (expected, 2)
