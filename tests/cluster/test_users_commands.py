"""``horovodrun``, ``mpirun`` and ``torchrun`` over two hosts, typed as in the documentation: a table and a record of all ranks."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from measurement.results import ResultsFolder
from tests.cluster.conftest import inside
from tests.conftest import REPOSITORY, needs_horovod

pytestmark = pytest.mark.cluster

SHORT = "--workload digits --local-batch-size 16 --blocks 2 --block-steps 3 --warmup-steps 1"


def check(tmp_path, done, *, ranks, expected):
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{ranks} ranks on 2 hosts" in done.stdout
    (record,) = ResultsFolder(tmp_path).records()
    assert (record.backend, record.transport, record.launcher) == expected
    assert record.hosts == ["host1", "host2"]
    half = ranks // 2
    assert [(place.rank, place.host) for place in record.ranks] == [(r, "host1" if r < half else "host2") for r in range(ranks)]
    assert record.parity.passed
    rows = [line.split() for line in done.stdout.splitlines()]
    assert sum("host1" in row for row in rows) == sum("host2" in row for row in rows) == half
    steps = ResultsFolder(tmp_path).steps(record)
    assert len(steps) == ranks * 2 * 3
    assert (steps["step_s"] > 0).all()


@needs_horovod
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("horovodrun -np 8 -H host1:4,host2:4", ("horovod", "mpi", "openmpi")),
        ("horovodrun --gloo -np 4 -H host1:2,host2:2 --network-interfaces eth0", ("horovod", "gloo", "horovodrun")),
        ("mpirun -np 4 -H host1:2,host2:2", ("horovod", "mpi", "openmpi")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_horovod(lab, tmp_path, command, expected):
    ranks = int(command.partition("-np ")[2].split()[0])
    done = inside("host1", *shlex.split(f"{command} python -m runners.hvd {SHORT} -o {tmp_path}"))
    check(tmp_path, done, ranks=ranks, expected=expected)


def test_torchrun(lab, tmp_path):
    """Once on each host; both wait for each other at host1."""
    ranks_per_host = 4
    where = f"--nnodes 2 --nproc-per-node {ranks_per_host} --master-addr host1 --master-port 29511"
    commands = [
        shlex.split(f"torchrun {where} --node-rank {node} -m runners.ddp --transport gloo {SHORT} -o {tmp_path}") for node in (0, 1)
    ]
    other = [sys.executable, "-m", "runners.cli", "lab", "run", "--host", "host2", "--", *commands[1]]
    with subprocess.Popen(other, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as second:
        done = inside("host1", *commands[0])
        _, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors.decode()
    check(tmp_path, done, ranks=2 * ranks_per_host, expected=("ddp", "gloo", "torchrun"))
