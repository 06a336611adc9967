"""Every launcher's argv and environment, by equality."""

from __future__ import annotations

import os
import platform
import shlex

import pytest

from backends import make_backend
from measurement.agent.ringside_agent.place import HOROVOD, MPI, RENDEZVOUS, World
from measurement.errors import LaunchError, PlanError
from measurement.host import mpi_that_says
from runners.hosts.host_lists import parse_hosts
from runners.launchers import (
    HERE,
    REGISTRY,
    HostSlots,
    Launcher,
    LaunchRequest,
    known_rank_variables,
    make_launcher,
    without_rank_variables,
)
from runners.launchers.base import interface_environment, read_world
from runners.planning.arm_checks import require_executables
from runners.planning.arms import resolve_arms, usable_launchers
from tests.conftest import BIN
from tests.kit.commands import run_python
from tests.kit.plans import tiny
from tests.kit.refusals import refusal

WORKER = "-m runners.rank.worker --arm 'a b;$(c)'"
RUN = f"python3 {WORKER}"
LAST = {"RINGSIDE_LAST": ""}
MPI_HERE = {"OMPI_MCA_oob_tcp_if_include": "lo", "OMPI_MCA_btl_tcp_if_include": "lo"}


def job(**changes):
    fields = {
        "world_size": 2,
        "hosts": (HostSlots(host="localhost", slots=2),),
        "module": "runners.rank.worker",
        "arguments": ("--arm", "a b;$(c)"),
        "environment": {"OMP_NUM_THREADS": "1"},
        "python": "python3",
    }
    return LaunchRequest(**{**fields, **changes})


TORCHRUN = f"torchrun --standalone --local-addr 127.0.0.1 --nnodes 1 --nproc-per-node 2 --max-restarts 0 {WORKER}"
SRUN = "srun --overlap --export=ALL --cpu-bind=none --quiet --kill-on-bad-exit=1 --input=none --mpi=none"
COMMANDS = {
    "torchrun": (TORCHRUN, {}),
    "horovodrun": (f"horovodrun --gloo -np 2 -H localhost:2 --disable-cache {RUN}", {}),
    "mpirun": (
        f"mpirun -x OMP_NUM_THREADS -np 2 -H localhost:2 --bind-to none --map-by slot {RUN}",
        MPI_HERE,
    ),
    "mpiexec-mpich": (
        f"mpiexec -n 2 -hosts localhost:2 -bind-to none -envlist OMP_NUM_THREADS {RUN}",
        LAST,
    ),
    "spawn": (f"python3 -m runners.spawn --nproc-per-node 2 {WORKER}", {}),
    "srun": (f"{SRUN} --nodes 1 --ntasks 2 {RUN}", {}),
}


def test_every_registered_launcher_is_tested():
    assert set(COMMANDS) == set(ON_TWO_HOSTS) == set(REGISTRY.table)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_launcher_has_its_command_and_environment(name):
    (command,) = make_launcher(name).commands(job())
    typed, extra = COMMANDS[name]
    assert (command.host, shlex.join(command.argv)) == ("localhost", typed)
    assert command.environment == {"OMP_NUM_THREADS": "1", **extra}


@pytest.mark.parametrize("name", COMMANDS)
def test_ranks_in_a_container_are_started_through_its_program(name):
    """torchrun and spawn start their ranks themselves, so they run in it; the others' ranks do."""
    (command,) = make_launcher(name).commands(job(container=("apptainer", "exec", "image.sif")))
    plain = COMMANDS[name][0].replace("torchrun ", "python3 -m torch.distributed.run ")
    assert shlex.join(command.argv) == plain.replace("python3", "apptainer exec image.sif python3")


BINDING = "'--binding-args=--bind-to none --map-by slot'"
"""Open MPI 5 refuses Horovod's own words for it."""


