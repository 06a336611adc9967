"""A comparison that is interrupted or has no room: what was measured is on disk.

Killed drivers: ``test_fault_matrix``."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from measurement.records.results import ResultsFolder
from reports import conclude
from tests.conftest import REPOSITORY, wait_until, write_plan
from tests.kit.comparisons import compare
from tests.kit.faults import AT_EVERY_ROUND, can_mount, mounted
from tests.kit.results_factory import make_plan, write_results

pytestmark = pytest.mark.usefixtures("no_processes_left")


def test_steps_that_are_newer_than_their_record_cost_nothing(tmp_path):
    """A driver that was killed between its two files, and one that still writes."""
    folder = write_results(tmp_path, plan=make_plan(["horovod-mpi"], launches=2))
    record = next(record for record in folder.records() if record.arm == "ddp-gloo")
    blocks = record.blocks
    folder.write_record(record.model_copy(update={"blocks": blocks[:-1], "complete": False}))
    kept = next(one for one in folder.records() if one.arm == "ddp-gloo")
    assert set(folder.steps(kept)["turn"]) == {block.turn for block in blocks[:-1]}
    assert conclude(folder).arms


def test_steps_are_never_read_with_the_record_of_an_earlier_attempt(tmp_path, monkeypatch):
    folder = write_results(tmp_path, plan=make_plan(["horovod-mpi"], launches=1))
    record = folder.records()[0]
    again = record.model_copy(update={"started_at": "2099-01-01T00:00:00+00:00"})
    monkeypatch.setattr(ResultsFolder, "write_record", lambda self, record: None)  # killed before
    folder.write_launch(again)
    assert record.arm not in {one.arm for one in folder.records()}


@pytest.mark.costly
def test_the_epochs_of_an_interrupted_training_are_kept(tmp_path):
    out, training = tmp_path / "out", {"epochs": 500, "target_accuracy": 0.999}
    plan = write_plan(
        tmp_path, arms=["ddp", "naive"], training=training, measurement={"local_every": 0}
    )

    def epochs():
        return {record.arm: len(record.epochs) for record in ResultsFolder(out).records()}

    command = [sys.executable, "-c", AT_EVERY_ROUND, "compare", str(plan), "-o", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        try:
            wait_until(lambda: min(epochs().values(), default=0) >= 2, seconds=120, every_s=0.3)
            seen = epochs()
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 143, told
    kept = epochs()
    assert all(kept[arm] >= count for arm, count in seen.items())
    assert not any(record.complete for record in ResultsFolder(out).records())


def test_a_disk_that_is_almost_full_is_told_before_anything_is_measured(tmp_path):
    if not can_mount():
        pytest.skip("a file system can only be mounted by root")
    with mounted("-t", "tmpfs", "-o", "size=8m", "tmpfs", tmp_path):
        ran = compare(tmp_path, code=2)
        assert "make room, and go on with the same command" in ran.done.stderr
        assert not list(ran.folder.root.glob("launch-*"))
