"""Refuses the timing of ranks that have drifted apart, where no driver compares them."""

from __future__ import annotations

from collections.abc import Sequence

from measurement.errors import ParityError
from runners.protocol.drift import drift_between
from runners.protocol.messages import DriftReport


def require_together(reports: Sequence[DriftReport | None]) -> None:
    """Compare all ranks' reports, by rank.

    Raises:
        ParityError: on every rank, with what differs.
    """
    apart = drift_between(reports)
    if apart:
        raise ParityError(apart)
