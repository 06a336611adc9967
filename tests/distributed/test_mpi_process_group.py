"""The process group over MPI, under ``mpirun`` with 2 to 4 real ranks; PyTorch's own tests are the
judge."""

from __future__ import annotations

import collections
import json
import shutil
import sys

import pytest

from tests.conftest import BIN, REPOSITORY
from tests.kit.commands import run, warm

RANKS = REPOSITORY / "tests" / "distributed" / "ranks"
MPIRUN = shutil.which("mpirun", path=str(BIN))
pytestmark = [
    pytest.mark.usefixtures("no_processes_left"),
    pytest.mark.skipif(MPIRUN is None, reason="no MPI here; 'make setup' installs it"),
]

QUICK = ["overlap", "subsets", "own_store", "refusals", "operations", "mixed:1000"]

REFUSED_TORCH_TESTS = {
    # torch: "monitored_barrier requires a group with a CPU-capable backend (e.g. GLOO)": it has no
    # place for a group in Python.
    "test_monitored_barrier_gloo",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_monitored_barrier_gloo_subgroup",
    "test_monitored_barrier_failure_order",
    "test_monitored_barrier_wait_all_ranks",
    # ours: "MPI cannot reduce sparse tensors"
    "test_sparse_all_reduce_sum",
}


def mpirun(ranks, script, *arguments, options=(), **more):
    """Under the launcher, with neither MASTER_ADDR nor RANK."""
    return under_launcher(ranks, *options, sys.executable, RANKS / script, *arguments, **more)


def under_launcher(ranks, *words, timeout=280):
    """Options, a program and its arguments, the same way."""
    loopback = {"OMPI_MCA_oob_tcp_if_include": "lo", "OMPI_MCA_btl_tcp_if_include": "lo"}
    return run(MPIRUN, "-np", ranks, "--oversubscribe", *words, timeout=timeout, **loopback)


@pytest.fixture(scope="module")
def quick_cases():
    """One launch for all, whose ranks are forked from what has imported torch: most of a launch is
    importing that."""
    return under_launcher(4, *warm("-m", "tests.distributed.ranks.cases"), *QUICK)


@pytest.mark.parametrize("case", QUICK)
def test_case(quick_cases, case):
    assert f"passed {case.replace(':', ' ')}" in quick_cases.stdout, quick_cases.stderr[-4000:]


def test_all_cases_end_well(quick_cases):
    assert quick_cases.returncode == 0, quick_cases.stderr[-4000:]


@pytest.mark.costly
def test_pytorchs_own_tests(tmp_path):
    done = mpirun(3, "torch_suite.py", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    failed = {name: why[-2000:] for name, (how, why) in found.items() if how == "failed"}
    assert failed.keys() <= REFUSED_TORCH_TESTS, failed
    assert collections.Counter(how for how, _ in found.values())["passed"] > 100, done.stdout
    assert found["test_DistributedDataParallelCPU"][0] == "passed"


@pytest.mark.costly
def test_an_absent_rank_is_an_error_that_says_what_and_who(tmp_path):
    mpirun(3, "cases.py", f"absent:{tmp_path}", timeout=90)
    for rank in (1, 2):
        told = (tmp_path / f"rank-{rank}.txt").read_text()
        here = f"on rank {rank} of 3 over MPI: not all ranks reached it within its timeout of 3 s"
        assert f"DistBackendError: all_reduce of float32 [4, 3] {here}" in told
        assert f"DistBackendError: barrier {here}" in told
        assert (
            f"DistBackendError: all_reduce of float32 [4, 3] {here}"
            in told.partition("when running the callback: ")[2]
        )
        assert (
            f"broadcast of float32 [2] on rank {rank} of 3 over MPI: this group failed before"
            in told
        )


def test_a_killed_rank_makes_the_other_raise():
    """By default mpirun ends the job at once; told to go on, it leaves the survivor alone, who
    raises."""
    done = mpirun(
        2, "cases.py", "killed", options=("--mca", "orte_enable_recovery", "1"), timeout=90
    )
    assert (
        "all_reduce of float32 [1000] on rank 0 of 2 over MPI: not all ranks reached it"
        in done.stderr
    ), done.stderr[-3000:]


def test_a_rank_that_fails_ends_the_job():
    """Its peers wait for a minute by their timeout; MPI_Finalize would wait for them."""
    done = mpirun(2, "cases.py", "failing", timeout=45)
    assert done.returncode != 0
    assert "ValueError: rank 0 has had enough" in done.stderr
    assert "this rank failed with ValueError, and the others may wait for it" in done.stderr


@pytest.mark.costly
def test_a_group_that_nobody_destroyed_does_not_spoil_the_exit():
    done = mpirun(2, "cases.py", "forgetful")
    assert (done.returncode, done.stderr.strip()) == (0, "")
