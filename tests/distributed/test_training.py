"""Training to the end on real ranks: what all backends must agree in, and what a killed run goes on with."""

from __future__ import annotations

import json
import math
import re
import statistics

import pytest
import torch

from measurement.records.results import ResultsFolder
from measurement.world import World
from tests.conftest import HAS_HOROVOD, drawn
from tests.distributed.ranks import training
from tests.distributed.ranks.interrupted import DIES_AT
from tests.kit.commands import MPIRUN, forked, run, warm

pytestmark = pytest.mark.usefixtures("no_processes_left")


SPAWN = ["-m", "runners.spawn", "--nproc-per-node", "2", "-m"]
RUNNERS = {
    "hvd": ["runners.hvd", "--transport", "gloo"],
    "ddp": ["runners.ddp"],
    "fsdp2": ["runners.ddp", "--backend", "fsdp2"],
    "zero": ["runners.ddp", "--option", "zero_redundancy_optimizer=true"],
}


def train(runner, folder, *more):
    arguments = ["--workload", training.WORKLOAD, "--local-batch-size", "8", "--epochs", "3", "--threads", "1"]
    arguments += ["--parity-steps", "0", "--learning-rate-scaling", "linear", "--warmup-epochs", "1.5", "-o", folder]
    launcher = [*MPIRUN, "-m"] if runner == "hvd" else warm(*SPAWN)
    return run(*launcher, *RUNNERS[runner], *arguments, *more)


def epochs_of(folder):
    """All that does not depend on the clock."""
    (record,) = ResultsFolder(folder).records()
    assert record.status == "ok"
    return [epoch.model_dump(exclude={"train_s", "evaluate_s"}) for epoch in record.epochs]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Where a run nobody interrupts wrote, which prints as it goes, and what it printed."""
    folder = tmp_path_factory.mktemp("told")
    more = ("--print-every", "5", "--checkpoint", folder / "kept.pt", "--tensorboard", folder / "events")
    done = train("ddp", folder / "out", *more)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def uninterrupted(told):
    """Its epochs. Halving is exact, so two ranks of DDP and of Horovod have the same losses to the last bit."""
    return epochs_of(told[0] / "out")


KILLED = drawn(["ddp", "fsdp2", "zero", *["hvd"] * HAS_HOROVOD], number=2)
"""Who goes on from the checkpoint of the one before, until it dies itself."""
DEATHS = [
    ("1:8", "epoch 2, step 6 of 13"),
    ("1:12", "epoch 2, step 11 of 13"),
    ("2:8", "epoch 3, step 6 of 13"),
    ("2:12", "epoch 3, step 11 of 13"),
]
"""Before which batch each dies, and where the next one begins; the last is always the last."""


@pytest.mark.timeout(600)  # several runs, one after another
@pytest.mark.costly
def test_a_training_that_is_killed_again_and_again_goes_on_under_any_backend_as_if_nothing_had_happened(
    tmp_path, monkeypatch, uninterrupted
):
    keep, begins = ["--checkpoint", tmp_path / "kept.pt", "--checkpoint-steps", "5"], None
    deaths = [*DEATHS[: len(KILLED) - 1], DEATHS[-1]]
    for runner, (dies_at, next_begins) in zip(KILLED, deaths, strict=True):
        monkeypatch.setenv(DIES_AT, dies_at)
        killed = train(runner, tmp_path / runner, *keep, *["--resume"] * bool(begins))
        assert killed.returncode != 0
        assert not begins or f"resumed at {begins}" in killed.stdout
        assert not ResultsFolder(tmp_path / runner).records()
        begins = next_begins
    monkeypatch.delenv(DIES_AT)
    done = train("ddp", tmp_path / "resumed", *keep, "--resume")
    assert done.returncode == 0, done.stderr
    assert f"resumed at {begins}" in done.stdout
    assert epochs_of(tmp_path / "resumed") == uninterrupted
    (record,) = ResultsFolder(tmp_path / "resumed").records()
    assert [block.steps for block in record.blocks] == [13], "those that ended in this run, each whole"
    assert len(ResultsFolder(tmp_path / "resumed").steps(record)) == 2 * 13


def test_a_training_is_told_as_it_goes_and_its_best_is_kept_and_evaluated(tmp_path, told, uninterrupted):
    folder, printed = told
    assert printed.count("held out: loss") == 3
    assert len(list((folder / "events").glob("events.out.tfevents.*"))) == 1, "rank 0's"
    lines = re.findall(
        r"^epoch (\d)/3  step (\d+)/13  loss ([\d.]+)  [\d,.]+ images/s  data wait \d+%  \d:\d\d:\d\d left$", printed, re.M
    )
    assert [(epoch, step) for epoch, step, _ in lines] == [(epoch, step) for epoch in "123" for step in ("5", "10")]
    assert float(lines[1][2]) == pytest.approx(statistics.fmean(uninterrupted[0]["step_losses"][5:10]), abs=1e-3)
    assert list(written(folder / "events", "loss/step")) == list(range(39)), "each step once"
    top1 = [epoch["held_out_top1"] for epoch in uninterrupted]
    best = torch.load(folder / "kept.best.pt", weights_only=True)
    assert len(best["finished"]) == 1 + top1.index(max(top1))
    evaluate = ["--workload", training.WORKLOAD, "--evaluate", "--parity-steps", "0"]
    done = run(*warm(*SPAWN), "runners.ddp", *evaluate, "--checkpoint", folder / "kept.best.pt", "-o", tmp_path / "evaluated")
    assert done.returncode == 0, done.stderr
    right = max(top1) / uninterrupted[0]["held_out_count"]
    assert f"top1_accuracy {right:.2%}" in done.stdout
    assert not (tmp_path / "evaluated").exists()


@pytest.mark.costly
def test_a_training_may_begin_at_a_later_epoch_and_be_gone_on_with(tmp_path, monkeypatch):
    keep = ["--lr", "0.02", "--checkpoint", tmp_path / "kept.pt"]
    monkeypatch.setenv(DIES_AT, "2:8")
    assert train("ddp", tmp_path / "killed", "--start-epoch", "1", *keep).returncode != 0
    monkeypatch.delenv(DIES_AT)
    done = train("ddp", tmp_path / "resumed", *keep, "--resume")
    assert done.returncode == 0, done.stderr
    assert "resumed at epoch 3, step 1 of 13" in done.stdout
    first, last = epochs_of(tmp_path / "resumed")
    assert (first["epoch"], last["epoch"]) == (1, 2)
    assert last["learning_rates"] == pytest.approx([0.04, 0.04]), "two ranks, warmed up in the epochs that are left out, too"


def written(folder, tag):
    """A tag's values in TensorBoard's files, by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {one.step: one.value for one in found.Scalars(tag)}


