"""What launchers show of the driver's environment: with Horovod's own, all of it stood in the command line of a shell."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import psutil
import pytest

from measurement.results import ResultsFolder
from runners.processes.run_processes import RUN_ID
from tests.conftest import REPOSITORY, needs_horovod, started_processes, write_plan

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("no_processes_left")]
SECRET = "hunter2-hunter2"
ARMS = {
    "ddp": {"backend": "ddp", "transport": "gloo", "launcher": "torchrun"},
    "horovod": {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"},
    "horovod-mpi": {"backend": "horovod", "transport": "mpi", "launcher": "mpirun"},
}


@needs_horovod
def test_no_process_shows_or_has_a_secret_of_the_drivers_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SITE_API_KEY", SECRET)
    monkeypatch.setenv("SITE_FOLDER", "/site/data")
    plan = write_plan(tmp_path, arms=ARMS, forward_environment=["SITE_*"], measurement={"control": False, "rounds": 1})
    command = [sys.executable, "-m", "runners.cli", "compare", str(plan), "-o", str(tmp_path / "out")]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seen, with_folder = set(), set()
    while process.poll() is None:
        for one in started_processes():
            with contextlib.suppress(psutil.Error):
                shown, held = " ".join(one.cmdline()), one.environ()
                if SECRET in shown or (RUN_ID in held and SECRET in held.values()):
                    seen.add(shown)
                if held.get("SITE_FOLDER") and "runners.rank.worker" in one.cmdline():
                    with_folder |= {arm for arm in ARMS if arm in one.cmdline()}
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert {record.status for record in ResultsFolder(tmp_path / "out").records()} == {"ok"}
    assert seen == set()
    assert with_folder == set(ARMS), "what the plan names, all ranks have"
    kept = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert kept == []
