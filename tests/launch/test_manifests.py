"""``ringside manifests``: valid by the operators' own schemas, and what those make of them; executed in ``test_pods.py``."""

from __future__ import annotations

import copy
import json
import shlex
from functools import cache

import pytest
import yaml
from openapi_schema_validator import OAS30Validator

from measurement.plans.plan_file import parse_yaml
from tests.conftest import REPOSITORY, ringside_here, write_plan
from tests.kit.pods import job_of

PLAN = "plans/two-hosts.yaml"
KINDS = {"mpijob": ["MPIJob"], "trainjob": ["TrainingRuntime", "TrainJob"], "jobset": ["JobSet"]}
ASKED = shlex.split("--image registry/ringside:1 --gpus 2 --cpus 8 --queue team --claim results --time 2:00:00")
SCHEMAS = REPOSITORY / "tests" / "data" / "kubernetes" / "schemas.json"


def manifests(*arguments):
    done = ringside_here("manifests", *arguments)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@cache
def schema_of(kind):
    """As the API server has it, and no field that it would drop."""
    stored = json.loads(SCHEMAS.read_text())
    found = {**stored["kinds"][kind]["schema"], "$defs": stored["$defs"]}
    close(found)
    return stored["kinds"][kind]["apiVersion"], found


def close(schema):
    for inner in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(inner, dict | list):
            close(inner)
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict) and "type" in schema:
        schema.setdefault("additionalProperties", False)


def faults(one):
    version, schema = schema_of(one["kind"])
    assert one["apiVersion"] == version
    return [f"{error.json_path}: {error.message}" for error in OAS30Validator(schema).iter_errors(one)]


@pytest.mark.parametrize("flavour", KINDS)
def test_manifests_are_valid(flavour):
    found = manifests(PLAN, *ASKED, "--flavour", flavour)
    plan, *others = found
    assert plan["kind"] == "ConfigMap" and parse_yaml(plan["data"]["plan.yaml"], source="")["name"] == "two-hosts"
    jobs = [one for one in others if one["kind"] != "ConfigMap"]
    assert [one["kind"] for one in jobs] == KINDS[flavour]
    for one in jobs:
        assert faults(one) == []
    assert jobs[-1]["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}
    wrong = copy.deepcopy(jobs[0])
    wrong["spec"]["nodes"] = 2
    assert faults(wrong), "unknown fields pass"


@pytest.mark.parametrize("flavour", KINDS)
def test_all_ranks_are_in_pods_that_are_alike(flavour):
    job = job_of(manifests(PLAN, *ASKED, "--flavour", flavour))
    assert len(job.pods) == 2
    environment = {one["name"]: one["value"] for one in job.driver.container["env"]}
    assert environment["OMPI_MCA_orte_default_hostfile"] == "/etc/mpi/hostfile"
    mounted = {one["mountPath"]: one["name"] for one in job.driver.container["volumeMounts"]}
    assert {"/etc/mpi", "/home/mpiuser/.ssh", "/results", "/etc/ringside", "/dev/shm"} == set(mounted)
    (hostfile,) = (files["hostfile"] for files in job.files.values() if "hostfile" in files)
    named = {line.split()[0].partition(".")[0] for line in hostfile.splitlines()}
    assert named == {pod.hostname for pod in job.pods} and all(line.endswith(" slots=2") for line in hostfile.splitlines())
    assert job.driver.container["command"][:3] == ["ringside", "compare", "/etc/ringside/plan.yaml"]
    limits = {"cpu": 8, "nvidia.com/gpu": 2}
    for pod in job.pods:
        assert pod.container["resources"] == {"requests": limits, "limits": limits}
        assert pod.spec["terminationGracePeriodSeconds"] == 120


@pytest.mark.parametrize("flavour", KINDS)
def test_the_time_limit_is_the_drivers(flavour):
    text = ringside_here("manifests", PLAN, *ASKED, "--flavour", flavour).stdout
    assert text.count("activeDeadlineSeconds: 7200") == 1


def test_no_claim_is_told(tmp_path):
    plan = write_plan(tmp_path, name="7.My_Plan")
    done = ringside_here("manifests", plan, "--image", "i", "--flavour", "jobset", "--set", "seed=3")
    assert "# Results go with the pod: give --claim to keep them." in done.stdout
    assert "kubectl create secret generic ringside-7-my-plan-ssh" in done.stdout
    job = job_of(list(yaml.safe_load_all(done.stdout)))
    assert job.driver.container["command"][-4:] == ["--set", "seed=3", "-o", "/results/ringside-7-my-plan"]
    assert job.driver.container.get("resources") is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((PLAN,), "'image' is missing"),
        ((PLAN, "--image", "i", "--nodes", "3"), "world_size 4 needs 4 tasks, and 3 nodes with 2 tasks each are asked for"),
        ((PLAN, "--image", "i", "--ranks-per-node", "1"), "does not fit into 2 nodes with 1 tasks each; give --ranks-per-node 2"),
        ((PLAN, "--image", "i", "--gpus", "1", "--set", "device=cuda"), "--gpus 1 has one for 1 of them; give --gpus 2"),
        ((PLAN, "--image", "i", "--time", "soon"), "--time 'soon' is no time that sbatch takes"),
        ((PLAN, "--image", "i", "--time", "1"), "--time 1 is shorter than one launch"),
        ((PLAN, "--image", "i", "--flavour", "pod"), "use mpijob, trainjob or jobset"),
        ((PLAN, "--image", "i\nj"), "cannot stand in a manifest"),
        ((PLAN, "--image", "i", "--memory", "lots"), "memory"),
    ],
)
def test_what_cannot_be_a_manifest_is_told(arguments, told):
    done = ringside_here("manifests", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert told in done.stderr and "Traceback" not in done.stderr
