"""What nobody means, and what somebody may mean badly: one line with a remedy, within bounds of time and memory."""

from __future__ import annotations

import gzip
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from measurement.errors import HostfileError, PlanError, RecordError, RingsideError
from measurement.files import lock_folder, write_whole
from measurement.plan_file import check_plan, parse_yaml, read_content
from measurement.results import ResultsFolder
from reports import conclude
from runners.hosts.hostfile import parse_hostfile, read_hostfile
from runners.rank import checkpoint
from tests.conftest import REPOSITORY, TINY, ringside_here, write_plan
from tests.unit.results_factory import make_plan, write_results
from workloads.idx import read_idx

MOST_CHARACTERS = 1000
"""Of a message."""

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def refusal(error, act):
    with pytest.raises(error) as refused:
        act()
    message = str(refused.value)
    assert "\n" not in message
    assert len(message) < MOST_CHARACTERS
    return message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: 2024-13-45", "month must be in 1..12"),
        (f"seed: {'1' * 5000}", "is not valid YAML: Exceeds the limit"),
        (f"arms: {'[' * 3000}", "is nested too deeply"),
        (BOMB, "it has more than 100,000 values, its aliases written out"),
        ("a: &a {b: *a}", "a value contains itself by an alias"),
        ("name: !!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("name: a\0b", "is not valid YAML"),
    ],
)
def test_yaml_that_is_no_plan(tmp_path, text, message):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    assert message in refusal(PlanError, lambda: read_content(path))


def test_files_without_end_are_not_read_to_their_end():
    endless = Path("/dev/zero")
    assert "it has more than 4 MiB" in refusal(PlanError, lambda: read_content(endless))
    assert "it has more than 4 MiB" in refusal(HostfileError, lambda: read_hostfile(endless))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a" * 300}, "at most 100 of them"),
        ({"arms": {"a" * 300: {"backend": "ddp"}}, "baseline": "a" * 300}, "at most 100 of them"),
        ({"world_size": 10**6}, "world_size = 1000000: Input should be less than or equal to 65536"),
        ({"world_size": 5000}, "world_size 5000 is more than 1024 ranks on one machine; name hosts, or use fewer"),
        ({"environment": {"A=B": "1"}}, "'A=B' is no environment variable"),
        ({"environment": {"A": "x\0y"}}, "'A' is no environment variable"),
        ({"measurement": {"seconds_per_launch": float("inf")}}, "seconds_per_launch = inf: Input should be a finite number"),
        ({"measurement": {"noise_threshold": float("nan")}}, "noise_threshold = nan"),
        ({"workload": ["x" * 10**6]}, "..."),
        ({"seed": 10**5000}, "seed = a number of thousands of digits: Input should be less than 4294967296"),
        ({"baseline": "x" * 10**6}, "unknown baseline arm 'xxx"),
    ],
)
def test_values_that_are_no_plans(changes, message):
    assert message in refusal(PlanError, lambda: check_plan({**TINY, **changes}, source="test"))


def said(act):
    """Why it was refused; empty if it was not. Any other error is the test's."""
    try:
        act()
    except RingsideError as error:
        return str(error)
    return ""


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4))


@settings(max_examples=300, deadline=None)
@given(field=st.sampled_from(sorted([*TINY, "hosts", "points", "training", "speed", "environment", "reports"])), value=VALUES)
def test_any_value_is_a_plans_or_refused(field, value):
    message = said(lambda: check_plan({**TINY, field: value}, source="test"))
    assert len(message) < 20 * MOST_CHARACTERS


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_is_yaml_or_refused(text):
    assert "\n" not in said(lambda: parse_yaml(text, source="test"))


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_hostfile_or_refused(text):
    assert len(said(lambda: parse_hostfile(text, source="test"))) < 2 * MOST_CHARACTERS


@pytest.mark.parametrize("content", [b"[" * 100_000, b"{", b"\xff\xfe", b"[]", b"", b'{"schema_version": 4, "launch": 1e999}'])
def test_a_damaged_record_is_told_in_one_line(tmp_path, content):
    folder = write_results(tmp_path, plan=make_plan(["horovod-mpi"], launches=1))
    path = folder.launch_folder(0, "ddp-gloo") / "record.json"
    path.write_bytes(content)
    assert f"'{path}'" in refusal(RecordError, lambda: conclude(folder))


def test_steps_that_are_missing_are_never_a_hole(tmp_path):
    folder = write_results(tmp_path, plan=make_plan(["horovod-mpi"], launches=1))
    path = folder.launch_folder(0, "ddp-gloo") / "steps.parquet"
    path.unlink()
    message = refusal(RecordError, lambda: conclude(folder))
    assert message.startswith(f"'{path}' is missing, and the record beside it tells of ")


def test_a_checkpoint_of_nothing_is_told(tmp_path):
    torch.save({"format": checkpoint.FORMAT}, tmp_path / "kept.pt")
    assert "is damaged" in refusal(PlanError, lambda: checkpoint.read(tmp_path / "kept.pt", trained={}))


def test_what_a_compressed_file_holds_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("workloads.idx.MOST_BYTES", 1 << 20)
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(bytes(1 << 24)))
    assert "holds more than 1 MiB, decompressed" in refusal(PlanError, lambda: read_idx(path, dimensions=3))


@pytest.mark.parametrize(("mask", "before", "after"), [(0o022, None, 0o644), (0o077, None, 0o600), (0o022, 0o600, 0o600)])
def test_files_have_the_permissions_that_their_user_wants(tmp_path, mask, before, after):
    path = tmp_path / "file"
    if before is not None:
        path.touch()
        path.chmod(before)
    usual = os.umask(mask)
    try:
        write_whole(path, "text")
    finally:
        os.umask(usual)
    assert stat.S_IMODE(path.stat().st_mode) == after


HOLDS = """
import sys, time
from pathlib import Path
from measurement.files import lock_folder
held = lock_folder(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(600)
"""


def test_two_comparisons_do_not_write_into_one_folder(tmp_path):
    plan, out = write_plan(tmp_path), tmp_path / "out"
    out.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLDS, out], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as other:
        try:
            assert other.stdout.readline() == "locked\n"
            done = ringside_here("compare", plan, "-o", out)
            assert done.returncode == 2
            assert f"'{out}' is being written by process {other.pid} on " in done.stderr
            assert "wait until it is done, or give another folder with -o" in done.stderr
            assert not (out / "plan.yaml").exists()
        finally:
            other.kill()
    lock_folder(out).close()


def test_a_plan_in_a_results_folder_is_read_as_carefully(tmp_path):
    (tmp_path / "plan.yaml").write_text(BOMB)
    assert "more than 100,000 values" in refusal(RingsideError, lambda: ResultsFolder(tmp_path).read_plan())
    (tmp_path / "plan.yaml").write_bytes(b"\xff")
    assert "cannot be read" in refusal(RingsideError, lambda: ResultsFolder(tmp_path).read_plan())
