"""Printed jobs are run on hosts that ssh reaches, in the environment that their schedulers would
give them."""

from __future__ import annotations

import os

import pytest
import yaml

from measurement.records.results import ResultsFolder
from tests.cluster.conftest import enter
from tests.conftest import BIN, ended_well, ringside_here, write_plan

HOSTS = ("host1", "host2")
RAY = """
class util:
    get_node_ip_address = staticmethod(lambda: "host1")
def init(**_): pass
def nodes():
    return [{"Alive": True, "Resources": {"CPU": 2.0}, "NodeManagerAddress": name} for name in ("host2", "host1")]
"""
VARIABLES = {
    "pbs": {"PBS_NODEFILE": "{folder}/nodes"},
    "lsf": {"LSB_DJOB_HOSTFILE": "{folder}/nodes"},
    "dstack": {"DSTACK_NODE_RANK": "0", "DSTACK_MPI_HOSTFILE": "{folder}/nodes"},
    "skypilot": {
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NODE_IPS": "\n".join(HOSTS),
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
    },
    "ray": {"PYTHONPATH": "{folder}/stand-in"},
}


@pytest.mark.costly
@pytest.mark.parametrize("engine", VARIABLES)
def test_the_job_measures_on_all_its_nodes(lab, tmp_path, engine):
    """The second time it goes on, which leaves nothing to do."""
    (tmp_path / "nodes").write_text("host1\nhost2\n")
    (tmp_path / "stand-in").mkdir()
    (tmp_path / "stand-in" / "ray.py").write_text(RAY)
    (tmp_path / ".ssh").mkdir()
    arms = {
        name: {"backend": name, "transport": "gloo", "launcher": "torchrun"}
        for name in ("ddp", "naive")
    }
    plan = write_plan(tmp_path, arms=arms, hosts="host1:1,host2:1", measurement={"control": False})
    out = tmp_path / "out"
    image = ["--image", "none"] if engine in ("dstack", "skypilot") else []
    text = ended_well(ringside_here("job", plan, "--for", engine, "-o", out, *image)).stdout
    if image:
        task = yaml.safe_load(text)
        text = task["run"] if engine == "skypilot" else task["commands"][0]
        text = text.replace("/etc/ringside/plan.yaml", str(plan))
    (tmp_path / "job.sh").write_text(text)
    variables = {"HOME": tmp_path, "PATH": f"{BIN}:{os.environ['PATH']}", **VARIABLES[engine]}
    given = [f"{name}={value}".format(folder=tmp_path) for name, value in variables.items()]
    for _ in range(2):
        ended_well(enter("host1", "env", "-C", tmp_path, *given, "bash", "job.sh"))
    records = ResultsFolder(out).records()
    assert {(record.status, record.launch) for record in records} == {("ok", 0)}
    assert all({place.host for place in record.ranks} == set(HOSTS) for record in records)