@pytest.mark.costly
def test_a_damaged_checkpoint_is_told_once_by_all_ranks_together(tmp_path):
    (tmp_path / "kept.pt").write_bytes(b"PK\x03\x04 and no more")
    done = train("fsdp2", tmp_path, "--checkpoint", tmp_path / "kept.pt", "--resume")  # spawn tells how a rank ended
    assert done.returncode != 0
    assert done.stderr.count(f"ringside: checkpoint '{tmp_path / 'kept.pt'}' cannot be read") == 1
    assert "terminated with exit code 2" in done.stderr
    assert "terminated with exit code 1" not in done.stderr


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What the ranks of ``ranks.training`` saw, by (backend, number of ranks)."""
    folder, found = tmp_path_factory.mktemp("seen"), {}
    backends = ["ddp", "naive", "fsdp2", "ddp+zero_redundancy_optimizer", *["horovod"] * HAS_HOROVOD]
    for ranks in (2, 3):
        output = folder / f"{ranks}.json"
        done = forked(ranks, training, output, *backends)
        assert done.returncode == 0, done.stderr
        found |= {(backend, ranks): value for backend, value in json.loads(output.read_text()).items()}
    return found


def test_held_out_sums_are_the_same_however_many_ranks_share_the_data(seen):
    alone = training.held_out(training.started(World(), "single", None))
    assert alone["count"] == 53
    for place, one in seen.items():
        assert one["held_out"] == {**alone, "loss_sum": pytest.approx(alone["loss_sum"], rel=1e-6)}, place


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
