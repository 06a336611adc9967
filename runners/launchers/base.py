"""The Launcher interface: a request in, commands out, and the variables from which ranks read their
place. Pure: no I/O, argv lists, no shell strings.

A launcher may be named by ``module:Class`` from anywhere: one file says what it runs and which
variables its ranks find. No other module reads rank variables from the environment.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from measurement.addresses import LOOPBACK, with_port
from measurement.agent.ringside_agent.place import RENDEZVOUS, VariableNames, World, read_place
from measurement.errors import LaunchError, cut

HERE = "localhost"
"""As a command's host: the driver's own."""

RUN_ID = "RINGSIDE_RUN"
"""The variable that every process of a run inherits."""
CONTAINER_FILE = "/tmp/ringside-{run}.{number}.{program}"
"""Has the ID of a container of a run, for whoever ends the run on that host."""


@dataclass(frozen=True, kw_only=True)
class HostSlots:
    """A host and how many ranks it takes."""

    host: str
    slots: int

    def __str__(self) -> str:
        """As in ``-H`` lists: ``host1:4``; IPv6 addresses in brackets."""
        return with_port(self.host, self.slots)


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What is to be started: ``python -m module arguments`` on every rank."""

    world_size: int
    hosts: tuple[HostSlots, ...]
    module: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Must reach every rank, whatever the launcher forwards by itself."""
    transport: str | None = None
    """What the backend will talk over; horovodrun chooses its controller by it."""
    python: str = "python"
    container: tuple[str, ...] = ()
    """Words before a command that run it in the ranks' container; empty: no container."""
    as_root: bool = False
    """Some launchers refuse root unless a flag allows it."""
    oversubscribed: bool = False
    """More ranks than cores."""
    network_interface: str | None = None
    """Network interface for the ranks on every host; None: each library chooses."""
    master_port: int = 0
    """Free on the first host."""
    mpi_prefix: str | None = None
    """Prefix of Open MPI on every host, if PATH alone does not find it there."""
    arm: str = ""
    launch: str = "by-hand"
    """The start's name; the default is for commands that a person pastes."""
    seed: int = 0
    """For a script that takes it by a flag. A user's command may contain arm, launch and seed as
    placeholders."""
    folder: str = ""
    """Where it starts."""
    folders: tuple[str, ...] = ()
    """Folders that ranks read, besides those that every container mounts."""

    @property
    def host_list(self) -> str:
        """``host1:4,host2:4``."""
        return ",".join(map(str, self.hosts))

    @property
    def is_local(self) -> bool:
        """All ranks on the host the launcher runs on."""
        return all(entry.host in (HERE, LOOPBACK) for entry in self.hosts)

    @property
    def rendezvous_host(self) -> str:
        """Where the hosts meet."""
        return self.hosts[0].host

    @property
    def python_command(self) -> tuple[str, ...]:
        """What each rank runs."""
        return (*self.container, self.python, "-m", self.module, *self.arguments)


@dataclass(frozen=True, kw_only=True)
class HostCommand:
    """One command to start on one host.

    ``environment`` is added to that of the starting process, or of the ssh login.
    """

    host: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    inherited: Mapping[str, str] | None = None
    """The environment that it adds to; other hosts get what ranks need of it. None: the driver's
    forwarded environment."""
    folder: Path | None = None
    """Where it starts; None: where the driver runs."""


def interface_environment(interface: str | None) -> dict[str, str]:
    """Variables that make Gloo, NCCL and Horovod's Gloo use a network interface; none for None."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
    return dict.fromkeys(names, interface) if interface else {}


@dataclass(frozen=True, kw_only=True)
class RankVariables:
    """The names of the variables from which a rank reads its place."""

    names: VariableNames
    """With the launcher's name, for records."""
    gives: frozenset[str] = frozenset()
    """What a rank that finds these variables can count on (``World.gives``)."""
    others: tuple[str, ...] = ()
    """Prefixes of further variables that belong to a rank."""

    def are_set(self, environment: Mapping[str, str]) -> bool:
        """Whether this process was started as such a rank."""
        return {*self.names[1:4]} <= environment.keys()

    def read(self, environment: Mapping[str, str]) -> World:
        """The rank's place.

        Raises:
            LaunchError: a variable does not hold a number that fits.
        """
        try:
            world = read_place(environment, self.names)
        except ValueError as error:
            raise LaunchError(
                f"the variables of {self.names.launcher} do not fit together: {cut(str(error))};"
                " start with one launcher"
            ) from error
        return replace(
            world, gives=self.gives | ({RENDEZVOUS} if "MASTER_ADDR" in environment else set())
        )

    def meeting_place(self, environment: Mapping[str, str]) -> dict[str, str]:
        """MASTER_ADDR and MASTER_PORT from this launcher's variables; empty if it sets them itself,
        or they do not follow.
        """
        return {}


