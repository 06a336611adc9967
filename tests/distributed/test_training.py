"""Training to the end on real ranks: what all backends must agree in."""

from __future__ import annotations

import math
import re
import statistics
from functools import partial

import pytest

from measurement.agent.ringside_agent.place import World
from measurement.records.results import ResultsFolder
from tests.conftest import HAS_HOROVOD, ended_well
from tests.distributed.ranks import training
from tests.kit.commands import MPIRUN, forked, run, seen_by_ranks, warm

pytestmark = pytest.mark.usefixtures("no_processes_left")


SPAWN = ["-m", "runners.spawn", "--nproc-per-node", "2", "-m"]
RUNNERS = {
    "hvd": ["runners.hvd", "--transport", "gloo"],
    "ddp": ["runners.ddp"],
    "fsdp2": ["runners.ddp", "--backend", "fsdp2"],
    "zero": ["runners.ddp", "--option", "zero_redundancy_optimizer=true"],
}


def train(runner, folder, *more):
    settings = ["threads=1", "training.learning_rate_scaling=linear", "training.warmup_epochs=1.5"]
    arguments = (
        f"--workload {training.WORKLOAD} --local-batch-size 8 --epochs 3 -o {folder}".split()
    )
    arguments += [word for setting in settings for word in ("--set", setting)]
    launcher = [*MPIRUN, "-m"] if runner == "hvd" else warm(*SPAWN)
    return run(*launcher, *RUNNERS[runner], *arguments, *more)


def epochs_of(folder):
    """All that does not depend on the clock."""
    (record,) = ResultsFolder(folder).records()
    assert record.status == "ok"
    return [epoch.model_dump(exclude={"train_s", "evaluate_s"}) for epoch in record.epochs]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Where a run wrote, which prints as it goes, and what it printed."""
    folder = tmp_path_factory.mktemp("told")
    done = ended_well(train("ddp", folder / "out", "--tensorboard", folder / "events"))
    return folder, done.stdout


@pytest.fixture(scope="module")
def epochs(told):
    """Its epochs."""
    return epochs_of(told[0] / "out")


@pytest.mark.costly
@pytest.mark.parametrize("runner", ["fsdp2", "zero", *["hvd"] * HAS_HOROVOD])
def test_two_ranks_have_the_same_losses_to_the_last_bit_under_any_backend(tmp_path, epochs, runner):
    """Halving is exact."""
    ended_well(train(runner, tmp_path / "out"))
    assert epochs_of(tmp_path / "out") == epochs


def test_a_training_is_told_as_it_goes(told, epochs):
    folder, printed = told
    assert printed.count("held out loss") == 3
    assert len(list((folder / "events").glob("events.out.tfevents.*"))) == 1, "rank 0's"
    lines = re.findall(
        r"^epoch (\d)/3  train loss ([\d.]+)  .* images/s  learning rate", printed, re.M
    )
    assert [number for number, _ in lines] == ["1", "2", "3"]
    assert float(lines[1][1]) == pytest.approx(statistics.fmean(epochs[1]["step_losses"]), abs=1e-3)
    assert list(written(folder / "events", "loss/step")) == list(range(39)), "each step once"


def written(folder, tag):
    """A tag's values in TensorBoard's files, by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {one.step: one.value for one in found.Scalars(tag)}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What the ranks of ``ranks.training`` saw, by (backend, number of ranks)."""
    found, zero = {}, "ddp+zero_redundancy_optimizer"
    backends = ["ddp", "naive", "fsdp2", zero, *["horovod"] * HAS_HOROVOD]
    for ranks in (2, 3):
        seen = seen_by_ranks(
            partial(forked, ranks, training), tmp_path_factory.mktemp("seen"), *backends
        )
        found |= {(backend, ranks): first for backend, (first, *_) in seen.items()}
    return found


def test_held_out_sums_are_the_same_however_many_ranks_share_the_data(seen):
    alone = training.held_out(training.started(World(), "single", None))
    assert alone["count"] == 53
    alone["loss_sum"] = pytest.approx(alone["loss_sum"], rel=1e-6)
    for place, one in seen.items():
        assert one["held_out"] == alone, place


def test_gradients_are_clipped_after_the_exchange_by_all_backends_alike(seen):
    clipped = {backend: one["clipped"] for (backend, ranks), one in seen.items() if ranks == 2}
    assert len(clipped) == 4 + HAS_HOROVOD
    for backend, parameters in clipped.items():
        assert parameters == pytest.approx(clipped["ddp"], abs=1e-5), backend


@pytest.mark.parametrize("precision", ["amp-bf16", "amp-fp16"])
def test_mixed_precision_passes_the_gate_and_learns(seen, precision):
    for (backend, ranks), one in seen.items():
        if ranks == 2:
            assert one[precision]["gate"] == [], backend
            losses = one[precision]["losses"]
            assert len(losses) == 13
            assert all(map(math.isfinite, losses))
            assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
