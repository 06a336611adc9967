"""``python -m runners.hvd`` and ``-m runners.ddp`` by the users' own commands: a throughput table and a record."""

from __future__ import annotations

import os
import subprocess

import pytest
import typer

from measurement.results import ResultsFolder
from runners.standalone.command import command_line
from tests.conftest import BIN, REPOSITORY, needs_horovod, run_here

pytestmark = pytest.mark.distributed
SHORT = ["--local-batch-size", "16", "--blocks", "2", "--block-steps", "3", "--warmup-steps", "1"]
MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def run(*command, timeout=200):
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    environment = {**os.environ, **MPI_AS_ROOT, "PATH": path}
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=timeout, cwd=REPOSITORY, env=environment, check=False
    )


HOROVODRUN = ["-np", "2", "-H", "localhost:2", "python"]
MPIRUN = ["mpirun", "-np", "2", "--oversubscribe", "python"]


@pytest.mark.parametrize(
    ("command", "runner", "expected"),
    [
        (["torchrun", "--standalone", "--nproc-per-node", "2"], "ddp", ("torchrun", "gloo")),
        (MPIRUN, "ddp", ("openmpi", "gloo")),
        pytest.param(["horovodrun", "--gloo", *HOROVODRUN], "hvd", ("horovodrun", "gloo"), marks=needs_horovod),
        pytest.param(["horovodrun", "--mpi", *HOROVODRUN], "hvd", ("openmpi", "mpi"), marks=needs_horovod),
        pytest.param(MPIRUN, "hvd", ("openmpi", "mpi"), marks=needs_horovod),
        (["python"], "ddp", ("none", "gloo")),
        pytest.param(["python"], "hvd", ("none", "gloo"), marks=needs_horovod),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else None,
)
def test_the_users_own_command(tmp_path, command, runner, expected):
    done = run(*command, "-m", f"runners.{runner}", *SHORT, "-o", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = ResultsFolder(tmp_path).records()
    ranks = 1 if command == ["python"] else 2
    assert f"{ranks} rank" in done.stdout
    assert "images/s" in done.stdout
    assert "leaked" not in done.stdout + done.stderr
    assert (record.launcher, record.transport) == expected
    assert record.world_size == ranks == len(record.ranks)
    assert record.parity.passed
    steps = ResultsFolder(tmp_path).steps(record)
    assert len(steps) == ranks * 2 * 3
    assert (steps["step_s"] > 0).all()


@pytest.mark.parametrize(("runner", "transport"), [("ddp", "mpi"), pytest.param("hvd", "gloo", marks=needs_horovod)])
def test_mpirun_with_the_less_usual_transport(tmp_path, runner, transport):
    done = run(*MPIRUN, "-m", f"runners.{runner}", *SHORT, "--transport", transport, "-o", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = ResultsFolder(tmp_path).records()
    assert (record.launcher, record.transport, record.world_size) == ("openmpi", transport, 2)
    assert record.parity.passed


@needs_horovod
def test_torchrun_cannot_start_horovod():
    done = run("torchrun", "--standalone", "--nproc-per-node", "2", "-m", "runners.hvd", *SHORT)
    assert done.returncode != 0
    assert "ringside: launcher 'torchrun' cannot start backend 'horovod' (no HOROVOD_* variables" in done.stderr
    assert "each rank would be a world of 1); use 'horovodrun' or 'mpirun'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "digts"], "did you mean 'digits'?"),
        (["--workload-option", "learning_rate"], "not of the form key=value"),
        (["--workload-option", "learning_rate=-1"], "learning_rate = -1"),
        (["--option", "bucket_cap=1"], "did you mean 'bucket_cap_mb'?"),
        (["--transport", "nccl"], "needs a GPU"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(monkeypatch, arguments, message):
    monkeypatch.setattr("sys.argv", ["runners.ddp", *SHORT, *arguments])
    done = run_here(lambda: typer.run(command_line("ddp")))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("ringside: ")
    assert message in line


def test_bad_input_ends_the_process_with_exit_code_2():
    done = run("python", "-m", "runners.ddp", *SHORT, "--device", "tpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ringside: --device 'tpu' is not known; use auto, cpu or cuda\n"
