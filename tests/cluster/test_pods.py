"""Jobs for Kubernetes are executed: two pods, each a lab host with sshd on port 2222 and a user who
is not root, to a report."""

from __future__ import annotations

import os
import sys

import pytest
import yaml

from measurement.records.results import ResultsFolder
from tests.conftest import BIN, REPOSITORY, ended_well, needs_horovod, ringside_here, write_plan
from tests.kit.comparisons import Compared
from tests.kit.pods import Running, job_of

IMAGE = "registry/ringside:1"
IMAGES = {
    IMAGE: {
        "path": os.pathsep.join([str(BIN), "/usr/local/bin", "/usr/bin", "/bin"]),
        "folder": str(REPOSITORY),
        "holds": [str(REPOSITORY), sys.prefix, sys.base_prefix],
    }
}
ARMS = {
    "ddp": {"backend": "ddp", "transport": "gloo", "launcher": "torchrun"},
    "horovod": {"backend": "horovod", "transport": "mpi", "launcher": "horovodrun"},
}
pytestmark = [needs_horovod, pytest.mark.costly]


def running(folder, flavour):
    """The job of a plan of two pods with a rank each, not started yet, and its results folder."""
    plan = write_plan(folder, name="tiny", arms=ARMS, measurement={"control": False})
    words = ("job", plan, "--image", IMAGE, "--nodes", "2", "--for", flavour)
    job = job_of(list(yaml.safe_load_all(ended_well(ringside_here(*words)).stdout)))
    claim, own = folder / "claim", folder / "pods"
    claim.mkdir()
    own.mkdir()
    if job.needs_key is None:  # a JobSet's is the user's to make
        job.needs_key = "ringside-tiny-ssh"
    return Running(
        job=job, folder=own, claims={"ringside-results": claim}, images=IMAGES
    ), claim / "ringside-tiny"


@pytest.mark.parametrize("flavour", ["mpijob", "trainjob", "jobset"])
def test_both_arms_run_in_the_pods_of_one_job(lab, tmp_path, flavour):
    pods, results = running(tmp_path, flavour)
    with pods:
        pods.start()
        code, said = pods.end(timeout=400)
    assert code == 0, pods.logs()
    ran = Compared(None, ResultsFolder(results))
    assert ran.statuses == dict.fromkeys(ARMS, "ok"), said
    assert all(len({place.host for place in record.ranks}) == 2 for record in ran.records.values())
