"""Event files of a launch that did not train to the end, read back by TensorBoard's own reader."""

from __future__ import annotations

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from measurement.records.block import BlockRecord, RankSteps
from runners.progress import TensorboardLog


def block(turn, number, kind, *, step_s):
    """Two ranks, two steps; the second rank is slower by a tenth and waits for data twice as
    long."""

    def steps_of(rank, seconds, waiting):
        phases = [waiting * seconds, 0.0, (1 - waiting) * seconds, 0.0, 0.0]
        return RankSteps(rank=rank, untimed_s=0.0, samples=[8, 8], phases_s=[phases] * 2)

    ranks = [steps_of(0, step_s, 0.2), steps_of(1, 1.1 * step_s, 0.4)]
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
    """The wait is that of the rank that waits most."""
    log = TensorboardLog(tmp_path, sample_unit="images")
    first, second = block(0, 0, "sync", step_s=0.1), block(1, 1, "sync", step_s=0.2)
    log.rounds([first, second, block(2, 1, "local", step_s=0.1)])
    log.close()
    assert scalars(tmp_path) == {
        "throughput/images_per_s": [(1, pytest.approx(32 / 0.22)), (2, pytest.approx(32 / 0.44))],
        "step_time/median_s": [(1, pytest.approx(0.11)), (2, pytest.approx(0.22))],
        "data_wait/share": [(1, pytest.approx(0.4)), (2, pytest.approx(0.4))],
        "exposed_exchange/s": [(2, pytest.approx(0.11))],
    }
