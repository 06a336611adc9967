"""Whether other processes use so much of this machine that a comparison would be disturbed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from measurement.agent.ringside_agent.machine import core_use

WATCHED_S = 0.5
BUSY = 0.10
"""A machine of whose cores others use this share is not quiet."""
BUSY_REMEDY = "they disturb what is measured: end them first ('top' names them)"


def busy_warning(cores: Sequence[int]) -> str | None:
    """A sentence where others use so much of these cores that a comparison would be disturbed; watches them for ``WATCHED_S``."""
    before = core_use.read(cores)
    time.sleep(WATCHED_S)
    use = core_use.between(before, core_use.read(cores))
    if use is None:
        return None
    share = (use["busy_s"] - use["own_s"]) / (use["wall_s"] * len(cores))
    return None if share < BUSY else f"other processes use {share:.0%} of the {len(cores)} cores"
