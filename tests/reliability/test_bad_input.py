"""What nobody means, and what somebody may mean badly: one line with a remedy, within bounds of
time and memory."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from measurement.errors import HostfileError, PlanError, RecordError, RingsideError
from measurement.files import lock_folder, write_whole
from measurement.plans.plan_file import check_plan, read_content
from reports import conclude
from runners.hosts.host_lists import read_hostfile
from runners.launchers import known_rank_variables
from runners.launchers.base import read_world
from tests.conftest import REPOSITORY, TINY, ringside_here, write_plan
from tests.kit.results_factory import make_plan, write_results

MAX_CHARACTERS = 1000
"""Of a message."""


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def refusal(error, act):
    with pytest.raises(error) as refused:
        act()
    message = str(refused.value)
    assert "\n" not in message
    assert len(message) < MAX_CHARACTERS
    return message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"arms: {'[' * 3000}", "is not valid YAML: maximum recursion depth"),
        (BOMB, "it has more than 100,000 values, with aliases counted in full"),
        ('workload: "\\ud800"', "surrogates not allowed"),
        ('environment: {A: "x\\0"}', r"it holds the character \0"),
        ("name: !!python/object/apply:os.system [true]", "could not determine a constructor"),
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
        (
            {"world_size": 5000},
            "world_size 5000 is more than 1024 ranks on one machine; name hosts, or use fewer",
        ),
        ({"workload": ["x" * 10**6]}, "..."),
        (
            {"seed": 10**5000},
            "seed = a number of thousands of digits: Input should be less than 4294967296",
        ),
    ],
)
def test_values_that_are_no_plans(changes, message):
    assert message in refusal(PlanError, lambda: check_plan({**TINY, **changes}, source="test"))


def with_column(name, value):
    def damage(path):
        table = pd.read_parquet(path)
        table[name] = [value] * len(table)
        table.to_parquet(path, index=False)

    return damage


def overwrite_footer(path):
    content = path.read_bytes()
    end = int.from_bytes(content[-8:-4], "little") + 8
    path.write_bytes(content[:-end] + b"\x11" * (end - 8) + content[-8:])


DAMAGED = [
    ("record.json", partial(Path.write_bytes, data=b"[" * 100_000), ""),
    ("record.json", partial(Path.write_bytes, data=b"{"), ""),
    ("steps.parquet", Path.unlink, "is missing, and the record beside it has "),
    ("steps.parquet", overwrite_footer, "cannot be read: "),
    ("steps.parquet", with_column("data_wait_s", ""), "could not convert string to float"),
    (
        "steps.parquet",
        with_column("turn", 1000),
        "it has steps of 1 blocks that the record beside it does not have",
    ),
    ("steps.parquet", with_column("step_s", float("inf")), "it has impossible times or numbers"),
]


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    DAMAGED,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_file_of_a_launch_is_told_in_one_line(tmp_path, name, damage, message):
    folder = write_results(tmp_path, plan=make_plan(["horovod-mpi"], launches=1, rounds=2))
    path = folder.launch_folder(0, "ddp-gloo") / name
    damage(path)
    told = refusal(RecordError, lambda: conclude(folder))
    assert f"'{path}'" in told and message in told


@pytest.mark.parametrize("rank", ["9", "x"])
def test_variables_of_launchers_that_hold_anything(rank):
    variables = {"RANK": rank * 4000, "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    told = refusal(RingsideError, lambda: read_world(variables, known_rank_variables()))
    assert "the variables of torchrun do not fit together: " in told and rank * 3 in told


@pytest.mark.parametrize(
    ("mask", "before", "after"), [(0o022, None, 0o644), (0o077, None, 0o600), (0o022, 0o600, 0o600)]
)
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
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, out], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as other:
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
