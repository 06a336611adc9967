"""What a rank is given of its host."""

from __future__ import annotations

import pytest

from measurement.fingerprint import core_count
from measurement.world import World
from runners.rank.resources import threads_of

ALONE = World(launcher="torchrun")
SHARED = World(local_world_size=4 * core_count(), world_size=4 * core_count())
BY_TORCHRUN = {"TORCHELASTIC_RUN_ID": "x"}


@pytest.mark.parametrize(
    ("world", "asked", "environment", "threads"),
    [
        (ALONE, None, {}, core_count()),
        (SHARED, None, {}, 1),
        (ALONE, 3, {"OMP_NUM_THREADS": "2"}, 3),
        (ALONE, None, {"OMP_NUM_THREADS": "7"}, 7),
        (ALONE, None, {"OMP_NUM_THREADS": "7", **BY_TORCHRUN}, 7),
        (ALONE, None, {"OMP_NUM_THREADS": "1", **BY_TORCHRUN}, core_count()),
        (ALONE, None, {"OMP_NUM_THREADS": "1"}, 1),
        (ALONE, None, {"OMP_NUM_THREADS": "many"}, core_count()),
    ],
)
def test_threads(world, asked, environment, threads):
    """torchrun's own OMP_NUM_THREADS=1 does not count; a user's does."""
    assert threads_of(world, asked=asked, environment=environment) == threads