def test_horovodrun_over_mpi_may_run_as_root():
    (command,) = make_launcher("horovodrun").commands(job(transport="mpi", as_root=True))
    assert (
        shlex.join(command.argv)
        == f"horovodrun --mpi -np 2 -H localhost:2 --disable-cache {BINDING} {RUN}"
    )
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert command.environment == {"OMP_NUM_THREADS": "1", **MPI_HERE, **root}


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_open_mpi_is_told_to_leave_names_whole(launcher):
    def told(*names):
        hosts = tuple(HostSlots(host=name, slots=1) for name in names)
        (command,) = make_launcher(launcher).commands(job(hosts=hosts, transport="mpi"))
        return [name for name in command.environment if name.endswith("keep_fqdn_hostnames")]

    assert len(told("host1", "host2.site")) == 2
    assert told("host1", "host2") == told("10.0.0.1", "::1") == []


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (
            "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/",
            "Open MPI 5.0.11",
        ),
        (
            "HYDRA build details:\n    Version:                                 5.0.2\n    CC:  cc",
            "MPICH 5.0.2",
        ),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307", "Intel MPI 2021.9"),
        ("something else 1.0", "None"),
    ],
)
def test_an_mpi_is_known_by_what_its_launcher_says(output, kind):
    assert str(mpi_that_says(output)) == kind


def test_a_launcher_of_another_mpi_is_refused_with_the_one_to_use(tmp_path, monkeypatch):
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'HYDRA build details:'; echo '    Version:    5.0.2'\n")
    program.chmod(0o755)
    monkeypatch.setattr("runners.planning.arm_checks.search_path", lambda: f"{tmp_path}:{BIN}")
    arm = {"backend": "ddp", "transport": "mpi", "launcher": "mpirun"}
    refused = refusal(require_executables, resolve_arms(tiny(arms={"a": arm})).values())
    assert "needs Open MPI, and 'mpirun' here is MPICH 5.0.2's" in refused
    assert "use launcher 'mpiexec-mpich', or" in refused


def test_mpirun_oversubscribes_only_when_it_must():
    (command,) = make_launcher("mpirun").commands(job(oversubscribed=True))
    assert "--oversubscribe" in command.argv
    assert "--oversubscribe" not in COMMANDS["mpirun"][0]


TWO = (HostSlots(host="host1", slots=3), HostSlots(host="host2", slots=3))
ON_ETH0 = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "eth0",
    "NCCL_SOCKET_IFNAME": "eth0",
    "HOROVOD_GLOO_IFACE": "eth0",
}
MPI_ON_ETH0 = dict.fromkeys(
    ("OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include", "OMPI_MCA_btl_tcp_if_include"),
    "eth0",
)
FORWARDED = "OMP_NUM_THREADS,GLOO_SOCKET_IFNAME,NCCL_SOCKET_IFNAME,HOROVOD_GLOO_IFACE"
SIX = "-np 6 -H host1:3,host2:3"
STATIC = "--node-rank {} --master-addr host1 --master-port 29511"


TORCHRUN_ON_TWO = f"torchrun --nnodes 2 {STATIC} --nproc-per-node 3 --max-restarts 0 {WORKER}"
ON_TWO_HOSTS = {
    "torchrun": ([(f"host{node + 1}", TORCHRUN_ON_TWO.format(node)) for node in (0, 1)], {}),
    "horovodrun": (
        [
            (
                HERE,
                f"horovodrun --gloo {SIX} --disable-cache --start-timeout 120 --network-interfaces eth0 {RUN}",
            )
        ],
        {},
    ),
    "mpirun": (
        [
            (
                HERE,
                f"mpirun -x {FORWARDED.replace(',', ' -x ')} {SIX} --bind-to none --map-by slot --prefix '/opt/my mpi' {RUN}",
            )
        ],
        MPI_ON_ETH0,
    ),
    "mpiexec-mpich": (
        [
            (
                HERE,
                f"mpiexec -n 6 -hosts host1:3,host2:3 -bind-to none -iface eth0 -envlist {FORWARDED} {RUN}",
            )
        ],
        LAST,
    ),
    "spawn": (
        [
            (
                f"host{node + 1}",
                f"python3 -m runners.spawn --nproc-per-node 3,3 {STATIC.format(node)} {WORKER}",
            )
            for node in (0, 1)
        ],
        {},
    ),
    "srun": (
        [
            (
                "localhost",
                f"{SRUN} --nodes 2 --ntasks 6 --nodelist host1,host1,host1,host2,host2,host2 --distribution=arbitrary {RUN}",
            )
        ],
        {},
    ),
}


