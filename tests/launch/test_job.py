"""``ringside job``: what every engine reads is what was asked, and valid by the schemas.

Executed in ``tests/cluster``."""

from __future__ import annotations

import copy
import json
import shlex
import subprocess
from functools import cache

import pytest
import yaml
from openapi_schema_validator import OAS30Validator

from runners.job_command import IN_IMAGES, PODS
from tests.conftest import REPOSITORY, ended_well, ringside_here, write_plan
from tests.kit.pods import job_of
from tests.kit.refusals import refused_command

PLAN = "plans/two-hosts.yaml"
SHELLS = ("slurm", "pbs", "lsf", "ray")
KINDS = {"mpijob": ["MPIJob"], "trainjob": ["TrainingRuntime", "TrainJob"], "jobset": ["JobSet"]}
SCHEMAS = REPOSITORY / "tests" / "data" / "kubernetes" / "schemas.json"
HOSTILE = """it's $(touch broken) `touch broken` "; touch broken #: {x: '*y'} & \\ ü"""
IMAGE = """registry/ringside:1" #{x}: 'y'"""
GPUS = ("--set", "device=cuda")


def job(engine, plan, *arguments, image="registry/ringside:1"):
    given = ["--image", image] if engine in IN_IMAGES else []
    return ended_well(ringside_here("job", plan, "--for", engine, *given, *arguments)).stdout


def manifests(flavour, plan, *arguments, **options):
    return list(yaml.safe_load_all(job(flavour, plan, *arguments, **options)))


def shell_of(engine, text):
    """What a shell is given of a job."""
    if engine in SHELLS:
        return text
    task = yaml.safe_load(text)
    return task["run"] if engine == "skypilot" else "\n".join(task["commands"])


def words_of(engine, text):
    """The command that measures, as the last line of a shell ends in it, or a pod's."""
    if engine in PODS:
        return job_of(list(yaml.safe_load_all(text))).driver.container["command"]
    words = shlex.split(shell_of(engine, text).splitlines()[-1])
    return words[words.index("compare") - 1 :]


@pytest.mark.parametrize("engine", [*SHELLS, *IN_IMAGES])
def test_values_stay_values(engine, tmp_path):
    folder = tmp_path / HOSTILE
    folder.mkdir()
    plan = write_plan(folder, name="7.My_Plan", hosts="host1:1,host2:1").rename(
        folder / f"{HOSTILE}.yaml"
    )
    text = job(engine, plan, "-o", folder / "out", "--set", "seed=3", image=IMAGE)
    words = words_of(engine, text)
    assert words[words.index("-o") + 1] == str(folder / "out") and "seed=3" in words
    if engine in PODS:
        pods = job_of(list(yaml.safe_load_all(text)))
        assert {pod.container["image"] for pod in pods.pods} == {IMAGE}
        mounted = next(iter(pods.files.values()))["plan.yaml"]
        assert yaml.safe_load(mounted) == yaml.safe_load(plan.read_text())
        return
    if engine in IN_IMAGES:
        task = yaml.safe_load(text)
        assert IMAGE in (task.get("image"), task["resources"].get("image_id", "")[7:])
    shell = shell_of(engine, text)
    subprocess.run(["bash", "-n"], input=shell, text=True, check=True)
    starts = ("cd ", "exec timeout", "exec /")
    lines = "\n".join(line for line in shell.splitlines() if line.startswith(starts))
    ran = subprocess.check_output(
        ["bash"], input=lines.replace("exec ", "exec echo "), text=True, cwd=tmp_path
    )
    assert str(folder / "out") in ran
    assert not [*tmp_path.rglob("broken")] and not (REPOSITORY / "broken").exists()


OPTIONS = {
    "slurm": [
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --time=2:00:00",
    ],
    "pbs": [
        "#PBS -l select=2:ncpus=2:mpiprocs=2:ngpus=2",
        "#PBS -l place=scatter",
        "#PBS -l walltime=2:00:00",
    ],
    "lsf": ["#BSUB -n 4", "#BSUB -R 'span[ptile=2]'", "#BSUB -W 120", "#BSUB -gpu num=2"],
}


@pytest.mark.parametrize("engine", OPTIONS)
def test_a_batch_system_is_asked_for_what_the_plan_needs(engine):
    text = job(engine, PLAN, *GPUS, "--time", "2:00:00")
    assert set(OPTIONS[engine]) <= set(text.splitlines())
    assert words_of(engine, text)[-4:] == ["--set", "device=cuda", "--set", f"hosts={engine}"]
    ends_a_minute_before = ("timeout --foreground --signal=TERM 7140s", "--signal=B:TERM@60")
    assert [words in text for words in ends_a_minute_before].count(True) == 1


@pytest.mark.parametrize(
    ("engine", "gpus", "asked", "hosts"),
    [
        ("dstack", GPUS, 2, "hosts=dstack"),
        ("skypilot", GPUS, "H100:2", "hosts=skypilot"),
        ("skypilot", (), None, r"hosts=$(printf '%s:2\n' $SKYPILOT_NODE_IPS"),
    ],
)
def test_two_nodes_are_asked_for_with_their_gpus(engine, gpus, asked, hosts):
    task = yaml.safe_load(text := job(engine, PLAN, *gpus))
    assert task.get("nodes", task.get("num_nodes")) == 2
    resources = task["resources"]
    assert resources.get("gpu", resources.get("accelerators")) == asked
    shell = shell_of(engine, text)
    assert hosts in shell
    assert f"{engine.upper()}_NODE_RANK" in shell, "the first node alone measures"


