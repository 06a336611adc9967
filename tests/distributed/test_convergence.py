"""A whole comparison of trainings on real ranks: epochs, one process beside many, their
curves. TensorBoard's events: ``test_training``."""

from __future__ import annotations

from typing import get_args

import pytest

from measurement.plans.settings import Quantity
from reports.schema import Comparison
from tests.conftest import HOROVOD, needs_horovod
from tests.kit.comparisons import compare

pytestmark = pytest.mark.usefixtures("no_processes_left")

ARMS = {"single": "single", "ddp": "ddp", "horovod": HOROVOD}
SEED, SEEDS, EPOCHS, STEPS = 3, 2, 2, 5
LOCAL_BATCH_SIZE = 128
"""Of the 1437 digits two ranks make five steps an epoch of it."""
TRAINING = {
    "epochs": EPOCHS,
    "target_accuracy": 0.1,
    "learning_rate_scaling": "linear",
    "warmup_epochs": 1,
}


@needs_horovod
@pytest.mark.costly
def test_trainings_are_compared_by_seed(tmp_path):
    changes = {"local_batch_size": LOCAL_BATCH_SIZE, "seed": SEED, "training": TRAINING}
    ran = compare(tmp_path, arms=ARMS, **changes, measurement={"launches": SEEDS, "local_every": 0})
    records = ran.launches
    assert set(records) == {(launch, arm) for launch in range(SEEDS) for arm in ARMS}
    for (launch, arm), record in records.items():
        ranks = 1 if arm == "single" else 2
        assert (record.status, record.world_size, len(record.ranks)) == ("ok", ranks, ranks), (
            record.error
        )
        assert record.parity.passed
        assert {rank.seed for rank in record.ranks} == {SEED + launch}
        assert {rank.local_batch_size * ranks for rank in record.ranks} == {2 * LOCAL_BATCH_SIZE}
        assert [(epoch.steps, epoch.count, epoch.held_out_count) for epoch in record.epochs] == [
            (STEPS, 1280, 360)
        ] * EPOCHS
    assert _turns(records) != sorted(_turns(records)), "arms take turns"
    for arm in ("ddp", "horovod"):
        first, alone = (
            [records[launch, name].epochs[0].step_losses[0] for launch in range(SEEDS)]
            for name in (arm, "single")
        )
        assert first == pytest.approx(alone, rel=0.05), (
            "the same weights and samples; batch norm sees half of them"
        )
        assert first[0] != first[1]
    training = Comparison.model_validate(ran.report).training
    assert (training.reference, training.baseline) == ("single", "ddp")
    for arm in training.arms:
        assert (arm.seeds, arm.pairs) == (SEEDS, 0 if arm.name == "single" else SEEDS)
        assert set(arm.curve.bands) == set(get_args(Quantity))


def _turns(records):
    """Arms of the first launch in order of their epochs."""
    blocks = [(block.turn, arm) for arm in ARMS for block in records[0, arm].blocks]
    return [arm for _, arm in sorted(blocks)]
