"""Runs that people started themselves, from folders of known truth: how they are compared, and what
is refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from measurement.errors import PlanError
from measurement.plans.plan import Plan
from measurement.plans.sections import Arm, Measurement
from measurement.plans.settings import TrainingSettings
from measurement.records.results import ResultsFolder
from reports import write_runs
from reports.runs import conclude_runs, read_runs
from reports.schema import Comparison
from reports.statistics.student import Runs, run_order, separate_ratio
from tests.kit.changed import changed
from tests.kit.ratios import log_width
from tests.kit.refusals import refused_command
from tests.kit.results_factory import Truth, make_launch
from tests.unit.test_training_report import epochs, record

pytestmark = pytest.mark.slow  # results of whole runs are composed

DDP = Arm(backend="ddp", transport="gloo", launcher="torchrun")
HVD = Arm(backend="horovod", transport="gloo", launcher="horovodrun")
SLOWER = Truth(ratios={"horovod": 0.8}, launch_noise=0.02)


def asked(arm, **changes):
    """The plan of a run."""
    name = arm.backend
    usual = {
        "name": name,
        "workload": "digits",
        "world_size": 2,
        "baseline": name,
        "arms": {name: arm},
        "measurement": Measurement(
            mode="separate", control=False, launches=1, rounds=12, block_steps=5, local_every=4
        ),
    }
    return Plan(**usual | changes)


def stored(folder, plan, record):
    """The folder of a run."""
    results = ResultsFolder(folder)
    results.write_plan(plan)
    results.write_launch(record)
    return folder


def write_run(folder, arm, *, minute=0, seed=3, truth=SLOWER, change=None, **changes):
    """One run's folder; ``minute`` is when it began, ``change`` alters its record."""
    plan = asked(arm, **changes)
    (record,) = make_launch(plan, truth, 0, random=np.random.default_rng([minute, seed]))
    record.started_at = f"2026-01-01T12:{minute:02d}:00+00:00"
    if change:
        change(record)
    return stored(folder, plan, record)


def write_alternating(root, number=5, **both):
    arms = [("ddp", DDP), ("hvd", HVD)]
    return [
        write_run(root / f"{name}-{launch}", arm, minute=2 * launch + place, **both)
        for launch in range(number)
        for place, (name, arm) in enumerate(arms)
    ]


def compared(paths, **options):
    comparison = conclude_runs(read_runs(paths), name="report", **options)
    assert isinstance(comparison, Comparison)
    return comparison


def test_arms_are_named_after_what_tells_them_apart(tmp_path):
    mpi, large = changed(HVD, transport="mpi"), changed(DDP, options={"bucket_cap_mb": 50})
    paths = [
        write_run(tmp_path / f"{at}", arm, minute=at)
        for at, arm in enumerate((DDP, large, HVD, mpi))
    ]
    names = ["ddp", "ddp-bucket_cap_mb.50", "horovod-gloo", "horovod-mpi"]
    assert [arm.name for arm in compared(paths).arms] == names
    assert compared(paths, baseline="horovod-mpi").baseline == "horovod-mpi"
    with pytest.raises(PlanError, match="--baseline 'hvd' is not an arm of these runs; use ddp or"):
        compared(paths, baseline="hvd")


def set_ranks(**changes):
    def change(record):
        record.ranks = [rank.model_copy(update=changes) for rank in record.ranks]

    return change


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"local_batch_size": 64}, "local_batch_size: 32 in {ddp}, 64 in {hvd}"),
        (
            {"change": set_ranks(fingerprint={"cpu": "Another"})},
            "host.cpu: Synthetic CPU in {ddp}, Another in {hvd}",
        ),
        ({"change": set_ranks(node_rank=1)}, "placement: host 0 in {ddp}, host 1 in {hvd}"),
    ],
)
def test_runs_of_another_question_or_on_other_conditions_are_refused(tmp_path, changes, field):
    ddp = write_run(tmp_path / "ddp", DDP)
    hvd = write_run(tmp_path / "hvd", HVD, minute=1, **changes)
    message = refused_command("report", ddp, hvd, "-o", tmp_path / "out")
    assert field.format(ddp=ddp, hvd=hvd) in message
    assert "say --allow FIELD to compare them anyway" in message
    assert not (tmp_path / "out").exists()
    named = field.partition(":")[0].partition(".")[0]
    allowed = compared([ddp, hvd], allowed=[named])
    told = f"Compared although it differs (--allow): {named}"
    assert any(line.startswith(told) for line in allowed.warnings)
    assert allowed.result("horovod").withheld_by is None


@pytest.fixture
def of_sizes(tmp_path):
    """Runs of both backends with one, two and four ranks, by the names of their folders."""
    return {
        f"{arm.backend}-{size}": write_run(
            tmp_path / f"{arm.backend}-{size}", arm, minute=2 * size + place, world_size=size
        )
        for size in (1, 2, 4)
        for place, arm in enumerate((DDP, HVD))
    }


