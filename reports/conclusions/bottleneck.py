"""Which term of a step limits the speed: shares of the mean synchronised step (``reports.conclusions.step_terms``)."""

from __future__ import annotations

from typing import Literal

import pandas as pd

from reports.schema import StepShares, StepTerms

LIMIT = 0.25
"""From this share of a step on, a cause is called the limit: without it, throughput would rise by at least a third."""

Limit = Literal["input", "exchange", "library", "imbalance", "computing", "not the input"]
"""The last one where nothing but the data wait is known."""


def data_wait_share(sync: pd.DataFrame) -> float:
    """The share of its synchronised steps that a rank waits for data, of the rank that waits most; 0 to 1.

    The other ranks wait for that rank in the exchange. Without loader workers, all of the loading is such a wait.

    Args:
        sync: the synchronised steps of one arm that count, at least one, columns ``rank``, ``data_wait_s`` and ``step_s``.
    """
    sums = sync.groupby("rank")[["data_wait_s", "step_s"]].sum()
    return float((sums["data_wait_s"] / sums["step_s"]).max())


def step_shares(sync: pd.DataFrame, terms: StepTerms | None) -> StepShares:
    """The shares of an arm's step; none is below 0, where noise, or exchange that saves time, would put it.

    Args:
        sync: as of ``data_wait_share``.
        terms: None: only the data wait is known.
    """
    waiting = data_wait_share(sync)
    if terms is None:
        return StepShares(data_wait=waiting)
    overhead = None if terms.library_overhead is None else terms.library_overhead.value
    values = {"exposed_exchange": terms.exposed_exchange.value, "library_overhead": overhead, "imbalance": terms.imbalance.value}
    shares = {name: None if value is None else max(value, 0.0) / terms.step.value for name, value in values.items()}
    return StepShares(data_wait=waiting, **shares)


def limit_of(shares: StepShares) -> Limit:
    """What limits an arm's speed: the largest share, where it reaches ``LIMIT``; else computing."""
    found: dict[Limit, float] = {
        "input": shares.data_wait,
        "exchange": shares.exposed_exchange or 0.0,
        "library": shares.library_overhead or 0.0,
        "imbalance": shares.imbalance or 0.0,
    }
    largest = max(found, key=lambda name: found[name])
    if found[largest] >= LIMIT:
        return largest
    return "not the input" if shares.exposed_exchange is None else "computing"
