"""A comparison that is interrupted, killed or has no room: what was measured is on disk, and the same command goes on with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from measurement.records.results import ResultsFolder
from reports import conclude
from tests.conftest import REPOSITORY, no_process_stays, ringside_here, started_processes, wait_until, write_plan
from tests.kit.results_factory import make_plan, write_results

pytestmark = pytest.mark.usefixtures("no_processes_left")

AT_EVERY_ROUND = "import runners.driver.launch as launch; launch.KEEP_EVERY_S = 0.0; from runners.cli import main; main()"
WITHOUT_A_LOOK = "import measurement.records.results as results; results.LEAST_ROOM_BYTES = 0; from runners.cli import main; main()"
LONG = {"rounds": 40, "control": False, "local_every": 0}


@contextmanager
def started(program, plan, folder):
    """A comparison that goes on for minutes, in a process of its own."""
    command = [sys.executable, "-c", program, "compare", str(plan), "-o", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        try:
            yield process
        finally:
            process.kill()


def two_arms(folder, **measurement):
    arms = {"ddp": {"backend": "ddp"}, "naive": {"backend": "naive"}}
    return write_plan(folder, arms=arms, measurement=LONG | measurement)


def measured(folder):
    """Blocks on disk, by arm."""
    return {record.arm: len(record.blocks) for record in ResultsFolder(folder).records()}


@pytest.mark.costly
def test_what_was_measured_is_on_disk_when_the_driver_is_killed(tmp_path):
    """And nothing of it lives: neither frozen ranks, whose supervisors see the driver go, nor a torchrun."""
    out, arms = tmp_path / "out", {"ddp": {"backend": "ddp", "launcher": "torchrun"}, "naive": {"backend": "naive"}}
    with no_process_stays(), started(AT_EVERY_ROUND, write_plan(tmp_path, arms=arms, measurement=LONG), out) as process:
        wait_until(lambda: min(measured(out).values(), default=0) >= 3, seconds=120, every_s=0.3)
        assert len(started_processes()) > 6
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    folder = ResultsFolder(out)
    for record in folder.records():
        assert (record.status, record.complete) == ("ok", False)
        assert folder.steps(record)["turn"].nunique() == len(record.blocks) >= 3
    assert ringside_here("report", out).returncode == 0
    done = ringside_here("compare", tmp_path / "plan.yaml", "-o", out)
    assert done.returncode == 0, done.stderr
    assert all(record.complete and len(record.blocks) == 40 for record in folder.records())


def test_an_interruption_keeps_what_was_measured_and_another_changes_nothing(tmp_path):
    out = tmp_path / "out"
    with started(AT_EVERY_ROUND, two_arms(tmp_path), out) as process:
        wait_until(lambda: min(measured(out).values(), default=0) >= 2, seconds=120, every_s=0.3)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 129, told
    assert f"ringside: interrupted; go on with: ringside compare {tmp_path / 'plan.yaml'} -o {out}" in told
    assert "Traceback" not in told
    assert set(measured(out)) == {"ddp", "naive"}
    for record in ResultsFolder(out).records():
        assert record.blocks and (record.status, record.complete) == ("ok", False)
    assert all((out / name).exists() for name in ("comparison.json", "report.html"))


def test_steps_that_are_newer_than_their_record_cost_nothing(tmp_path):
    """A driver that was killed between its two files, and one that still writes."""
    folder = write_results(tmp_path, plan=make_plan(["horovod-mpi"], launches=2))
    record = next(record for record in folder.records() if record.arm == "ddp-gloo")
    blocks = record.blocks
    folder.write_record(record.model_copy(update={"blocks": blocks[:-1], "complete": False}))
    (kept,) = [one for one in folder.records() if one.arm == record.arm and one.launch == record.launch]
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
def test_the_epochs_of_an_interrupted_training_are_kept_and_drawn_and_do_not_count(tmp_path):
    out, arms = tmp_path / "out", {"ddp": {"backend": "ddp"}, "naive": {"backend": "naive"}}
    measurement = {"control": False, "local_every": 0}
    plan = write_plan(tmp_path, arms=arms, training={"epochs": 500, "target_accuracy": 0.999}, measurement=measurement)

    def epochs():
        return {record.arm: len(record.epochs) for record in ResultsFolder(out).records()}

    with started(AT_EVERY_ROUND, plan, out) as process:
        wait_until(lambda: min(epochs().values(), default=0) >= 2, seconds=120, every_s=0.3)
        seen = epochs()
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 143, told
    kept = epochs()
    assert all(kept[arm] >= count for arm, count in seen.items())
    assert not any(record.complete for record in ResultsFolder(out).records())
    arms = json.loads((out / "comparison.json").read_text())["training"]["arms"]
    curves = {arm["name"]: [(len(curve["train_s"]), curve["finished"]) for curve in arm["by_seed"]] for arm in arms}
    assert curves == {arm: [(count, False)] for arm, count in kept.items()}
    assert all(arm["seeds"] == 0 for arm in arms)


@contextmanager
def small_disk(folder, size):
    """A file system of its own."""
    folder.mkdir()
    mounted = shutil.which("mount") and os.geteuid() == 0
    if not mounted or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=False).returncode:
        pytest.skip("a file system can only be mounted by root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_almost_full_is_told_before_anything_is_measured(tmp_path):
    with small_disk(tmp_path / "disk", "8m") as disk:
        done = ringside_here("compare", two_arms(tmp_path), "-o", disk / "out")
        assert done.returncode == 2
        assert "lies on a disk with " in done.stderr and "make room, and go on with the same command" in done.stderr
        assert not list((disk / "out").glob("launch-*"))


@pytest.mark.costly
def test_a_disk_that_is_full_is_one_line_and_ends_every_arm(tmp_path):
    with small_disk(tmp_path / "disk", "96k") as disk:
        with started(WITHOUT_A_LOOK, two_arms(tmp_path, rounds=40), disk / "out") as process:
            _, told = process.communicate(timeout=180)
        assert process.returncode == 2, told
        (line,) = [line for line in told.splitlines() if line.startswith("ringside: ")]
        assert "cannot be written: No space left on device; what was written before is whole" in line
        assert "Traceback" not in told
