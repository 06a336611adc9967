"""The digits that come with the package are those of ``sklearn.datasets.load_digits()``, bit for bit."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from workloads.digits import TEST_EVERY, Digits, read_table

# SHA-256 of load_digits().data and .target in scikit-learn 1.9.1, float64 [1797, 64] and int64 [1797].
DATA = "20def7f70a702f0af9732fbba4375e147a7d54fe70d8c45569b8e7c1c7010c10"
TARGET = "a3c91c262eddcf7ba8f0e37507c30284493c9b20412ffe4af30d536401f7ba21"


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def test_the_same_digits_in_the_same_order():
    table = read_table()
    assert table.dtype == np.int64
    assert table.shape == (1797, 65)
    assert digest(table[:, :-1].astype(np.float64)) == DATA
    assert digest(table[:, -1]) == TARGET


def test_every_fifth_digit_is_held_out():
    workload = Digits(local_batch_size=8, seed=1)
    labels = torch.from_numpy(read_table()[:, -1])
    is_held_out = torch.arange(len(labels)) % TEST_EVERY == 0
    for dataset, chosen in ((workload.read_training_set(), ~is_held_out), (workload.read_held_out_set(), is_held_out)):
        images, found = dataset.tensors
        assert images.dtype == torch.float32
        assert images.shape == (int(chosen.sum()), 1, 28, 28)
        assert torch.equal(found, labels[chosen])