def two_hosts(**changes):
    usual = {
        "world_size": 6,
        "hosts": TWO,
        "network_interface": "eth0",
        "master_port": 29511,
        "mpi_prefix": "/opt/my mpi",
        "environment": {"OMP_NUM_THREADS": "1"} | interface_environment("eth0"),
    }
    return job(**usual | changes)


@pytest.mark.parametrize("name", ON_TWO_HOSTS)
def test_every_launcher_has_its_commands_for_two_hosts(name):
    commands = make_launcher(name).commands(two_hosts())
    expected, extra = ON_TWO_HOSTS[name]
    assert [(command.host, shlex.join(command.argv)) for command in commands] == expected
    assert all(command.environment == {**ON_ETH0, **extra} for command in commands)


def test_horovodrun_over_mpi_reaches_two_hosts():
    (command,) = make_launcher("horovodrun").commands(two_hosts(transport="mpi"))
    prefix = shlex.quote("--mpi-args=--prefix '/opt/my mpi'")
    over_hosts = f"--start-timeout 120 --network-interfaces eth0 {prefix}"
    typed = f"horovodrun --mpi {SIX} --disable-cache {BINDING} {over_hosts} {RUN}"
    assert shlex.join(command.argv) == typed
    assert command.environment == {**ON_ETH0, **MPI_ON_ETH0}


def test_hosts_of_unlike_size_and_ipv6_are_named_rightly():
    hosts = (HostSlots(host="fe80::1", slots=2), HostSlots(host="host2", slots=1))
    three = two_hosts(hosts=hosts, world_size=3)
    first, second = (shlex.join(each.argv) for each in make_launcher("torchrun").commands(three))
    assert "--nproc-per-node 2" in first and "--nproc-per-node 1" in second
    (command,) = make_launcher("mpirun").commands(three)
    assert "[fe80::1]:2,host2:1" in command.argv


def test_horovodrun_refuses_ipv6_addresses():
    reason = "it takes host names and IPv4 addresses, not 'fe80::1'"
    assert make_launcher("horovodrun").refuses(parse_hosts("[fe80::1]:2,host2:1")) == reason
    assert make_launcher("horovodrun").refuses(TWO) is None


TORCHRUN_RANK = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
}
OPENMPI_RANK = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
HOROVOD_RANK = {
    "HOROVOD_RANK": "5",
    "HOROVOD_SIZE": "8",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "4",
    "HOROVOD_CROSS_RANK": "1",
}
MPICH_RANK = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
SRUN_RANK = {
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
RANKS = {
    "torchrun": {None: (TORCHRUN_RANK, {RENDEZVOUS})},
    "spawn": {None: (TORCHRUN_RANK, {RENDEZVOUS})},
    "horovodrun": {
        "gloo": (HOROVOD_RANK, {HOROVOD}),
        "mpi": (OPENMPI_RANK, {RENDEZVOUS, MPI, HOROVOD}),
    },
    "mpirun": {None: (OPENMPI_RANK, {RENDEZVOUS, MPI, HOROVOD})},
    "mpiexec-mpich": {None: (MPICH_RANK, {RENDEZVOUS, MPI, HOROVOD})},
    "srun": {
        None: (SRUN_RANK, {RENDEZVOUS, HOROVOD}),
        "mpi": ({**SRUN_RANK, "PMIX_RANK": "5"}, {RENDEZVOUS, MPI, HOROVOD}),
    },
}
"""By launcher and transport: what rank 5 of 8 finds, and what it can count on."""


@pytest.mark.parametrize("name", REGISTRY.names())
def test_a_rank_reads_its_place_by_its_launchers_variables(name):
    launcher = make_launcher(name)
    for transport, (environment, gives) in RANKS[name].items():
        world = read_world(environment, launcher.rank_variables)
        place = (
            world.rank,
            world.world_size,
            world.local_rank,
            world.local_world_size,
            world.node_rank,
        )
        assert place == (5, 8, 1, 4, 1)
        assert world.gives == launcher.gives(transport) == gives
        assert read_world(environment, known_rank_variables()) == world, (
            "also where nobody says which launcher it was"
        )
        assert without_rank_variables({**environment, "HOME": "/home/me"}) == {"HOME": "/home/me"}


def test_an_inner_launcher_goes_before_an_outer_one():
    world = read_world(
        {**OPENMPI_RANK, **TORCHRUN_RANK, "RANK": "2", "SLURM_STEP_ID": "0"}, known_rank_variables()
    )
    assert (world.rank, world.launcher) == (2, "torchrun")


def test_an_address_that_is_set_is_a_place_to_meet():
    assert read_world({**HOROVOD_RANK, "MASTER_ADDR": "host1"}, known_rank_variables()).gives == {
        HOROVOD,
        RENDEZVOUS,
    }


@pytest.mark.parametrize(
    "environment",
    [
        {"HOME": "/"},
        # srun -n 1
        {
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": "1",
            "SLURM_NTASKS": "4",
            "PMIX_RANK": "0",
        },
        {"LSB_JOBID": "7", "LSB_DJOB_NUMPROC": "4"},  # a batch script of LSF's
    ],
)
def test_without_a_launcher_a_process_is_a_world_of_one(environment):
    assert read_world(environment, known_rank_variables()) == World()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"SLURM_STEP_ID": "3", "SLURM_NTASKS": "4", "SLURM_PROCID": "1"}, "SLURM_NTASKS=4"),
        ({"PMIX_RANK": "0"}, "PMIX_RANK=0"),
        (
            {"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "6"},
            "JSM_NAMESPACE_RANK.*JSM_NAMESPACE_SIZE=6",
        ),
    ],
)
def test_a_rank_of_an_unknown_launcher_is_not_a_world_of_one(environment, message):
    with pytest.raises(
        LaunchError, match=f"{message}.*each would be a world of 1; start the ranks with"
    ):
        read_world(environment, known_rank_variables())


