"""Loaders of a waiting arm give it nothing for free. That none of its processes runs:
``test_rank_supervisor``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.plugins.slow_loader import BATCH_S, WORKERS
from tests.kit.comparisons import compare

pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("no_processes_left")]
SLOW_LOADER = Path(__file__).parent / "plugins" / "slow_loader.py"


def test_a_batch_is_not_loaded_while_its_arm_waits(tmp_path):
    """With batches from a queue that was filled while the arm did not step, it would be several
    times as fast."""
    ran = compare(
        tmp_path,
        workload=f"{SLOW_LOADER}:SlowLoader",
        local_batch_size=2,
        arms={arm: {"backend": arm, "launcher": "spawn"} for arm in ("ddp", "naive")},
        measurement={"rounds": 8, "block_steps": 6, "local_every": 0},
    )
    for record in ran.records.values():
        assert ran.folder.steps(record)["step_s"].mean() > 0.9 * BATCH_S / WORKERS
