"""``python -m runners.spawn`` started on each host by hand: the ranks meet at the first, over the interface that variables name."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from measurement.records.results import ResultsFolder
from tests.cluster.conftest import enter
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.costly("spawn by hand")

SHORT = shlex.split("--workload digits --local-batch-size 16 --blocks 2 --block-steps 3 --warmup-steps 1")


def command(node, folder):
    place = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1", "--master-addr", "host1"]
    ranks = ["python", "-m", "runners.spawn", *place, "-m", "runners.ddp", "--transport", "gloo", *SHORT, "-o", str(folder)]
    return ["env", "GLOO_SOCKET_IFNAME=eth0", *ranks]


def test_two_hosts_by_hand(lab, tmp_path):
    other = [sys.executable, "-m", "tests.kit.lab", "run", "--host", "host2", "--", *command(1, tmp_path)]
    with subprocess.Popen(other, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as second:
        done = enter("host1", *command(0, tmp_path))
        _, errors = second.communicate(timeout=60)
    assert (done.returncode, second.returncode) == (0, 0), done.stderr + errors.decode()
    (record,) = ResultsFolder(tmp_path).records()
    assert [(place.rank, place.host, place.node_rank) for place in record.ranks] == [(0, "host1", 0), (1, "host2", 1)]
    assert {place.environment["GLOO_SOCKET_IFNAME"] for place in record.ranks} == {"eth0"}
