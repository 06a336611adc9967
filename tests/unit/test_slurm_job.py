"""A Slurm job as its environment tells it: nodes, tasks, and a task's place."""

from __future__ import annotations

import pytest

from measurement.agent.ringside_agent.place import HOROVOD, MPI, RENDEZVOUS
from measurement.conditions.same_environment import changes_since, format_changes
from measurement.errors import LaunchError
from runners.launchers import known_rank_variables, meeting_place, without_rank_variables
from runners.launchers.base import HostSlots, LaunchRequest, read_world
from runners.launchers.slurm import Srun, expand_nodes, slurm_hosts
from tests.kit.changed import changed
from tests.kit.results_factory import make_manifest, make_plan

JOB = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_TASKS_PER_NODE": "2,1"}
TASK = {
    **JOB,
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
}


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("host1", "host1"),
        ("node[01-03,7],login", "node01 node02 node03 node7 login"),
        ("r[1-2]n[08-09]", "r1n08 r1n09 r2n08 r2n09"),
        ("a-b[9-10].site,c", "a-b9.site a-b10.site c"),
    ],
)
def test_a_list_of_nodes_is_expanded(text, nodes):
    assert expand_nodes(text) == nodes.split()


@pytest.mark.parametrize(
    "text",
    ["n[", "n[1-", "n[a]", "n]1[", "[[1]]", "n[1-]"],
)
def test_what_is_no_list_of_nodes_is_refused(text):
    with pytest.raises(LaunchError, match="is not a list of nodes as Slurm writes it"):
        expand_nodes(text)


def test_a_job_has_its_nodes_with_their_slots():
    """All nodes alike: ``test_batch_jobs``."""
    assert list(map(str, slurm_hosts(JOB))) == ["node1:2", "node2:1"]


@pytest.mark.parametrize("tasks", ["2", "x", "4(x"])
def test_a_job_whose_tasks_do_not_fit_its_nodes_is_refused(tasks):
    with pytest.raises(LaunchError, match="2 nodes in SLURM_JOB_NODELIST, with the tasks"):
        slurm_hosts({**JOB, "SLURM_TASKS_PER_NODE": tasks})


def test_a_task_knows_its_place_and_where_to_meet():
    world = read_world(TASK, known_rank_variables())
    assert (world.rank, world.world_size, world.local_rank, world.node_rank) == (2, 3, 0, 1)
    assert (world.local_world_size, world.gives) == (1, {RENDEZVOUS, HOROVOD})
    assert MPI in read_world({**TASK, "PMIX_RANK": "2"}, known_rank_variables()).gives
    place = meeting_place(TASK)
    assert place["MASTER_ADDR"] == "node1" and 20_000 <= int(place["MASTER_PORT"]) < 30_000
    assert meeting_place({**TASK, "MASTER_PORT": "1234"})["MASTER_PORT"] == "1234"


@pytest.mark.parametrize(
    "step",
    [{"SLURM_STEP_ID": "4294967291"}, {"SLURM_STEP_ID": "4294967290"}, {}],
    ids=["batch script", "external", "salloc"],
)
def test_a_batch_script_and_a_shell_of_salloc_are_no_tasks(step):
    environment = {name: value for name, value in TASK.items() if name != "SLURM_STEP_ID"} | step
    assert read_world(environment, known_rank_variables()).world_size == 1
    assert meeting_place(environment) == {}


def test_what_a_driver_hands_on_makes_nobody_a_task():
    left = without_rank_variables(TASK)
    assert left == JOB
    assert read_world(left, known_rank_variables()).world_size == 1


def test_ranks_fill_the_nodes_in_order():
    hosts = HostSlots(host="node1", slots=2), HostSlots(host="node2", slots=1)
    (command,) = Srun().commands(
        LaunchRequest(world_size=3, hosts=hosts, module="m", transport="mpi")
    )
    assert (
        "--mpi=pmix --nodes 2 --ntasks 3 --nodelist node1,node1,node2 --distribution=arbitrary"
        in " ".join(command.argv)
    )


@pytest.mark.parametrize(
    ("environment", "node", "message"),
    [
        ({}, "node1", "this process is in none; start one (salloc, sbatch"),
        (JOB, "node1", None),
        (JOB, "node9", "'node9' is no node of this job (node1, node2); leave hosts out"),
    ],
)
def test_srun_is_refused_outside_a_job_and_of_its_nodes(monkeypatch, environment, node, message):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    refused = Srun().refuses([HostSlots(host=node, slots=1)])
    assert message in refused if message else refused is None


def of_a_job(**hosts):
    """The manifest of a comparison in a job on these hosts, by their CPUs."""
    hosts = {host: {"host": host, "cpu": cpu} for host, cpu in hosts.items()}
    return changed(make_manifest(make_plan()), hosts=hosts, slurm_job="77")


def test_a_job_that_is_given_other_nodes_of_the_same_kind_goes_on():
    began = of_a_job(node1="EPYC", node2="EPYC")
    assert changes_since(began, [], of_a_job(node5="EPYC", node9="EPYC")) == {}
    assert format_changes(changes_since(began, [], of_a_job(node5="EPYC", node9="Xeon"))) == [
        "cpu on node 2: EPYC -> Xeon"
    ]
