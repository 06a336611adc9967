"""Runs without a driver whose rank 1 dies, raises or hangs, or whose user has enough: they end, and
what was measured is kept."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from measurement.addresses import free_port
from measurement.records.results import ResultsFolder
from tests.conftest import REPOSITORY, drawn, needs_horovod, ringside_here, wait_until
from tests.kit.commands import NO_LOCAL, environment, run
from tests.kit.comparisons import compare

pytestmark = pytest.mark.usefixtures("no_processes_left")
PLUGIN = Path(__file__).parent / "plugins" / "fails_later.py"
LAUNCHERS = {
    "torchrun": "torchrun --standalone --nproc-per-node 2 -m",
    "spawn": "python -m runners.spawn --nproc-per-node 2 -m",
    "mpirun": "mpirun -np 2 --oversubscribe python -m",
    "horovodrun": "horovodrun --gloo -np 2 -H localhost:2 python -m",
}
STEPS = ["--local-batch-size", "16", "--block-steps", "3", "--warmup-steps", "1", *NO_LOCAL]
ENDS_S = 150
CELLS = [
    ("torchrun", "FailingDDP", "killed"),
    pytest.param("horovodrun", "FailingHorovod", "killed", marks=needs_horovod),
    ("spawn", "FailingDDP", "raises"),
    ("spawn", "FailingDDP", "hangs"),
]


def start(launcher, backend, fault, folder):
    """A run with more blocks than there is time for; the ``backend``'s rank 1 fails after some, or
    says so in a file."""
    runner = "hvd" if launcher == "horovodrun" else "ddp"
    endless = (
        f"--transport gloo --blocks 100000 --timeout 6 --backend {PLUGIN}:{backend} -o {folder}"
    )
    command = [*f"{LAUNCHERS[launcher]} runners.{runner} {endless}".split(), *STEPS]
    own = environment() | {"TESTS_FOLDER": str(folder.parent), "TESTS_FAULT": fault}
    with (folder.parent / "said").open("w") as output:
        return subprocess.Popen(
            command, cwd=REPOSITORY, env=own, stdout=output, stderr=output, start_new_session=True
        )


def kept(folder):
    """The record, whose blocks and steps agree."""
    (record,) = ResultsFolder(folder).records()
    assert len(record.blocks) > 0 and record.complete == (record.status == "failed")
    assert ResultsFolder(folder).steps(record)["block"].nunique() == len(record.blocks)
    assert len(record.ranks) == 2
    return record


@pytest.mark.parametrize(("launcher", "backend", "fault"), drawn(CELLS, number=1))
def test_a_run_whose_peer_fails_ends_and_keeps_its_blocks(tmp_path, launcher, backend, fault):
    process = start(launcher, backend, fault, tmp_path / "run")
    try:
        assert process.wait(ENDS_S) != 0
    finally:
        process.kill()
    record, said = kept(tmp_path / "run"), (tmp_path / "said").read_text()
    assert record.status == "failed", said
    if fault == "raises":
        assert "rank 1 on " in said and "ValueError: no more steps from me" in said
    done = ringside_here("report", tmp_path / "run", "-o", tmp_path / "report")
    assert done.returncode == 1, done.stderr
    assert "failed" in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.costly
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_an_interrupted_run_ends_and_keeps_its_blocks(tmp_path, launcher):
    """Not under horovodrun (0.28.1), which may wait for ever in its own threads after its ranks
    have ended."""
    process = start(launcher, "FailingDDP", "told", tmp_path / "run")
    try:
        wait_until((tmp_path / "told").exists, seconds=ENDS_S)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(ENDS_S) != 0
    finally:
        process.kill()
    kept(tmp_path / "run")


@pytest.mark.costly
@needs_horovod
def test_the_rank_that_knows_the_reason_says_it_before_its_launcher_ends_it():
    """Rank 0 alone writes; what the others hear first is that it has gone."""
    command = f"{LAUNCHERS['mpirun']} runners.hvd --blocks 1 -o /proc/no/such".split()
    done = run(*command, *STEPS, timeout=ENDS_S)
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("ringside: ")]
    assert said[0].startswith("ringside: '/proc/no/such/plan.yaml' cannot be written"), done.stderr


@needs_horovod
@pytest.mark.costly
def test_the_reason_is_told_though_another_rank_ends_first(tmp_path):
    horovod = {"backend": f"{PLUGIN}:TornDownHorovod", "transport": "mpi", "launcher": "mpirun"}
    arms, measurement = {"naive": "naive", "hvd": horovod}, {"mode": "sequential"}
    ran = compare(tmp_path, arms=arms, measurement=measurement, code=1)
    error = ran.records["hvd"].error
    assert error.ranks == [0]
    assert error.message.startswith("rank 0: OSError: sample 7 is damaged")


@pytest.mark.costly
def test_a_rank_that_cannot_start_ends_those_of_other_hosts(tmp_path):
    """Both are this one; each launcher knows its own ranks only."""
    spawn = (
        "python -m runners.spawn --nnodes 2 --nproc-per-node 1 --master-addr 127.0.0.1"
        f" --master-port {free_port()} --node-rank"
    ).split()
    asked = f"-m runners.ddp --backend {PLUGIN}:UnstartedDDP -o {tmp_path / 'run'}".split()
    with ThreadPoolExecutor() as pool:
        ranks = pool.map(lambda node: run(*spawn, node, *asked, *STEPS, timeout=ENDS_S), (0, 1))
        first, other = ranks
    assert first.returncode and other.returncode
    assert "ringside: rank 0 on " in first.stderr and "OSError: no way to start" in first.stderr
    assert " ends, since it cannot start without rank 0 on " in other.stderr
    assert "OSError: no way to start" in other.stderr
