"""One cell for each fault of the matrix, but for a launcher that never starts ranks, whose time-out is long.

A killed driver and a full disk are in ``test_nothing_is_lost``. All cells: ``python benchmarks/fault_matrix.py``.
"""

from __future__ import annotations

import pytest

from tests.conftest import HAS_HOROVOD
from tests.reliability import faults
from tests.reliability.faults import Cell

pytestmark = pytest.mark.distributed

TOGETHER = [
    "kill-rank.waiting.horovod-gloo",
    "kill-launcher.block.horovod-mpi",
    "stop-rank.block.ddp-gloo",
    "raise.finish.ddp-gloo",
    "lock.block.ddp-gloo",
    "out-of-memory.block.ddp-gloo",
    "flood.start.ddp-gloo",
    "nan.gates.ddp-gloo",
    "cut-store.block.ddp-gloo",
    "exits-at-once.start.ddp-mpi",
]
"""Faults of arms, in one comparison."""
ALONE = ["stop-driver.block.ddp-gloo", "read-only.finish.ddp-gloo"]


def cell(text):
    fault, stage, kind = text.split(".")
    return Cell(fault=fault, stage=stage, kind=kind)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    cells = [cell(text) for text in TOGETHER if HAS_HOROVOD or "horovod" not in text]
    return faults.plant(cells, tmp_path_factory.mktemp("together"))


@pytest.mark.parametrize("text", TOGETHER)
def test_a_fault_of_an_arm_is_named_and_the_others_finish(together, text):
    if cell(text) not in together.cells:
        pytest.skip("Horovod is not built here")
    assert together.broken.get(cell(text), []) == []


@pytest.mark.parametrize("text", ALONE)
def test_a_fault_of_the_driver_or_its_disk_loses_nothing(tmp_path, text):
    if cell(text).fault in faults.NEED_MOUNTS and not faults.can_mount():
        pytest.skip("only root may mount")
    assert faults.plant([cell(text)], tmp_path / "trial").broken == {}


def test_every_cell_is_drawn_once_and_each_fault_first():
    cells = faults.feasible()
    drawn = faults.draw(cells, number=None, seed=3)
    assert len(set(cells)) == len(cells) == len(drawn) and set(drawn) == set(cells)
    assert {one.fault for one in drawn[: len(faults.FAULTS)]} == set(faults.FAULTS)
    assert drawn == faults.draw(cells, number=None, seed=3)
    assert sorted(str(one) for group in faults.trials(drawn, together=3) for one in group) == sorted(map(str, cells))