class GivesNothing(Launcher):
    """One that says nothing of what it gives."""

    def commands(self, job):
        return ()


GIVES_NOTHING = f"{__file__}:GivesNothing"


@pytest.mark.parametrize(
    ("backend", "transport", "launcher", "reason"),
    [
        (
            "horovod",
            "gloo",
            "torchrun",
            r"\(no HOROVOD_\* variables: each rank would be a world of 1\); use 'horovodrun' or 'mpirun' or 'srun'",
        ),
        ("horovod", "mpi", "spawn", r"over 'mpi' \(it starts no MPI, as srun does with --mpi=pmix"),
        ("ddp", "gloo", "horovodrun", r"no address to meet at \(MASTER_ADDR and MASTER_PORT\)\)"),
        ("naive", "gloo", GIVES_NOTHING, "no address to meet at"),
    ],
)
def test_a_launcher_is_refused_for_what_it_does_not_give(backend, transport, launcher, reason):
    arm = {"backend": backend, "transport": transport, "launcher": launcher}
    with pytest.raises(
        PlanError, match=rf"launcher '.*' cannot start backend '{backend}' .*{reason}"
    ):
        resolve_arms(tiny(arms={"a": arm}))


@pytest.mark.parametrize(
    ("backend", "transport", "launcher"),
    [
        ("ddp", "gloo", "torchrun"),
        ("ddp", "mpi", "mpirun"),
        ("horovod", "mpi", "horovodrun"),
        ("single", None, "spawn"),
    ],
)
def test_the_launcher_that_people_use_is_the_default(backend, transport, launcher):
    made = make_backend(backend, transport=transport, options={})
    assert usable_launchers(made)[0] == launcher


FAULTS_OF_A_STEP = """
import mmap, resource, torch
def step():
    for mib in (1, 8, 40):
        torch.ones(mib << 18)
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20 / (49 * 2**20 / mmap.PAGESIZE))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.parametrize(
    ("keep", "least", "most"),
    [
        ("", 0.5, 2),
        ("from runners.rank.resources import keep_freed_memory; keep_freed_memory()", 0, 0.01),
    ],
)
def test_ranks_that_keep_freed_memory_do_not_fault_it_in_again(monkeypatch, keep, least, most):
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    share_of_pages = float(run_python(keep + FAULTS_OF_A_STEP).stdout)
    assert least <= share_of_pages <= most
