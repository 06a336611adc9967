"""The digits that come with the package are those of ``sklearn.datasets.load_digits()``, bit for
bit."""

from __future__ import annotations

import hashlib

import numpy as np

from workloads.digits import read_table

# SHA-256 of load_digits().data and .target in scikit-learn 1.9.1, float64 [1797, 64] and int64
# [1797].
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
