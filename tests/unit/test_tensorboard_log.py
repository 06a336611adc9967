"""Event files of a launch that did not train to the end, read back by TensorBoard's own reader."""

from __future__ import annotations

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from measurement.records.record import BlockRecord, RankSteps
from runners.event_log import TensorboardLog


def block(turn, number, kind, *, step_s):
    """Two ranks, two steps; the second rank is slower by a tenth and waits for data twice as
    long."""
    ranks = [
        RankSteps(
            rank=rank,
            untimed_s=0.0,
            samples=[8, 8],
            phases_s=[[0.2 * (rank + 1) * s, 0.0, (0.8 - 0.2 * rank) * s, 0.0, 0.0]] * 2,
        )
        for rank, s in enumerate((step_s, 1.1 * step_s))
    ]
    return BlockRecord(turn=turn, round=number, block=turn, kind=kind, steps=2, ranks=ranks)


def scalars(folder):
    """By tag: steps and values."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_rounds_tell_throughput_step_time_data_wait_and_exposed_communication(tmp_path):
    log = TensorboardLog(tmp_path, sample_unit="images")
    log.rounds(
        [
            block(0, 0, "sync", step_s=0.1),
            block(1, 1, "sync", step_s=0.2),
            block(2, 1, "local", step_s=0.1),
        ]
    )
    log.close()
    values = scalars(tmp_path)
    assert values.pop("throughput/images_per_s") == [
        (1, pytest.approx(32 / 0.22)),
        (2, pytest.approx(32 / 0.44)),
    ]
    assert values.pop("step_time/median_s") == [(1, pytest.approx(0.11)), (2, pytest.approx(0.22))]
    assert values.pop("data_wait/share") == [(1, pytest.approx(0.4)), (2, pytest.approx(0.4))], (
        "of the rank that waits most"
    )
    assert values.pop("exposed_exchange/s") == [(2, pytest.approx(0.11))]
    assert not values
