"""Surroundings that few think of: a user without a name and home, a locale of ASCII, a long TMPDIR."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from measurement.records.results import ResultsFolder
from tests.conftest import REPOSITORY, needs_horovod, write_plan
from tests.kit.dataset_files import write_mnist

pytestmark = pytest.mark.usefixtures("no_processes_left")
NAMELESS = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
ASCII = {"LC_ALL": "C"}
"""As in a container without a locale, where Python takes UTF-8 for files, pipes and terminals."""
ARMS = {
    "ddp": {"backend": "ddp", "launcher": "torchrun"},
    "horovod-mpi": {"backend": "horovod", "transport": "mpi", "launcher": "horovodrun"},
}


def run(*argv, more=(), without=(), **how):
    """Run a command of ours with other variables; what it said on both outputs is text."""
    environment = {name: value for name, value in os.environ.items() if name not in without} | dict(
        more
    )
    return subprocess.run(
        argv,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        check=False,
        **how,
    )


def ringside(*words, before=(), **how):
    return run(*before, sys.executable, "-m", "runners.cli", *words, **how)


@pytest.fixture(scope="module")
def nameless():
    """The beginning of a command that runs as a user without a name, who reads and writes what we
    do."""
    done = run(
        *NAMELESS,
        sys.executable,
        "-c",
        "import os, pwd; print(os.getuid(), 12345 in [one.pw_uid for one in pwd.getpwall()])",
    )
    if done.stdout.strip() != "12345 False":
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    return NAMELESS


@needs_horovod
@pytest.mark.costly
def test_a_comparison_without_a_name_a_home_and_a_locale(tmp_path, nameless):
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
    who = ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME")
    more = {**ASCII, "TMPDIR": str(folder)}
    done = ringside(
        "compare",
        str(plan),
        "-o",
        str(tmp_path / "out"),
        before=nameless,
        more=more,
        without=who,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = ResultsFolder(tmp_path / "out")
    assert {record.arm: record.status for record in results.records()} == dict.fromkeys(ARMS, "ok")
    assert len({record.parity.samples_digest for record in results.records()}) == 1, (
        "the same samples of the files"
    )
    assert "DDP" in done.stdout
    written = {
        name: (results.root / name).read_bytes()
        for name in ("report.html", "report.md", "report.csv", "comparison.json")
    }
    assert "übung – 数据".encode() in (results.root / "plan.yaml").read_bytes()
    again = ringside("report", str(results.root), more={"LC_ALL": "C.UTF-8"}, cwd=REPOSITORY)
    assert again.returncode == 0, again.stderr
    assert {name: (results.root / name).read_bytes() for name in written} == written


def test_the_doctor_of_a_user_without_a_name(nameless, tmp_path):
    done = ringside(
        "doctor", before=nameless, without=("HOME", "USER", "LOGNAME"), more=ASCII, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "user id 12345 has no name here" in " ".join(done.stdout.split())


def test_a_current_folder_that_is_gone(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"import os, sys; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); os.execv(sys.executable, sys.argv[1:])"
    command = ("-m", "runners.cli", "doctor")
    done = run(
        sys.executable, "-c", script, sys.executable, *command, more={"PYTHONPATH": str(REPOSITORY)}
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        "ringside: the current folder cannot be read: No such file or directory; cd to one that exists\n"
    )