def test_several_world_sizes_are_the_points_of_a_study(tmp_path, of_sizes):
    comparison = conclude_runs(read_runs([*of_sizes.values()]), name="scaling")
    sizes = {point.name: point.world_size for point in comparison.points}
    assert sizes == {"n1": 1, "n2": 2, "n4": 4}
    assert comparison.points[2].arm("horovod").speed_up is not None
    write_runs(comparison, ResultsFolder(tmp_path / "out"))
    page = tmp_path / "out" / "points" / "n4" / "report.md"
    assert "People started these runs themselves" in page.read_text()


def test_a_size_without_its_baseline_is_refused(tmp_path, of_sizes):
    del of_sizes["ddp-2"]
    mpi = changed(HVD, transport="mpi")
    more = write_run(tmp_path / "mpi", mpi, world_size=2, minute=40)
    with pytest.raises(PlanError, match="no run of the baseline 'ddp' with 2 ranks"):
        conclude_runs(read_runs([*of_sizes.values(), more]), name="gap")


def write_training(root, arm, *, last=198, **changes):
    """A run to the end, in a folder of its own; ``last``: how many answers are right then."""
    plan = asked(
        arm,
        measurement=Measurement(mode="separate", launches=1, control=False, local_every=0),
        training=TrainingSettings(epochs=4, target_accuracy=0.97),
        **changes,
    )
    ended = record(plan, arm.backend, 0, epochs([120, 180, 196, last]))
    return stored(Path(tempfile.mkdtemp(dir=root)), plan, ended)


@pytest.fixture
def trainings(tmp_path):
    """Of three arms with three seeds each."""
    alone = {"world_size": 1, "local_batch_size": 64}
    return [
        write_training(tmp_path, arm, seed=seed, last=last, **changes)
        for arm, changes in ((DDP, {}), (HVD, {}), (Arm(backend="single"), alone))
        for seed, last in {4: 196, 2: 198, 3: 197}.items()
    ]


def test_trainings_to_the_end_are_compared_by_their_seeds(trainings):
    training = compared(trainings).training
    assert training.reference == "single"
    assert {arm.name: (arm.seeds, arm.convergence) for arm in training.arms} == {
        "ddp": (3, "same"),
        "horovod": (3, "same"),
        "single": (3, None),
    }
    assert [curve.seed for curve in training.arm("ddp").by_seed] == [2, 3, 4]
    assert training.arm("horovod").time_ratio.value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arm", "changes", "message"),
    [
        (DDP, {"seed": 3}, "trained ddp with the same seed 3"),
        (HVD, {"seed": 5, "local_batch_size": 16}, "global batch: 64 in"),
    ],
)
def test_trainings_that_do_not_fit_the_others_are_refused(
    tmp_path, trainings, arm, changes, message
):
    with pytest.raises(PlanError, match=message):
        compared([*trainings, write_training(tmp_path, arm, **changes)])


def runs(began, logs):
    return Runs(logs=np.asarray(logs), started=[f"{at:02d}" for at in began])


@pytest.mark.parametrize(
    ("ours", "theirs", "order"),
    [
        ((0, 2, 4), (1, 3, 5), "alternating"),
        ((0, 1, 2), (3, 4, 5), "one after the other"),
        ((0, 1, 4), (2, 3, 5), "mixed"),
    ],
)
def test_the_order_of_runs_follows_from_when_they_began(ours, theirs, order):
    assert run_order(runs(ours, np.zeros(3)), runs(theirs, np.zeros(3))) == order


def test_the_interval_is_welchs_by_hand():
    """Means 1.1 and 1.0, variances 0.01 and 0.0025, five runs each: error 0.05, 5.88 degrees of
    freedom."""
    spread = np.array([-1.0, -0.5, 0, 0.5, 1.0]) / np.sqrt(0.625)
    ours, theirs = runs(range(5), 1.1 + 0.1 * spread), runs(range(5, 10), 1.0 + 0.05 * spread)
    ratio = separate_ratio(ours, theirs, confidence=0.95)
    assert np.log(ratio.value) == pytest.approx(0.1)
    assert np.log(ratio.ci_high) - 0.1 == pytest.approx(2.4588 * 0.05, rel=1e-3)


def test_a_drift_of_the_machine_is_taken_out_of_alternating_runs():
    logs = np.linspace(0, 0.5, 10) + np.random.default_rng(2).normal(0, 0.01, 10)
    logs[1::2] += 0.1
    theirs, ours = logs[::2], logs[1::2]

    def width(ours_began, theirs_began):
        ratio = separate_ratio(runs(ours_began, ours), runs(theirs_began, theirs), confidence=0.95)
        return log_width(ratio)

    assert width(range(1, 10, 2), range(0, 10, 2)) < np.log(1.1)
    assert width(range(5), range(5, 10)) > np.log(1.5)
