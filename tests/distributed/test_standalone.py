"""``python -m runners.hvd`` and ``-m runners.ddp`` by the users' own commands: a throughput table
and a record."""

from __future__ import annotations

import socket
import sys

import pytest
import typer

from measurement.addresses import free_port
from measurement.agent.ringside_agent.machine import usable_cores
from measurement.environment import KEEP_FREED_MEMORY
from measurement.host import core_count
from measurement.records.results import ResultsFolder
from reports.schema import Comparison
from runners.standalone.run import command_line
from tests.conftest import ended_well, needs_horovod, ringside_here, run_here
from tests.kit.commands import HOROVODRUN_HVD, MPIRUN, NO_LOCAL, SHORT, TORCHRUN_DDP, run, warm


@pytest.fixture(scope="module")
def run_once(tmp_path_factory):
    """Runs a user's command if it has not run yet; returns what it printed and its folder."""
    done = {}

    def run_it(command, runner):
        key = (*command, runner)
        if key not in done:
            folder = tmp_path_factory.mktemp("run") / "run"
            asked = ["-m", *f"runners.{runner}".split(), *SHORT, "--set", "threads=1"]
            done[key] = run(*command, *asked, "-o", folder), folder
        return done[key]

    return run_it


def costly(*values, marks=()):
    """A case."""
    return pytest.param(*values, marks=[pytest.mark.costly, *marks])


@pytest.mark.parametrize(
    ("command", "runner", "expected"),
    [
        (*TORCHRUN_DDP, ("torchrun", "gloo")),
        pytest.param(*HOROVODRUN_HVD, ("horovodrun", "gloo"), marks=needs_horovod),
        costly(MPIRUN, "ddp --transport mpi", ("openmpi", "mpi")),
        costly(MPIRUN, "hvd --transport gloo", ("openmpi", "gloo"), marks=[needs_horovod]),
        costly(["python"], "ddp", ("none", "gloo")),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else None,
)
def test_the_users_own_command(run_once, command, runner, expected):
    done, folder = run_once(command, runner)
    ended_well(done)
    (record,) = ResultsFolder(folder).records()
    ranks = 1 if command == ["python"] else 2
    assert f"{ranks} rank" in done.stdout
    assert "images/s" in done.stdout
    assert "\x1b" not in done.stdout, "mpirun gives ranks a terminal"
    assert (record.launcher, record.transport) == expected
    assert record.world_size == ranks == len(record.ranks)
    assert record.parity.passed
    assert record.flops.error is None and record.flops.by_operation
    assert [block.kind for block in record.blocks] == ["sync"] * 4 + ["local"]
    assert len(ResultsFolder(folder).steps(record)) == ranks * 5 * 3


@needs_horovod
def test_two_runs_that_a_user_started_make_a_report(run_once, tmp_path):
    ddp, hvd = (run_once(*command)[1] for command in (TORCHRUN_DDP, HOROVODRUN_HVD))
    ended_well(ringside_here("report", ddp, hvd, "-o", tmp_path / "report"))
    found = Comparison.model_validate_json((tmp_path / "report" / "comparison.json").read_text())
    assert {arm.name: (arm.launcher, arm.status) for arm in found.arms} == {
        "ddp": ("torchrun", "ok"),
        "horovod": ("horovodrun", "ok"),
    }
    result = found.result("horovod")
    assert (result.verdict, result.caution) == ("undecided", "one run")


@pytest.mark.costly
def test_one_rank_has_the_same_share_of_the_host_under_every_launcher(tmp_path):
    """torchrun sets OMP_NUM_THREADS=1, and mpirun binds a rank to one core."""
    asked = ["-m", "runners.ddp", *SHORT, *NO_LOCAL, "--set", "freed_memory=keep"]
    commands = {
        "torchrun": "torchrun --standalone --nproc-per-node 1",
        "mpirun": "mpirun -np 1 python",
        "none": "python",
    }
    shares = {}
    for name, command in commands.items():
        ended_well(run(*command.split(), *asked, "-o", tmp_path / name))
        (record,) = ResultsFolder(tmp_path / name).records()
        (rank,) = record.ranks
        keeps_memory = KEEP_FREED_MEMORY.items() <= rank.environment.items()
        shares[name] = (rank.threads, rank.affinity, keeps_memory)
    assert shares == dict.fromkeys(commands, (core_count(), usable_cores(), True))


def as_rank(rank, port):
    """One of two ranks, as somebody starts it by hand who exports the variables."""
    variables = f"RANK={rank} LOCAL_RANK={rank} WORLD_SIZE=2"
    address = f"MASTER_ADDR=127.0.0.1 MASTER_PORT={port}"
    command = ["env", *variables.split(), *address.split(), *warm("-m", "runners.ddp")]
    return run(*command, *SHORT, "--timeout", "2")


def test_ranks_that_do_not_come_are_named_at_the_timeout():
    done = as_rank(0, free_port())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "ringside: of 2 ranks these did not come within 2 s: 1; start every host's ranks"
    )
    with socket.socket() as held:  # so that nobody else listens there meanwhile
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        done = as_rank(1, port)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        f"did not reach rank 0 at 127.0.0.1:{port} within 2 s: start all ranks with the same address"
        in done.stderr
    )
    assert len(done.stderr.splitlines()) == 1


def test_an_address_in_use_is_refused():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = as_rank(0, port)
    assert done.returncode == 2
    assert f"rank 0 has no store at 127.0.0.1:{port}: " in done.stderr
    assert "; if the port is in use, give another one to all ranks" in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "command"),
    [
        ("K_MPI_JOB_ROLE", "launcher", "mpirun python -m runners.hvd"),
        ("PET_NNODES", "2", "torchrun -m runners.hvd"),
    ],
)
def test_plain_python_in_a_pod_is_told_of_the_launcher(monkeypatch, variable, value, command):
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "argv", ["hvd"])
    done = run_here(lambda: typer.run(command_line("horovod")))
    assert (done.returncode, f"start the ranks with: {command}\n" in done.stderr) == (2, True)


def test_a_run_is_never_overwritten(run_once):
    _, folder = run_once(*TORCHRUN_DDP)
    before = (folder / "plan.yaml").read_bytes()
    done = run(*warm("-m", "runners.ddp"), *SHORT, "-o", folder)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"ringside: '{folder}' holds a run already; give another folder with -o, one for each run, or remove it\n"
    )
    assert (folder / "plan.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--workload digts", "did you mean 'digits'?"),
        ("--workload-option learning_rate", "not of the form key=value"),
        ("--option bucket_cap=1", "did you mean 'bucket_cap_mb'?"),
        ("--set hosts=a:1", "--set 'hosts' is not for a standalone run; it sets seed, threads, "),
        (
            "--set training.warmup_epochs=1",
            "--set training.warmup_epochs is for training to the end; say --epochs N",
        ),
        ("--set device=tpu", "device = 'tpu': Input should be 'auto', 'cpu' or 'cuda'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(monkeypatch, arguments, message):
    """A process ends so, too: ``test_a_run_is_never_overwritten``."""
    monkeypatch.setattr("sys.argv", ["runners.ddp", *SHORT, *arguments.split()])
    done = run_here(lambda: typer.run(command_line("ddp")))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("ringside: ")
    assert message in line
