"""Whether scripts train alike: start, gradients of the first step, parameters after each compared step, loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from measurement.plans.plan import Plan
from measurement.records.record import LaunchRecord
from reports.script_schema import Equality


def judge_equality(
    plan: Plan, records: Sequence[LaunchRecord], *, losses: Mapping[tuple[int, str], pd.DataFrame] | None = None
) -> Equality:
    """Hold every arm of scripts against the baseline.

    Args:
        plan: its baseline, control and ``scripts``.
        records: of all launches and arms.
        losses: by launch and arm (``measurement.records.results.ResultsFolder.losses``); None: not known.
    """
    raise NotImplementedError
