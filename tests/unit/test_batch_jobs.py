"""The nodes of batch jobs, as their environments and files tell them."""

from __future__ import annotations

import os

import pytest

from measurement.errors import HostfileError, PlanError
from runners.hosts.host_lists import JOBS, job_hosts, job_id, job_system, unused_nodes
from runners.hosts.placement import planned_hosts
from runners.hosts.preflight import inspect
from tests.kit.plans import read_tiny

FILES = {
    "pbs": ("PBS_NODEFILE", "node1\nnode1\nnode2\nnode2\n"),
    "lsf": ("LSB_DJOB_HOSTFILE", "node1\nnode2\nnode1\nnode2\n"),
    "sge": ("PE_HOSTFILE", "node1 2 all.q@node1 UNDEFINED\nnode2 2 all.q@node2 UNDEFINED\n"),
    "oar": ("OAR_NODEFILE", "node1\nnode1\nnode2\nnode2\n"),
    "dstack": ("DSTACK_MPI_HOSTFILE", "node1 slots=2\nnode2 slots=2\n"),
    "kubernetes": ("OMPI_MCA_orte_default_hostfile", "node1 slots=2\nnode2 slots=2\n"),
}


@pytest.fixture(params=["slurm", *FILES, "skypilot"])
def job(request, tmp_path, monkeypatch):
    """This process is in a job of two nodes with two slots each; the word for it."""
    word = request.param
    variables = {JOBS[word][0]: "77"}
    if word in FILES:
        variable, text = FILES[word]
        (tmp_path / "nodes").write_text(text)
        variables |= {variable: str(tmp_path / "nodes"), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    elif word == "slurm":
        variables |= {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
    else:
        variables |= {"SKYPILOT_NODE_IPS": "node1\nnode2", "SKYPILOT_NUM_GPUS_PER_NODE": "2"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return word


def test_a_plan_takes_a_jobs_nodes_by_the_word_for_them(job, tmp_path):
    assert job_system(os.environ) == job
    chosen = read_tiny(tmp_path, hosts=job, world_size=None)
    assert chosen.world_size == 4
    assert list(map(str, planned_hosts(chosen))) == ["node1:2", "node2:2"]
    assert job_id(chosen.hosts, os.environ) == "77"
    assert job_id("node1:2", os.environ) is None


def test_nodes_that_a_plan_leaves_alone_are_told(job, tmp_path):
    """Slurm's are taken unasked."""
    chosen = read_tiny(tmp_path)
    if job == "slurm":
        assert chosen.hosts == "slurm"
        return
    (warning,) = inspect(chosen).warnings
    assert (
        warning
        == f"this job has 2 nodes, and all ranks run on this one; to use them: --set hosts={job}"
    )
    assert inspect(read_tiny(tmp_path, hosts="localhost:2")).warnings == []


def test_the_pod_that_drives_is_first(tmp_path):
    """mpirun's ranks would lie elsewhere than torchrun's."""
    (tmp_path / "hosts").write_text("node-0.j slots=1\nlauncher-0.j slots=1\n")
    environment = {
        "OMPI_MCA_orte_default_hostfile": str(tmp_path / "hosts"),
        "HOSTNAME": "launcher-0",
    }
    hosts = [entry.host for entry in job_hosts("kubernetes", environment)]
    assert hosts == ["launcher-0.j", "node-0.j"]


def test_outside_of_a_job_no_nodes_are_known(tmp_path):
    assert (job_system({}), unused_nodes({})) == (None, [])
    # a user's own, in no pod
    assert job_system({"OMPI_MCA_orte_default_hostfile": "hosts"}) is None
    for word in JOBS:
        with pytest.raises(
            PlanError,
            match=f"^hosts: {word} means the nodes of a job, and this process is in no such job",
        ):
            job_hosts(word, {})


def test_nodes_of_skypilot_without_gpus_take_a_rank_each():
    environment = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n", "SKYPILOT_NUM_GPUS_PER_NODE": "0"}
    assert list(map(str, job_hosts("skypilot", environment))) == ["10.0.0.1:1", "10.0.0.2:1"]


def test_jobs_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(HostfileError, match="hostfile '/no/such' cannot be read"):
        job_hosts("pbs", {"PBS_NODEFILE": "/no/such"})
    assert unused_nodes({"PBS_NODEFILE": "/no/such"}) == []