def test_one_node_is_the_plans_own_machine(tmp_path):
    text = job("slurm", write_plan(tmp_path))
    assert {"#SBATCH --nodes=1", "#SBATCH --ntasks-per-node=2"} <= set(text.splitlines())
    assert "hosts=" not in text
    named = words_of("slurm", job("slurm", "loaders"))
    assert named[1:3] == ["compare", "loaders"], "by name it finds its files from everywhere"
    assert job("slurm", write_plan(tmp_path, hosts="node7:2")).endswith("--set hosts=null\n")


def test_the_time_is_the_plans(tmp_path):
    def time(**changes):
        text = job("slurm", write_plan(tmp_path, **changes))
        return next(line for line in text.splitlines() if "--time" in line).partition("=")[2]

    assert time() == "1:00:00"  # rounds have no length
    assert time(measurement={"rounds": None, "launches": 5, "seconds_per_launch": 120}) == "0:30:00"
    assert time(measurement={"rounds": None, "launches": None, "minutes": 60}) == "2:10:00"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--for", "slurm", "--image", "i"),
            "--for slurm takes no --image; a plan names one by 'container'",
        ),
        (("--for", "dstack"), "--for dstack needs an --image"),
        (("--for", "jobset", "--image", "i", "--nodes", "1"), "--for jobset has 2 nodes or more"),
        (("--for", "pbs", "--time", "90"), "--time '90': give hours, minutes and seconds"),
        (
            ("--for", "lsf", "--set", "hosts=lsf"),
            "hosts: lsf does not say how many nodes; give --nodes 2",
        ),
    ],
)
def test_what_makes_no_job_is_told(arguments, message):
    assert message in refused_command("job", PLAN, *arguments)


def test_a_job_of_commands_must_know_their_ranks(tmp_path):
    plan = tmp_path / "plan.yaml"
    arms = {"a": {"command": "bash run.sh", "directory": str(tmp_path)}}
    plan.write_text(yaml.safe_dump({"name": "n", "baseline": "a", "arms": arms}))
    unknown = "neither the plan nor a command says how many ranks there are"
    assert unknown in refused_command("job", plan, "--for", "slurm")
    assert "#SBATCH --ntasks-per-node=4" in job("slurm", plan, "--set", "world_size=4")


def test_points_are_sized_by_the_largest(tmp_path):
    points = {"two": {"world_size": 2}, "eight": {"world_size": 8}, "four": {"world_size": 4}}
    assert "#SBATCH --ntasks-per-node=4" in job(
        "slurm", write_plan(tmp_path, points=points), "--nodes", "2"
    )


@cache
def schema_of(kind):
    """As the API server has it, and no field that it would drop."""
    stored = json.loads(SCHEMAS.read_text())
    schema = {**stored["kinds"][kind]["schema"], "$defs": stored["$defs"]}
    close(schema)
    return stored["kinds"][kind]["apiVersion"], schema


def close(schema):
    for inner in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(inner, dict | list):
            close(inner)
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict) and "type" in schema:
        schema.setdefault("additionalProperties", False)


def faults(manifest):
    version, schema = schema_of(manifest["kind"])
    assert manifest["apiVersion"] == version
    return [
        f"{error.json_path}: {error.message}"
        for error in OAS30Validator(schema).iter_errors(manifest)
    ]


@pytest.mark.parametrize("flavour", KINDS)
def test_manifests_are_valid(flavour):
    jobs = [job for job in manifests(flavour, PLAN, *GPUS) if job["kind"] != "ConfigMap"]
    assert [job["kind"] for job in jobs] == KINDS[flavour]
    for job in jobs:
        assert faults(job) == []
    wrong = copy.deepcopy(jobs[0])
    wrong["spec"]["nodes"] = 2
    assert faults(wrong), "unknown fields pass"


@pytest.mark.parametrize("flavour", KINDS)
def test_all_ranks_are_in_pods_that_are_alike(flavour):
    text = job(flavour, PLAN, *GPUS, "--time", "2:00:00")
    assert text.count("activeDeadlineSeconds: 7200") == 1
    workers = job_of(list(yaml.safe_load_all(text)))
    mounted = {entry["mountPath"] for entry in workers.driver.container["volumeMounts"]}
    assert {"/etc/mpi", "/results", "/etc/ringside", "/dev/shm"} <= mounted
    (hostfile,) = (files["hostfile"] for files in workers.files.values() if "hostfile" in files)
    hosts, slots = zip(*(line.split() for line in hostfile.splitlines()), strict=True)
    assert {host.partition(".")[0] for host in hosts} == {pod.hostname for pod in workers.pods}
    assert slots == ("slots=2", "slots=2")
    limits = {"cpu": 2, "nvidia.com/gpu": 2}
    for pod in workers.pods:
        assert pod.container["resources"] == {"requests": limits, "limits": limits}


def test_the_image_has_the_user_and_the_sshd_that_pods_count_on():
    """The Dockerfile is read: nothing here can build an image."""
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    pod = next(pod for pod in job_of(manifests("mpijob", PLAN)).pods if not pod.drives)
    port = pod.container["readinessProbe"]["tcpSocket"]["port"]
    user = pod.spec["securityContext"]["runAsUser"]
    assert f"printf 'Port {port}\\nPidFile /home/mpiuser/sshd.pid\\nHostKey" in dockerfile
    assert f"> {pod.container['command'][-1]} " in dockerfile
    assert f"printf 'Host *\\n    Port {port}\\n" in dockerfile
    assert f"--uid {user} --shell /bin/bash mpiuser" in dockerfile
    assert dockerfile.rpartition("\nUSER ")[2].startswith("mpiuser\n")
