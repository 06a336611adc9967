"""Training in one process: the learning-rate rule, records of epochs, flags."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from backends.base import Prepared
from measurement.errors import PlanError
from measurement.plans.settings import SpeedSettings, TrainingSettings
from measurement.records.block import RankSteps
from runners.planning.workload import resolve_workload, steps_per_epoch
from runners.protocol import EpochCommand, EpochReport, combine
from runners.rank.epochs import LearningRates
from runners.rank.precision import StepPrecision
from tests.conftest import REPOSITORY
from tests.kit.changed import changed
from tests.kit.dataset_files import write_data
from tests.kit.engines import make_engine

CPU = torch.device("cpu")


def factors(steps, *, scale=4, global_batch_size=256, **rules):
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    rates = LearningRates(
        TrainingSettings(epochs=9, **rules),
        optimizer,
        steps_per_epoch=4,
        scale=scale,
        global_batch_size=global_batch_size,
    )
    return [rates.factor(step) for step in steps]


def test_the_learning_rate_rises_to_the_scale_and_decays_by_epochs():
    linear = {"learning_rate_scaling": "linear", "warmup_epochs": 2}
    assert factors(range(9), **linear) == pytest.approx(
        [1, 1.375, 1.75, 2.125, 2.5, 2.875, 3.25, 3.625, 4]
    )
    assert factors([119, 120, 239, 240], **linear) == pytest.approx([4, 0.4, 0.4, 0.04])
    assert factors([0, 5], learning_rate_scaling="linear") == [4, 4]
    assert factors([0, 1, 9], warmup_epochs=2) == [1, 1, 1], "from 1/1 to 1"


def test_a_rate_may_be_meant_for_256_samples():
    rule = {"learning_rate_scaling": "per-256"}
    assert factors([0, 11], global_batch_size=64, **rule) == [0.25, 0.25]
    assert factors([0, 4, 8], global_batch_size=1024, warmup_epochs=2, **rule) == [1, 2.5, 4]


def test_parameter_groups_keep_their_ratio():
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in (0.1, 0.2)]
    optimizer = SGD(groups, lr=1.0)
    training = TrainingSettings(epochs=1, learning_rate_scaling="linear")
    rates = LearningRates(training, optimizer, steps_per_epoch=4, scale=3)
    for _ in range(2):
        assert rates.set(optimizer, step=0) == pytest.approx(0.3)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.3, 0.6])


def report(rank, losses, **changes):
    phases_s = [[0.1, 0.2, 0.3, 0.4, 0.0], [0.0, 0.0, 0.5 * rank, 0.0, 0.0]]
    steps = RankSteps(rank=rank, untimed_s=0.5 - 0.1 * rank, samples=[8, 8], phases_s=phases_s)
    told = EpochReport(
        steps=steps,
        losses=losses,
        learning_rates=[0.1, 0.2],
        top1=3 + rank,
        top5=9,
        held_out_loss_sum=1.5,
        held_out_top1=2,
        held_out_top5=4,
        held_out_count=6 - rank,
    )
    return changed(told, **changes)


def test_ranks_reports_become_one_record():
    losses = [[1.0, 2.0], [3.0, 5.0]]
    record = combine([report(rank, each) for rank, each in enumerate(losses)], epoch=7)
    assert (record.epoch, record.steps, record.step_losses) == (7, 2, [2.0, 3.5])
    assert (record.count, record.top1, record.top5) == (32, 7, 18)
    assert (record.train_s, record.evaluate_s) == (pytest.approx(1.5), 0.5), "of the slowest rank"
    assert (record.held_out_loss_sum, record.held_out_count) == (3.0, 11)
    assert (record.held_out_top1, record.held_out_top5) == (4, 8)
    untold = [report(rank, each, top1=None) for rank, each in enumerate(losses)]
    assert combine(untold, epoch=0).top1 is None


def test_epochs_are_refused_where_there_are_none_or_not_one_step():
    def steps(name, *, micro_steps=1, **options):
        workload = resolve_workload(name, options).build(local_batch_size=100, seed=1)
        return steps_per_epoch(workload, reference=name, world_size=2, micro_steps=micro_steps)

    with pytest.raises(PlanError, match="workload 'synthetic' has no epochs"):
        steps("synthetic", model="squeezenet1_1")
    assert steps("digits", micro_steps=3) == 2
    with pytest.raises(PlanError, match="micro_steps 8 is more than the 7 batches"):
        steps("digits", micro_steps=8)


@pytest.mark.parametrize(("name", "labels"), [("mnist", 4), ("language_model", 4 * 16)])
def test_right_answers_come_with_the_same_loss(tmp_path, name, labels):
    setup = resolve_workload(name, write_data(name, tmp_path / "data"))
    workload = setup.build(local_batch_size=4, seed=3)
    model = workload.build_model().eval()
    batch = next(workload.epoch_batches(0, rank=0, world_size=1, device=CPU))
    loss, hits = workload.compute_loss_and_hits(model, batch)
    assert loss == workload.compute_loss(model, batch)
    sums = workload.evaluation_sums(model, batch)
    assert hits.tolist() == [sums.top1, sums.top5]
    assert workload.count_samples(batch) == sums.count == labels


def epoch(number):
    return EpochCommand(turn=number, epoch=number)


def engine(**changes):
    return make_engine(
        **{"local_batch_size": 300, "training": TrainingSettings(epochs=3)} | changes
    )


IDIOMS = REPOSITORY / "tests" / "outside" / "idioms.py"


@pytest.mark.slow
def test_a_workloads_own_schedule_goes_on_beside_the_plans_rules():
    def rates(**rules):
        training = TrainingSettings(epochs=31, **rules)
        trained = engine(workload=f"{IDIOMS}:ScheduledDigits", training=training)
        return [trained.run_epoch(epoch(number)).learning_rates for number in (0, 1, 30)]

    own = rates()
    assert own == [pytest.approx([0.01 / 16**n, 0.01 / 8 / 16**n]) for n in range(3)]
    ruled, scale = rates(learning_rate_scaling="per-256", warmup_epochs=1), 300 / 256
    warming_up = [own[0][0], own[0][1] * (1 + 0.75 * (scale - 1))]
    assert ruled[0] == pytest.approx(warming_up)
    assert ruled[1] == pytest.approx([rate * scale for rate in own[1]])


@pytest.mark.slow
def test_an_epoch_with_fewer_batches_than_the_workload_said_is_refused():
    with pytest.raises(
        PlanError,
        match=r"epoch_batches\(0\) of workload 'FewerThanSaid' gave rank 0 fewer than the 4",
    ):
        engine(workload=f"{IDIOMS}:FewerThanSaid").run_epoch(epoch(0))


def test_an_overflow_of_half_precision_skips_the_step_and_lowers_the_scale():
    step_precision = StepPrecision(precision="amp-fp16", max_gradient_norm=1.0, device=CPU)
    parameter = nn.Parameter(torch.zeros(3))
    prepared = Prepared(nn.ParameterList([parameter]), SGD([parameter], lr=0.5))

    def step(gradient):
        prepared.zero_grad()
        step_precision.backward(prepared, (parameter * gradient).sum())
        step_precision.step(prepared)
        return parameter.detach().clone()

    assert torch.equal(step(float("inf")), torch.zeros(3))
    clipped_to_1 = torch.full((3,), 1 / 3**0.5)
    assert torch.allclose(step(3.0), -0.5 * clipped_to_1, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"training": TrainingSettings(epochs=1)},
        {"precision": "amp-bf16"},
        {"speed": SpeedSettings(compile=True)},
    ],
)
def test_a_micro_benchmark_trains_nothing(changes):
    with pytest.raises(
        PlanError, match=f"is a micro-benchmark, for which {next(iter(changes))} means nothing"
    ):
        make_engine("collectives", backend="ddp", world_size=2, **changes)
