"""Training from files on real ranks, and in loader processes."""

from __future__ import annotations

import itertools

import pytest
import torch

from runners.planning.workload import resolve_workload
from tests.conftest import HAS_HOROVOD, HOROVOD
from tests.kit.comparisons import compare
from tests.kit.dataset_files import write_data

pytestmark = pytest.mark.usefixtures("no_processes_left")

CPU = torch.device("cpu")


@pytest.mark.costly
def test_all_backends_train_mnist_from_files_on_the_same_samples(tmp_path):
    options = {**write_data("mnist", tmp_path / "data"), "loader_workers": 1}
    arms = {"ddp": "ddp"} | ({"horovod": HOROVOD} if HAS_HOROVOD else {})
    records = compare(tmp_path, workload="mnist", workload_options=options, local_batch_size=8, arms=arms).records.values()
    assert len(records) == 2
    for record in records:
        assert record.status == "ok", record.error
        assert record.parity.gradient_error < 1e-5
        assert [rank.model["parameters"] for rank in record.ranks] == [29034, 29034]
    assert len({record.parity.samples_digest for record in records}) == 1


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_batches_are_the_same_however_many_processes_load(tmp_path, name):
    options = write_data(name, tmp_path / "data")

    def batches(**more):
        made = resolve_workload(name, {**options, **more}).build(local_batch_size=4, seed=3)
        endless = made.batches(rank=1, world_size=2, device=CPU)
        return [*itertools.islice(endless, 5), *made.evaluation_batches(rank=1, world_size=2, device=CPU)]

    alone, two = batches(), batches(loader_workers=2, prefetch_factor=1)
    assert len(alone) == len(two) == 5 + 3
    assert all(torch.equal(a, b) for one, other in zip(alone, two, strict=True) for a, b in zip(one, other, strict=True))
