"""Every launcher's argv and environment, by equality."""

from __future__ import annotations

import pytest

from measurement.errors import LaunchError
from measurement.world import World
from runners.launchers import REGISTRY, HostSlots, Launcher, LaunchJob, make_launcher
from runners.rank_environment import FAMILIES, read_world, without_rank_variables

RUN = ("python3", "-m", "runners.worker", "--arm", "a b;$(c)")
MPI_HERE = {"OMPI_MCA_oob_tcp_if_include": "lo", "OMPI_MCA_btl_tcp_if_include": "lo"}


def job(**changes):
    fields = {
        "world_size": 2,
        "hosts": (HostSlots(host="localhost", slots=2),),
        "module": "runners.worker",
        "arguments": ("--arm", "a b;$(c)"),
        "environment": {"OMP_NUM_THREADS": "1"},
        "python": "python3",
    }
    return LaunchJob(**{**fields, **changes})


COMMANDS = {
    "torchrun": (
        (
            *("torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nnodes", "1", "--nproc-per-node", "2"),
            *("--max-restarts", "0", "-m", "runners.worker", "--arm", "a b;$(c)"),
        ),
        {},
    ),
    "horovodrun": (("horovodrun", "--gloo", "-np", "2", "-H", "localhost:2", *RUN), {}),
    "mpirun": (
        (
            *("mpirun", "-np", "2", "-H", "localhost:2", "--bind-to", "none", "--map-by", "slot"),
            *("-x", "OMP_NUM_THREADS", *RUN),
        ),
        MPI_HERE,
    ),
    "mpiexec-mpich": (
        ("mpiexec", "-n", "2", "-hosts", "localhost:2", "-bind-to", "none", "-envlist", "OMP_NUM_THREADS", *RUN),
        {},
    ),
    "spawn": (
        ("python3", "-m", "runners.spawn", "--nproc-per-node", "2", "--", "runners.worker", "--arm", "a b;$(c)"),
        {},
    ),
}


def test_every_registered_launcher_is_tested():
    assert set(COMMANDS) == set(REGISTRY.table)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command(name):
    launcher = make_launcher(name)
    assert isinstance(launcher, Launcher)
    (command,) = launcher.commands(job())
    argv, extra = COMMANDS[name]
    assert command.argv == argv
    assert command.environment == {"OMP_NUM_THREADS": "1", **extra}
    assert command.host == "localhost"


def test_horovodrun_over_mpi_as_root():
    (command,) = make_launcher("horovodrun").commands(job(transport="mpi", as_root=True))
    assert command.argv[:2] == ("horovodrun", "--mpi")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert command.environment == {"OMP_NUM_THREADS": "1", **MPI_HERE, **root}


def test_mpirun_oversubscribes_only_when_it_must():
    (command,) = make_launcher("mpirun").commands(job(oversubscribed=True))
    assert "--oversubscribe" in command.argv
    assert "--oversubscribe" not in COMMANDS["mpirun"][0]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_rank_finds_itself(family):
    environment = {
        family.rank: "5",
        family.world_size: "8",
        family.local_rank: "1",
        family.local_world_size: "4",
        **({family.node_rank: "1"} if family.node_rank else {}),
    }
    expected = World(rank=5, world_size=8, local_rank=1, local_world_size=4, node_rank=1, launcher=family.name)
    assert read_world(environment) == expected
    assert without_rank_variables({**environment, "HOME": "/home/me"}) == {"HOME": "/home/me"}


def test_no_launcher_is_a_world_of_one():
    assert read_world({"HOME": "/"}) == World()


@pytest.mark.parametrize("rank", ["two", "", "9"])
def test_variables_that_do_not_fit(rank):
    with pytest.raises(LaunchError, match=r"RANK|outside"):
        read_world({"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
