"""The timer, the files and the records, without processes."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch

from measurement.errors import RecordError
from measurement.files import write_whole
from measurement.fingerprint import allowed_environment, fingerprint
from measurement.plan_file import check_plan
from measurement.record import PHASES, SCHEMA_VERSION, STEP_COLUMNS, LaunchRecord
from measurement.results import ResultsFolder, steps_table
from measurement.step_timer import StepTimer
from runners.arm_launch import block_rows
from runners.job import BlockReport
from tests.conftest import TINY


def test_phases_sum_to_the_steps_and_repeated_phases_add_up():
    timer = StepTimer(torch.device("cpu"))
    timer.start()
    began = time.perf_counter()
    for _ in range(3):
        for phase in (0, 1, 2, 0, 1, 2, 3):
            time.sleep(0.001)
            timer.mark(phase)
        timer.end_step()
    total = time.perf_counter() - began
    times = timer.read()
    assert times.shape == (3, len(PHASES))
    assert (times[:, :3] >= 0.002).all()
    assert (times[:, 3] >= 0.001).all()
    assert times.sum() == pytest.approx(total, abs=0.005)


def test_an_empty_block_has_no_steps():
    timer = StepTimer(torch.device("cpu"))
    timer.start()
    assert timer.read().shape == (0, len(PHASES))


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "a" / "file.json"
    write_whole(path, "one")
    assert path.read_text() == "one"
    with pytest.raises(TypeError):
        write_whole(path, 3)  # type: ignore[arg-type]
    assert path.read_text() == "one"
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def record(**changes):
    fields = {"comparison_id": "c", "plan_digest": "d", "launch": 0, "arm": "ddp", "role": "baseline", "backend": "ddp"}
    more = {"transport": "gloo", "launcher": "torchrun", "workload": "digits", "world_size": 1, "status": "ok"}
    return LaunchRecord(**{**fields, **more, **changes})


def test_a_record_and_its_steps_come_back(tmp_path):
    folder = ResultsFolder(tmp_path)
    report = BlockReport(rank=0, untimed_s=0.1, samples=[4, 4], phases_s=[[0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4]])
    block = {"turn": 7, "round": 2, "block": 1, "kind": "sync", "steps": 2, "started_s": 0, "wall_s": 1, "untimed_s": 0.1}
    made = record(blocks=[block])
    folder.write_launch(made, steps_table(block_rows(made.blocks[0], report)))
    assert folder.records() == [made]
    steps = folder.steps(made)
    assert list(steps) == list(STEP_COLUMNS)
    assert np.allclose(steps["step_s"], [1.0, 10.0])
    assert steps["turn"].tolist() == [7, 7]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "cannot be read"),
        ("[]", "not an object"),
        (json.dumps({"schema_version": SCHEMA_VERSION + 1}), "use the one that wrote it"),
        (json.dumps({}), "schema_version None"),
        (json.dumps({"schema_version": 1}), "is not a launch record"),
    ],
)
def test_a_damaged_record_is_an_error_not_a_hole(tmp_path, content, message):
    path = tmp_path / "launch-000" / "ddp" / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(RecordError, match=message):
        ResultsFolder(tmp_path).records()


def test_a_manifest_that_does_not_fit(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"schema_version": 1, "nonsense": 1}))
    with pytest.raises(RecordError, match="is not a manifest"):
        ResultsFolder(tmp_path).read_manifest()


def test_a_folder_without_a_plan(tmp_path):
    with pytest.raises(RecordError, match=r"holds no plan\.yaml"):
        ResultsFolder(tmp_path).read_plan()
    ResultsFolder(tmp_path).write_plan(check_plan(TINY, source="test"))
    assert ResultsFolder(tmp_path).read_plan() == check_plan(TINY, source="test")


def test_the_environment_is_allow_listed():
    given = {"OMP_NUM_THREADS": "1", "HOME": "/root", "HOROVOD_SECRET_KEY": "x", "HOROVOD_RANK": "1", "HOROVOD_CYCLE_TIME": "2"}
    assert allowed_environment(given) == {"HOROVOD_CYCLE_TIME": "2", "OMP_NUM_THREADS": "1"}


def test_the_fingerprint_knows_this_machine():
    found = fingerprint()
    assert found["torch"] == torch.__version__.partition("+")[0]
    assert found["cores"] >= found["usable_cores"] >= 1
