"""Event files of a launch without training, read back by TensorBoard's own reader."""

from __future__ import annotations

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from runners.event_log import EventLog


def rows(number, kind, *, step_s):
    """A block of two ranks and two steps; the second rank is slower by a tenth."""
    return [
        {"rank": rank, "round": number, "kind": kind, "step": step, "samples": 8, "data_wait_s": 0.25 * s, "step_s": s}
        for rank, s in enumerate((step_s, 1.1 * step_s))
        for step in range(2)
    ]


def test_rounds_tell_throughput_step_time_and_exposed_communication(tmp_path):
    log = EventLog(tmp_path, sample_unit="images")
    log.rounds([*rows(0, "sync", step_s=0.1), *rows(1, "sync", step_s=0.2), *rows(1, "local", step_s=0.1)])
    log.close()
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    values = {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    assert values.pop("throughput/images_per_s") == [(1, pytest.approx(32 / 0.22)), (2, pytest.approx(32 / 0.44))]
    assert values.pop("step_time/median_s") == [(1, pytest.approx(0.11)), (2, pytest.approx(0.22))]
    assert values.pop("data_wait/share") == [(1, pytest.approx(0.25)), (2, pytest.approx(0.25))]
    assert values.pop("exposed_communication/s") == [(2, pytest.approx(0.11))]
    assert not values
