"""Surroundings that few think of: a user without a name and home, a locale of ASCII, a long TMPDIR."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from measurement.records.results import ResultsFolder
from tests.conftest import REPOSITORY, ended_well, needs_horovod, write_plan
from tests.kit.dataset_files import write_mnist

pytestmark = pytest.mark.usefixtures("no_processes_left")
NAMELESS = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
LEFT_OUT = ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME")
ASCII = {"LC_ALL": "C"}
"""As in a container without a locale, where Python takes UTF-8 for files, pipes and terminals."""
ARMS = {
    "ddp": {"backend": "ddp", "launcher": "torchrun"},
    "horovod-mpi": {"backend": "horovod", "transport": "mpi", "launcher": "horovodrun"},
}


@needs_horovod
@pytest.mark.costly
def test_a_comparison_without_a_name_a_home_and_a_locale(tmp_path):
    refused = subprocess.run(
        [*NAMELESS, "true"], capture_output=True, text=True, check=False
    ).stderr
    if refused:
        pytest.skip(f"no user namespaces here: {refused}")
    write_mnist(tmp_path / "données")
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    plan = write_plan(
        tmp_path,
        world_size=1,
        arms=ARMS,
        workload="mnist",
        workload_options={"data_dir": str(tmp_path / "données"), "loader_workers": 1},
        environment={"NOTE": "übung – 数据"},
        local_batch_size=4,
        measurement={"rounds": 1},
    )
    out = tmp_path / "out"
    kept = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    done = subprocess.run(
        [*NAMELESS, sys.executable, "-m", "runners.cli", "compare", plan, "-o", out],
        env={**kept, **ASCII, "TMPDIR": str(folder)},
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        check=False,
        cwd=REPOSITORY,
    )
    ended_well(done)
    results = ResultsFolder(out)
    assert {record.arm: record.status for record in results.records()} == dict.fromkeys(ARMS, "ok")
    assert len({record.parity.samples_digest for record in results.records()}) == 1, (
        "the same samples of the files"
    )
    assert "übung – 数据".encode() in (out / "plan.yaml").read_bytes()


def test_a_current_folder_that_is_gone(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"import os, sys; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); os.execv(sys.executable, sys.argv[1:])"
    command = ("-m", "runners.cli", "doctor")
    done = subprocess.run(
        [sys.executable, "-c", script, sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        "ringside: the current folder cannot be read: No such file or directory; cd to one that exists\n"
    )
