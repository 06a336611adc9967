"""``horovodrun``, ``mpirun`` and ``torchrun`` over two hosts, typed as in the documentation: a
table and a record of all ranks."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from measurement.records.results import ResultsFolder
from tests.cluster.conftest import beside, enter
from tests.conftest import drawn, ended_well, needs_horovod

SHORT = "--workload digits --local-batch-size 16 --blocks 2 --block-steps 3 --warmup-steps 1"


def check(tmp_path, done, *, on_hosts, expected):
    """``on_hosts``: how many ranks each host has."""
    ranks = sum(on_hosts)
    ended_well(done)
    assert f"{ranks} ranks on 2 hosts" in done.stdout
    (record,) = ResultsFolder(tmp_path).records()
    assert (record.backend, record.transport, record.launcher) == expected
    hosts = ["host1"] * on_hosts[0] + ["host2"] * on_hosts[1]
    assert [(place.rank, place.host) for place in record.ranks] == [*enumerate(hosts)]
    assert record.parity.passed
    steps = ResultsFolder(tmp_path).steps(record)
    assert len(steps) == ranks * 2 * 3
    assert (steps["step_s"] > 0).all()


@needs_horovod
@pytest.mark.parametrize(
    ("command", "expected"),
    drawn(
        [
            ("horovodrun -np 2 -H host1:1,host2:1", ("horovod", "mpi", "openmpi")),
            (
                "horovodrun --gloo -np 2 -H host1:1,host2:1 --network-interfaces eth0",
                ("horovod", "gloo", "horovodrun"),
            ),
            ("mpirun -np 3 -H host1:2,host2:1", ("horovod", "mpi", "openmpi")),
        ],
        number=1,
    ),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_horovod(lab, tmp_path, command, expected):
    on_hosts = [
        int(entry.partition(":")[2]) for entry in command.partition("-H ")[2].split()[0].split(",")
    ]
    done = enter("host1", *shlex.split(f"{command} python -m runners.hvd {SHORT} -o {tmp_path}"))
    check(tmp_path, done, on_hosts=on_hosts, expected=expected)


def test_torchrun(lab, tmp_path):
    """Once on each host; both wait for each other at host1."""
    on_hosts = [1, 2]
    where = "--nnodes 2 --master-addr host1 --master-port 29511"
    run = f"-m runners.ddp --transport gloo {SHORT} -o {tmp_path}"
    commands = [
        shlex.split(f"torchrun {where} --nproc-per-node {ranks} --node-rank {node} {run}")
        for node, ranks in enumerate(on_hosts)
    ]
    with beside("host2", *commands[1], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as second:
        done = enter("host1", *commands[0])
        _, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors.decode()
    check(tmp_path, done, on_hosts=on_hosts, expected=("ddp", "gloo", "torchrun"))
