"""Training in one process: the learning-rate rule, records of epochs, flags."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from backends.base import Prepared
from measurement.errors import PlanError
from measurement.plans.settings import SpeedSettings, TrainingSettings
from measurement.records.record import RankSteps
from runners.planning.standalone_flags import FLAGS, plan_content
from runners.planning.workload import resolve_workload, steps_per_epoch
from runners.protocol.messages import EpochCommand, EpochReport, combine
from runners.rank.epochs import LearningRates
from runners.rank.precision import StepPrecision
from tests.conftest import REPOSITORY
from tests.kit.dataset_files import write_data
from tests.kit.engines import make_engine

CPU = torch.device("cpu")


def factors(steps, *, scale=4, steps_per_epoch=4, global_batch_size=256, **rules):
    training = TrainingSettings(epochs=9, **rules)
    given = {
        "steps_per_epoch": steps_per_epoch,
        "scale": scale,
        "global_batch_size": global_batch_size,
    }
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    return [LearningRates(training, optimizer, **given).factor(step) for step in steps]


def test_the_learning_rate_rises_to_the_scale_and_decays_by_epochs():
    linear = {"learning_rate_scaling": "linear", "warmup_epochs": 2}
    assert factors(range(9), **linear) == pytest.approx(
        [1, 1.375, 1.75, 2.125, 2.5, 2.875, 3.25, 3.625, 4]
    )
    assert factors([119, 120, 239, 240], **linear) == pytest.approx([4, 0.4, 0.4, 0.04])
    assert factors([0, 5], learning_rate_scaling="linear") == [4, 4]
    assert factors([0, 1, 9], warmup_epochs=2) == [1, 1, 1], "from 1/1 to 1"


@pytest.mark.slow
def test_a_rate_may_be_meant_for_256_samples():
    assert factors([0, 11], learning_rate_scaling="per-256", global_batch_size=64) == [0.25, 0.25]
    assert factors(
        [0, 4, 8], learning_rate_scaling="per-256", global_batch_size=1024, warmup_epochs=2
    ) == [1, 2.5, 4]
    rates = (
        engine(training=TrainingSettings(epochs=1, learning_rate_scaling="per-256"))
        .run_epoch(epoch(0))
        .learning_rates
    )
    assert rates == pytest.approx([0.01 * 300 / 256] * 2)


def test_parameter_groups_keep_their_ratio():
    first, other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = SGD([{"params": [first], "lr": 0.1}, {"params": [other], "lr": 0.2}], lr=1.0)
    rates = LearningRates(
        TrainingSettings(epochs=1, learning_rate_scaling="linear"),
        optimizer,
        steps_per_epoch=4,
        scale=3,
    )
    for _ in range(2):
        assert rates.set(optimizer, step=0) == pytest.approx(0.3)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.3, 0.6])


def report(rank, losses, **changes):
    phases_s = [[0.1, 0.2, 0.3, 0.4, 0.0], [0.0, 0.0, 0.5 * rank, 0.0, 0.0]]
    steps = RankSteps(rank=rank, untimed_s=0.5 - 0.1 * rank, samples=[8, 8], phases_s=phases_s)
    values = {
        "block": EpochCommand(turn=3, epoch=7).record(steps),
        "losses": losses,
        "learning_rates": [0.1, 0.2],
        "top1": 3 + rank,
        "top5": 9,
        "held_out_loss_sum": 1.5,
        "held_out_top1": 2,
        "held_out_top5": 4,
        "held_out_count": 6 - rank,
    }
    return EpochReport(**{**values, **changes})


def test_ranks_reports_become_one_record():
    record = combine([report(0, [1.0, 2.0]), report(1, [3.0, 5.0])], epoch=7)
    assert (record.epoch, record.steps, record.step_losses, record.learning_rates) == (
        7,
        2,
        [2.0, 3.5],
        [0.1, 0.2],
    )
    assert (record.count, record.top1, record.top5) == (32, 7, 18)
    assert (record.train_s, record.evaluate_s) == (pytest.approx(1.5), 0.5), "of the slowest rank"
    held_out = (
        record.held_out_loss_sum,
        record.held_out_top1,
        record.held_out_top5,
        record.held_out_count,
    )
    assert held_out == (3.0, 4, 8, 11)
    untold = combine(
        [report(0, [1.0, 2.0], top1=None, top5=None), report(1, [3.0, 5.0], top1=None, top5=None)],
        epoch=0,
    )
    assert (untold.top1, untold.top5) == (None, None)


def test_epochs_are_refused_where_there_are_none_or_not_one_step():
    synthetic = resolve_workload("synthetic", {"model": "squeezenet1_1"}).build(
        local_batch_size=2, seed=1
    )
    with pytest.raises(PlanError, match="workload 'synthetic' has no epochs"):
        steps_per_epoch(synthetic, reference="synthetic", world_size=2, micro_steps=1)
    digits = resolve_workload("digits", {}).build(local_batch_size=100, seed=1)
    assert steps_per_epoch(digits, reference="digits", world_size=2, micro_steps=3) == 2
    with pytest.raises(PlanError, match="micro_steps 8 is more than the 7 batches"):
        steps_per_epoch(digits, reference="digits", world_size=2, micro_steps=8)


@pytest.mark.parametrize(("name", "labels"), [("mnist", 4), ("language_model", 4 * 16)])
def test_right_answers_come_with_the_same_loss(tmp_path, name, labels):
    workload = resolve_workload(name, write_data(name, tmp_path / "data")).build(
        local_batch_size=4, seed=3
    )
    model = workload.build_model().eval()
    batch = next(workload.epoch_batches(0, rank=0, world_size=1, device=CPU))
    loss, hits = workload.compute_loss_and_hits(model, batch)
    assert loss.item() == workload.compute_loss(model, batch).item()
    sums = workload.evaluation_sums(model, batch)
    assert hits.tolist() == [sums.top1, sums.top5]
    assert workload.count_samples(batch) == sums.count == labels


def epoch(number):
    return EpochCommand(turn=number, epoch=number)


def engine(**changes):
    return make_engine(
        **{"local_batch_size": 300, "training": TrainingSettings(epochs=3)} | changes
    )


@pytest.mark.slow
def test_micro_steps_of_an_epoch_make_the_losses_of_larger_batches():
    parts, whole = engine(local_batch_size=150, micro_steps=2), engine()
    first, other = parts.run_epoch(epoch(0)), whole.run_epoch(epoch(0))
    assert parts.epochs.steps == whole.epochs.steps == 4
    assert first.losses == pytest.approx(other.losses, rel=0.05), "but for batch norm"
    assert sum(first.block.ranks[0].samples) == sum(other.block.ranks[0].samples) == 1200


IDIOMS = REPOSITORY / "tests" / "outside" / "idioms.py"
SCHEDULED = f"{IDIOMS}:ScheduledDigits"


@pytest.mark.slow
def test_a_workloads_own_schedule_goes_on_beside_the_plans_rules():
    rules = {"learning_rate_scaling": "per-256", "warmup_epochs": 1}
    unruled, ruled = (
        engine(workload=SCHEDULED, training=TrainingSettings(epochs=31, **given))
        for given in ({}, rules)
    )
    own_rates, ruled_rates = (
        [each.run_epoch(epoch(number)).learning_rates for number in (0, 1)]
        for each in (unruled, ruled)
    )
    assert unruled.epochs.steps == 4
    assert own_rates == [pytest.approx([0.01, 0.01 / 8]), pytest.approx([0.01 / 16, 0.01 / 128])]
    risen = [(1, 1 + 0.75 * (300 / 256 - 1)), (300 / 256, 300 / 256)]
    wanted = [
        [rate * factor for rate, factor in zip(rates, by, strict=True)]
        for rates, by in zip(own_rates, risen, strict=True)
    ]
    assert ruled_rates == [pytest.approx(rates) for rates in wanted]
    after = unruled.run_epoch(epoch(30)).learning_rates
    assert after == pytest.approx([rate / 16 for rate in own_rates[1]]), (
        "at the 30th epoch, too, nothing but its own schedule"
    )


@pytest.mark.slow
def test_an_epoch_with_fewer_batches_than_the_workload_said_is_refused():
    with pytest.raises(
        PlanError,
        match=r"epoch_batches\(0\) of workload 'FewerThanSaid' gave rank 0 fewer than the 4",
    ):
        engine(workload=f"{IDIOMS}:FewerThanSaid").run_epoch(epoch(0))


def test_an_overflow_of_half_precision_skips_the_step_and_lowers_the_scale():
    step_precision = StepPrecision(precision="amp-fp16", max_gradient_norm=1.0, device=CPU)
    parameter = nn.Parameter(torch.ones(3))
    prepared = Prepared(nn.ParameterList([parameter]), SGD([parameter], lr=0.5))
    for gradient, stepped in ((float("inf"), False), (3.0, True)):
        prepared.zero_grad()
        before = parameter.detach().clone()
        step_precision.backward(prepared, (parameter * gradient).sum())
        step_precision.step(prepared)
        assert torch.equal(parameter, before) != stepped
    assert torch.allclose(before - parameter, torch.full((3,), 0.5 / 3**0.5), atol=1e-5), (
        "unscaled, clipped to 1, times 0.5"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"training": TrainingSettings(epochs=1)},
        {"precision": "amp-bf16"},
        {"max_gradient_norm": 1.0},
        {"speed": SpeedSettings(compile=True)},
    ],
)
def test_a_micro_benchmark_trains_nothing(changes):
    with pytest.raises(
        PlanError, match=f"is a micro-benchmark, for which {next(iter(changes))} means nothing"
    ):
        make_engine("collectives", backend="ddp", world_size=2, **changes)


def test_flags_ask_for_training():
    by_name = {flag.name: flag for flag in FLAGS}
    settings = ["training.target_accuracy=0.9", "training.warmup_epochs=1.0"]
    given = {
        "--workload": "mnist",
        "--epochs": 5,
        "--set": settings,
        "--workload-option": ["loader_workers=2"],
    }
    content = plan_content({by_name[name]: value for name, value in given.items()})
    assert content["training"] == {"epochs": 5, "target_accuracy": 0.9, "warmup_epochs": 1.0}
    assert content["workload_options"] == {"loader_workers": 2}
    assert content["measurement"]["local_every"] == 0, "a training has no blocks without exchange"
    assert plan_content({by_name["--workload"]: "mnist"})["training"] is None