class Launcher(ABC):
    """Turns a request to start ranks into commands. Stateless."""

    executable: ClassVar[str]
    """Looked for beside the Python that runs, then on PATH, before anything starts."""

    rank_variables: ClassVar[tuple[RankVariables, ...]] = ()
    """Variables from which its ranks read their place; of several, the first that are set count."""

    chooses_hosts: ClassVar[bool] = False
    """Whether it chooses its ranks' hosts, threads and forwarded environment itself, as a user's
    command does."""

    @abstractmethod
    def commands(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        """The commands that start the ranks, as many as are needed for each host. Pure."""

    def typed(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        """The commands that start the ranks by hand, without a driver. Pure."""
        return self.commands(request)

    def gives(self, transport: str | None) -> frozenset[str]:
        """What a backend can count on in the ranks over this transport; see
        ``World.gives``. Pure.
        """
        return self.rank_variables[0].gives if self.rank_variables else frozenset()

    def mpi_program(self, transport: str | None) -> tuple[str, str] | None:
        """A program that must belong to one MPI, and that MPI's name
        (``probes.installed_libraries``); None: no such program.
        """
        return None

    def refuses(self, hosts: Sequence[HostSlots]) -> str | None:
        """Why it cannot start ranks with this placement; None if it can. Pure."""
        return None


UNKNOWN_LAUNCHERS: Mapping[str, tuple[str, ...]] = {
    "SLURM_STEP_ID": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    "JSM_NAMESPACE_RANK": ("JSM_NAMESPACE_SIZE",),
    "PALS_RANKID": ("PMI_SIZE", "PALS_SIZE"),
    "PMI_RANK": ("PMI_SIZE",),
    "PMI_ID": ("PMI_SIZE",),
    "PMIX_RANK": ("PMI_SIZE", "SLURM_STEP_NUM_TASKS"),
    "LSF_PM_TASKID": ("LSB_DJOB_NUMPROC",),
}
"""By a variable in each process of a launcher that Ringside does not support: those that have the
number of processes. The first that is set counts."""
FIRST_SPECIAL_STEP = 0xFFFF_FFF0
"""Slurm's batch script and interactive steps have numbers from here on; they are not tasks of an
``srun``."""


def read_world(environment: Mapping[str, str], launchers: Iterable[RankVariables]) -> World:
    """This process's place from the first launcher whose variables are set; a world of one if no
    launcher started it.

    Raises:
        LaunchError: a variable does not hold a number that fits, or an unsupported launcher started
            several processes.
    """
    variables = next((variables for variables in launchers if variables.are_set(environment)), None)
    if variables is not None:
        return variables.read(environment)
    for marker, sizes in UNKNOWN_LAUNCHERS.items():
        if marker not in environment or (
            marker == "SLURM_STEP_ID" and not is_slurm_task(environment)
        ):
            continue
        name = next((name for name in sizes if name in environment), marker)
        if name == marker or environment[name].strip() != "1":
            raise LaunchError(
                f"a launcher started this process as one of several ({marker} is set, and"
                f" {name}={cut(environment[name])}), and Ringside does not read its variables: each"
                " would be a world of 1; start the ranks with horovodrun or mpirun inside the job,"
                " or with torchrun, once per host"
            )
    return World()


def is_slurm_task(environment: Mapping[str, str]) -> bool:
    """Whether this process is a task of an ``srun``, not a batch script or a shell of
    ``salloc``.
    """
    step = environment.get("SLURM_STEP_ID", "")
    return re.fullmatch("[0-9]{1,10}", step) is not None and int(step) < FIRST_SPECIAL_STEP
