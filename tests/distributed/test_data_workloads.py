"""Training from files in loader processes. On ranks: ``tests/reliability/test_surroundings.py``."""

from __future__ import annotations

import itertools

import pytest
import torch

from runners.planning.workload import resolve_workload
from tests.kit.dataset_files import write_data

pytestmark = pytest.mark.usefixtures("no_processes_left")

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_batches_are_the_same_however_many_processes_load(tmp_path, name):
    options = write_data(name, tmp_path / "data")

    def batches(**more):
        made = resolve_workload(name, {**options, **more}).build(local_batch_size=4, seed=3)
        endless = made.batches(rank=1, world_size=2, device=CPU)
        return [
            *itertools.islice(endless, 5),
            *made.evaluation_batches(rank=1, world_size=2, device=CPU),
        ]

    alone, two = batches(), batches(loader_workers=2, prefetch_factor=1)
    assert len(alone) == len(two) == 5 + 3
    assert all(
        torch.equal(a, b)
        for one, other in zip(alone, two, strict=True)
        for a, b in zip(one, other, strict=True)
    )
