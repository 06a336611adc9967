"""Which settings ``--explain`` tries, and what share of a difference one is said to explain."""

from __future__ import annotations

import numpy as np
import pytest

from measurement.conditions.differences import Difference
from reports.statistics.student import ratio_of_means
from runners.scripts.ab_command import settings_to_try


def row(field, a, b, **more):
    return Difference(field=field, values={"a": a, "b": b}, sentence="", severity="speed", **more)


def tried(*rows):
    return settings_to_try(rows, baseline="a", candidate="b")


def test_tried_is_what_changes_speed_alone_and_can_be_imposed():
    rows = [
        row("threads.torch", 1, 2),
        row("loader.workers", 0, 4),
        row("loader.batch_size", 8, 16, changes_work=True),
    ]
    assert tried(*rows, row("model.dropout", 0.1, 0.2)) == {"threads.torch": 2, "loader.workers": 4}


def test_threads_are_tried_once_and_what_a_library_alone_has_is_not():
    threads, own = row("threads.torch", 1, 2), row("environment.HOROVOD_CYCLE_TIME", "50", None)
    assert tried(row("environment.OMP_NUM_THREADS", "1", "2"), threads) == {"threads.torch": 2}
    assert tried(own) == {"environment.HOROVOD_CYCLE_TIME": None}
    assert tried(row("library", "horovod", "ddp"), own) == {}
    assert tried(row("threads.torch", {"by_rank": [1, 2]}, 2)) == {}


def test_fiellers_interval_is_that_of_his_formula():
    above, below = np.array([0.18, 0.22, 0.20, 0.24]), np.array([0.29, 0.33, 0.30, 0.31])
    share = ratio_of_means(above, below, confidence=0.95)
    assert share.value == pytest.approx(above.mean() / below.mean())
    for bound in share.bounds:  # where the t statistic of above - bound x below is just that of 95%
        rest = above - bound * below
        assert abs(rest.mean()) / (rest.std(ddof=1) / 2) == pytest.approx(3.1824, rel=1e-4)


def test_of_no_difference_there_is_no_share():
    noise = np.array([0.02, -0.03, 0.01, -0.01])
    assert ratio_of_means(noise, noise, confidence=0.95) is None
