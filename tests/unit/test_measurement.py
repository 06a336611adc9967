"""The timer, the files and the records, without processes; and what an environment lacks to work:
who runs, and where temporary files go."""

from __future__ import annotations

import itertools
import json
import pwd
import tempfile
import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from measurement.environment import (
    MAX_TMPDIR,
    NO_HOME,
    forwarded_by_name,
    local_environment,
    own_identity,
    temporary_folder,
)
from measurement.errors import PlanError, RecordError
from measurement.files import write_whole
from measurement.plans.plan_file import check_plan, read_content
from measurement.records import results
from measurement.records.block import BlockRecord, RankSteps
from measurement.records.results import ResultsFolder
from measurement.records.step_tables import STEP_COLUMNS
from measurement.step_timer import StepTimer
from tests.kit.changed import changed
from tests.kit.plans import tiny
from tests.kit.results_factory import make_record


def test_each_mark_takes_what_has_passed_since_the_one_before(monkeypatch):
    """On a clock of known readings: each span is twice the one before, so that no two sums are
    alike."""
    readings = itertools.accumulate(2**n for n in itertools.count())
    monkeypatch.setattr(time, "perf_counter_ns", readings.__next__)
    timer = StepTimer(torch.device("cpu"))
    timer.start()
    for phases in ((0, 1, 2, 0, 1, 2, 3), (0, 1, 2, 3)):
        for phase in phases:
            timer.mark(phase)
        timer.end_step()
    assert np.allclose(
        timer.read() * 1e9, [[2 + 16, 4 + 32, 8 + 64, 128, 0], [256, 512, 1024, 2048, 0]]
    )


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "a" / "file.json"
    write_whole(path, "one")
    assert path.read_text() == "one"
    with pytest.raises(TypeError):
        write_whole(path, 3)  # type: ignore[arg-type]
    assert path.read_text() == "one"
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def test_a_record_and_its_steps_come_back(tmp_path):
    folder = ResultsFolder(tmp_path)
    phases_s = [[0.1, 0.2, 0.3, 0.4, 0.5], [1, 2, 3, 4, 5]]
    rows = [
        RankSteps(rank=rank, untimed_s=0.1 * rank, samples=[4, 4], phases_s=phases_s)
        for rank in (0, 1)
    ]
    place = BlockRecord(turn=7, round=2, block=1, kind="sync", steps=2)
    block = BlockRecord.joined(place, rows, started_s=3.0, wall_s=1.0)
    assert (block.untimed_s, block.started_s) == (0.1, 3.0)
    made = make_record(blocks=[block])
    folder.write_launch(made)
    assert folder.records() == [changed(made, blocks=[changed(block, ranks=[])])]
    steps = folder.steps(made)
    assert list(steps) == list(STEP_COLUMNS)
    assert np.allclose(steps["step_s"], [1.5, 15.0, 1.5, 15.0])
    assert (steps["rank"].tolist(), set(steps["turn"])) == ([0, 0, 1, 1], {7})


def test_a_record_of_an_older_version_is_brought_up_to_date(tmp_path, monkeypatch):
    """Version 2 is made up: it calls the launcher of version 1 by another name."""
    folder = ResultsFolder(tmp_path)
    folder.write_launch(make_record())
    path = folder.launch_folder(0, "ddp") / "record.json"
    path.write_text(path.read_text().replace('"launcher"', '"started_by"'))
    with pytest.raises(RecordError, match="values do not fit"):
        folder.records()
    monkeypatch.setattr(results, "SCHEMA_VERSION", 2)
    monkeypatch.setitem(
        results.MIGRATIONS, 1, lambda old: {"launcher": old.pop("started_by"), **old}
    )
    (record,) = folder.records()
    assert (record.schema_version, record.launcher) == (2, make_record().launcher)


@pytest.mark.parametrize("version", [None, 3])
def test_a_version_that_this_ringside_does_not_read_is_refused(tmp_path, version):
    (tmp_path / "manifest.json").write_text(json.dumps({"schema_version": version}))
    message = f"has schema_version {version}; this Ringside reads .*: use the one that wrote it"
    with pytest.raises(RecordError, match=message):
        ResultsFolder(tmp_path).read_manifest()


def test_what_this_ringside_no_longer_has_is_read_over(tmp_path):
    """Stored plans and records hold every key of their day; one in a plan that somebody writes is
    refused."""
    folder, plan = ResultsFolder(tmp_path), tiny()
    folder.write_plan(plan)
    kept = make_record()
    folder.write_launch(kept)
    folder.plan_path.write_text(
        folder.plan_path.read_text().replace("measurement:\n", "gone: 1\nmeasurement:\n  gone: 2\n")
    )
    path = folder.launch_folder(0, "ddp") / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "gone": 3}))
    assert (folder.read_plan(), folder.records()) == (plan, [kept])
    with pytest.raises(PlanError, match="unknown option 'gone'"):
        check_plan(read_content(folder.plan_path), source="test")


def test_secrets_are_not_handed_on():
    given = {
        **dict.fromkeys(("HOME", "LC_ALL", "HF_HOME", "TOKENIZERS_PARALLELISM"), "kept"),
        **dict.fromkeys(("MYLAB_DATA", "OTHER"), "not ours"),
        **dict.fromkeys(("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"), "secret"),
        **dict.fromkeys(("OMP_PASSWORD", "db_password", "MYLAB_API_KEY"), "secret"),
    }
    assert set(local_environment(given).values()) == {"kept"}
    assert forwarded_by_name(given, ["MYLAB_*", "NOT_SET"]) == {"MYLAB_DATA": "not ours"}


@pytest.fixture
def nameless(monkeypatch):
    """A user whom the system does not know."""
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError("uid not found")))
    monkeypatch.setattr("os.getuid", lambda: 12345)


def test_who_runs_is_said_where_neither_variables_nor_the_system_say_it(nameless):
    assert own_identity({}) == {"HOME": NO_HOME, "USER": "12345", "LOGNAME": "12345"}
    assert own_identity({"HOME": "/home/me", "USER": ""}) == {"USER": "12345", "LOGNAME": "12345"}
    assert own_identity({"HOME": "/home/me", "USER": "me", "LOGNAME": "me"}) == {}


@pytest.fixture
def temporary(monkeypatch):
    """Python asks again where temporary files go."""

    def ask(given):
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setenv("TMPDIR", str(given))
        return temporary_folder({"TMPDIR": str(given)})

    return ask


def test_temporary_files_go_where_they_can(tmp_path, temporary):
    with tempfile.TemporaryDirectory(prefix="with blanks ") as short:
        assert temporary(short) == {}
    long = tmp_path / ("x" * MAX_TMPDIR)
    long.mkdir()
    assert temporary(long) == {"TMPDIR": "/tmp"}
    assert temporary(tmp_path / "nowhere") != {}
