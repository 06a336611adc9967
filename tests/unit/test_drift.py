"""Ranks that have drifted apart, by what each tells of itself."""

from __future__ import annotations

import pytest

from runners.driver.gates import drift_between
from runners.protocol import DriftReport


def rank(rate=0.1, *, weight=(1.0, 2.0)):
    return DriftReport(
        hyperparameters={"lr": [rate, 0.5]},
        parameters={"weight": list(weight)} if weight else {},
    )


@pytest.mark.parametrize(
    "reports",
    [
        [rank(), rank(weight=(1.0 + 1e-6, 2.0)), rank(0.1 * (1 + 1e-9))],
        [rank(weight=(float("nan"), 1.0))] * 2,
        [rank(weight=None)] * 2,
        [None, None],
    ],
)
def test_ranks_that_are_apart_by_rounding_alone_or_diverge_alike_have_not_drifted(reports):
    assert drift_between(reports) is None


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            rank(0.025),
            "ranks have drifted apart: lr 0.1, 0.025 (every rank must take the same steps",
        ),
        (
            rank(weight=(1.0, 2.1)),
            "ranks have drifted apart: parameters 'weight', by up to 0.045 of their size",
        ),
        (rank(weight=(float("nan"), 2.0)), "parameters 'weight', by up to inf"),
    ],
)
def test_what_differs_is_told_with_its_values(other, message):
    assert message in drift_between([rank(), rank(), other])
