"""The Launcher interface: a request in, commands out. Pure: no I/O, argv lists, no shell strings.

A launcher may be named by ``module:Class`` from anywhere: one file says what it runs and which
variables its ranks find.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from measurement.addresses import LOOPBACK, with_port
from runners.launchers.rank_variables import RankVariables

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
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
    names = (GLOO_INTERFACE, "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
    return dict.fromkeys(names, interface) if interface else {}


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
