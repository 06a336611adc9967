"""Cells of the fault matrix: two faults of arms in one comparison, drawn by the commit; sometimes
one of the driver or its disk.

There is one cell for each fault, but for a launcher that never starts ranks, whose time-out is
long. All cells: ``python benchmarks/fault_matrix.py``.
"""

from __future__ import annotations

import pytest

from tests.conftest import HAS_HOROVOD, drawn
from tests.kit import faults
from tests.kit.faults import Cell

TOGETHER = [
    "kill-rank.waiting.horovod-gloo",
    "kill-launcher.block.horovod-mpi",
    "raise.finish.ddp-gloo",
    "lock.block.ddp-gloo",
    "flood.start.ddp-gloo",
    "cut-off.block.ddp-gloo",
    "exits-at-once.start.ddp-mpi",
]
"""Faults of arms."""
ALONE = [
    "stop-driver.block.ddp-gloo",
    "read-only.finish.ddp-gloo",
    "kill-driver.block.horovod-gloo",
    "disk-full.block.ddp-gloo",
]
DRAWN = drawn([text for text in TOGETHER if HAS_HOROVOD or "horovod" not in text], number=2)


def cell(text):
    fault, stage, kind = text.split(".")
    return Cell(fault=fault, stage=stage, kind=kind)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    return faults.plant([cell(text) for text in DRAWN], tmp_path_factory.mktemp("together"))


@pytest.mark.parametrize("text", DRAWN)
def test_a_fault_of_an_arm_is_named_and_the_others_finish(together, text):
    assert together.broken.get(cell(text), []) == []


@pytest.mark.costly
@pytest.mark.parametrize("text", ALONE)
def test_a_fault_of_the_driver_or_its_disk_loses_nothing(tmp_path, text):
    if "horovod" in text and not HAS_HOROVOD:
        pytest.skip("Horovod is not built here")
    if cell(text).fault in faults.NEED_MOUNTS and not faults.can_mount():
        pytest.skip("only root may mount")
    assert faults.plant([cell(text)], tmp_path / "trial").broken == {}
