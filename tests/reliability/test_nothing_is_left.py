"""Files that libraries leave where their processes end otherwise than they meant to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial

import psutil
import pytest

from runners.launchers.base import RUN_ID
from runners.processes import local
from runners.processes.local import SHARED_MEMORY, end_run
from tests.conftest import HAS_HOROVOD, started_processes, wait_until
from tests.kit.commands import environment, run, started, warm
from tests.kit.script_comparisons import write_script_plan

pytestmark = pytest.mark.usefixtures("no_processes_left")

WAITS = "from mpi4py import MPI; import time, pathlib, sys; pathlib.Path(sys.argv[1], str(MPI.COMM_WORLD.rank)).touch(); time.sleep(60)"


def both_written(files):
    """Whether each rank has written its file."""
    return sum(path.name.isdecimal() for path in files.glob("*")) == 2


def test_a_rank_that_raises_leaves_no_file(tmp_path):
    (tmp_path / "raises.py").write_text("raise ValueError('planted')")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    spawn = warm("-m", "runners.spawn")
    done = run(*spawn, "--nproc-per-node", "2", "-m", "raises", cwd=tmp_path, TMPDIR=str(temporary))
    assert done.returncode == 1
    assert "ValueError: planted" in done.stderr
    assert list(temporary.glob("pytorch-errorfile-*")) == []


def test_a_killed_mpirun_leaves_neither_shared_memory_nor_a_session(tmp_path_factory, monkeypatch):
    """Its ranks' run is ended as by a driver whose horovodrun was killed: mpirun is one of its
    processes."""
    mpirun = local.find_program("mpirun")
    if mpirun is None:
        pytest.skip("Open MPI is not installed here")
    tmp_path = tmp_path_factory.mktemp("s")  # short: it holds sockets
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(segments())
    variables = {"TMPDIR": str(tmp_path), RUN_ID: tmp_path.name, "OMPI_MCA_btl": "vader,self"}
    started = tmp_path / "started"
    started.mkdir()
    command = [mpirun, "--oversubscribe", "-np", "2", sys.executable, "-c", WAITS, str(started)]
    process = subprocess.Popen(command, env=environment() | variables, start_new_session=True)
    try:
        wait_until(lambda: len(list(started.iterdir())) == 2, seconds=60)
        assert list(tmp_path.glob("ompi.*/*"))
        assert len(set(segments()) - before) >= 2
        for one in [psutil.Process(process.pid), *started_processes()]:
            one.suspend()  # so that no rank sees another go
        assert process.pid in end_run(tmp_path.name)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    assert not list(tmp_path.glob("ompi.*"))
    assert not [path for path in set(segments()) - before if f".{os.getuid()}." in path.name]


WAITS_FOR_DATA = "import os, time; open(str(os.getpid()), 'w').close(); time.sleep(300)"
SPAWNS = """import multiprocessing, sys
if __name__ == "__main__":
    for _ in range(2):
        multiprocessing.get_context("spawn").Process(target=exec, args=(open("waits.py").read(),)).start()
"""
LAUNCHED = {
    "spawns": "python spawns.py",
    "in-a-file": "bash run.sh",
    "mpirun": "mpirun --oversubscribe -np 2 python waits.py",
    "horovodrun": "horovodrun --gloo -np 2 -H localhost:2 python waits.py",
}
"""Commands of two ranks, which take no step."""


@pytest.mark.costly
@pytest.mark.timeout(400)
def test_a_killed_driver_leaves_no_rank_of_a_script_that_has_taken_no_step(tmp_path):
    (tmp_path / "waits.py").write_text(WAITS_FOR_DATA)
    (tmp_path / "spawns.py").write_text(SPAWNS)
    (tmp_path / "run.sh").write_text("torchrun --nproc-per-node 2 waits.py\npython waits.py")
    has = {"mpirun": local.find_program("mpirun") is not None, "horovodrun": HAS_HOROVOD}
    arms = {name: command for name, command in LAUNCHED.items() if has.get(name, True)}
    waits = {"rehearsal": "never", "start_timeout_s": 400}
    plan = write_script_plan(tmp_path, arms, measurement=waits)
    with started("compare", plan, "-o", "out", cwd=tmp_path):
        for name in arms:
            files = tmp_path / f"out/launch-000/{name}/files-0{tmp_path}"
            wait_until(partial(both_written, files), seconds=300)


def segments():
    return [
        path for name in ("vader_segment.*", "sm_segment.*") for path in SHARED_MEMORY.glob(name)
    ]
