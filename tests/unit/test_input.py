"""The input pipeline: shards, epochs, random transforms, exact evaluation. All in this process."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from measurement.errors import PlanError
from runners.planning.workload import resolve_workload
from workloads.base import classification_sums
from workloads.data.input import Augmented, Input, InputOptions
from workloads.digits import _digits, read_table

CPU = torch.device("cpu")


def numbers(count):
    return TensorDataset(torch.arange(count), torch.arange(count))


def share(rank, world_size, *, local_batch_size=4, seed=5):
    return Input(
        options=InputOptions(),
        local_batch_size=local_batch_size,
        seed=seed,
        rank=rank,
        world_size=world_size,
        device=CPU,
    )


def epochs(dataset, *, world_size, steps, count=2):
    """[epoch][rank]: the inputs of so many steps."""
    ranks = [share(rank, world_size).epochs(dataset).endless() for rank in range(world_size)]
    return [
        [
            torch.cat([inputs for inputs, _ in itertools.islice(batches, steps)]).tolist()
            for batches in ranks
        ]
        for _ in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_loader_processes_give_the_same_however_they_are_started(start_method):
    options = InputOptions(loader_workers=1, loader_start_method=start_method, pin_memory=False)
    mine = dataclasses.replace(share(0, 2), options=options).epochs(numbers(31)).batches(0)
    wanted = share(0, 2).epochs(numbers(31)).batches(0)
    assert [batch[0].tolist() for batch in mine] == [batch[0].tolist() for batch in wanted]


@pytest.mark.parametrize(("rank", "world_size", "batch"), [(0, 1, 32), (2, 3, 5)])
def test_digits_come_in_the_order_of_torchs_own_sampler(rank, world_size, batch):
    setup = resolve_workload("digits", {})
    workload = setup.build(local_batch_size=batch, seed=11)
    sampler = DistributedSampler(
        _digits(train=True), num_replicas=world_size, rank=rank, seed=11, drop_last=True
    )
    loader = DataLoader(_digits(train=True), batch_size=batch, sampler=sampler, drop_last=True)
    batches = workload.batches(rank=rank, world_size=world_size, device=CPU)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for wanted in loader:
            assert all(torch.equal(a, b) for a, b in zip(next(batches), wanted, strict=True))


def test_loading_leaves_the_models_random_numbers_alone():
    dataset = Augmented(numbers(9), lambda number: number + torch.rand(()), seed=1)
    before = torch.get_rng_state()
    assert list(itertools.islice(share(0, 1).epochs(dataset).endless(), 5))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_random_transform_depends_on_seed_epoch_and_sample_alone():
    def drawn(world_size, seed=1):
        dataset = Augmented(numbers(16), lambda number: number + 0.5 * torch.rand(()), seed=seed)
        steps = 16 // 4 // world_size
        return [
            sorted(itertools.chain(*epoch))
            for epoch in epochs(dataset, world_size=world_size, steps=steps)
        ]

    first, second = drawn(1)
    assert [first, second] == drawn(2) == drawn(4)
    assert [int(value) for value in first] == list(range(16))
    assert not set(first) & set(second), "another epoch, other random numbers"
    assert not set(first) & set(drawn(1, seed=2)[0])
    assert len({value % 1 for value in first}) == 16


@pytest.mark.parametrize(("samples", "world_size"), [(23, 1), (23, 5), (3, 5), (0, 2)])
def test_evaluation_gives_every_sample_exactly_once(samples, world_size):
    seen = [
        inputs
        for rank in range(world_size)
        for inputs, _ in share(rank, world_size).evaluation(numbers(samples))
    ]
    assert sorted(itertools.chain(*(inputs.tolist() for inputs in seen))) == list(range(samples))


def test_too_few_samples_are_refused_before_anything_is_loaded():
    with pytest.raises(
        PlanError,
        match="4 x 3 ranks is more than the 11 training samples; use a smaller local_batch_size",
    ):
        share(0, 3).epochs(numbers(11))


def test_sums_count_what_is_ranked_first_and_among_the_first_five():
    logits = torch.tensor([[9.0, 8, 7, 6, 5, 4]] * 3)
    sums = classification_sums(logits, torch.tensor([0, 4, 5]))
    assert (sums.top1, sums.top5, sums.count) == (1, 2, 3)
    two = classification_sums(logits[:1, :2], torch.tensor([1]))
    assert (two.top1, two.top5) == (0, 1), "fewer than five classes"
    assert two.loss_sum == pytest.approx(math.log(1 + math.e))


# SHA-256 of load_digits().data and .target in scikit-learn 1.9.1, float64 [1797, 64] and int64
# [1797].
DATA = "20def7f70a702f0af9732fbba4375e147a7d54fe70d8c45569b8e7c1c7010c10"
TARGET = "a3c91c262eddcf7ba8f0e37507c30284493c9b20412ffe4af30d536401f7ba21"


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def test_the_digits_that_come_with_the_package_are_those_of_scikit_learn():
    table = read_table()
    assert table.dtype == np.int64
    assert table.shape == (1797, 65)
    assert digest(table[:, :-1].astype(np.float64)) == DATA
    assert digest(table[:, -1]) == TARGET
