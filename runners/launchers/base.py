"""The Launcher interface: a job in, commands out. Pure: no I/O, argv lists, never a shell string.

A launcher may be named by ``module:Class`` from anywhere: one file says what it runs and which variables its ranks find.
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
"""As a command's host: the one the driver runs on."""


@dataclass(frozen=True, kw_only=True)
class HostSlots:
    """A host and how many ranks it takes."""

    host: str
    slots: int

    def __str__(self) -> str:
        """As in ``-H`` lists: ``host1:4``; IPv6 addresses in brackets."""
        return with_port(self.host, self.slots)


@dataclass(frozen=True, kw_only=True)
class RankCommand:
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
    """What stands before a command to run it in the container of the ranks; empty: there is none."""
    as_root: bool = False
    """Some launchers refuse root unless a flag allows it."""
    oversubscribed: bool = False
    """More ranks than cores."""
    network_interface: str | None = None
    """Which one of every host's the ranks shall use; None: as each library finds one."""
    master_port: int = 0
    """Free on the first host, where ranks of several hosts meet."""
    mpi_prefix: str | None = None
    """Where Open MPI lies on every host, if it is not found there by PATH alone."""
    arm: str = ""
    launch: str = "by-hand"
    """The start's name; where a person pastes the command, that of no launch."""
    seed: int = 0
    """For a script that takes it by a flag. All three may be asked for in a user's command."""
    folder: str = ""
    """Where it starts."""
    folders: tuple[str, ...] = ()
    """That ranks read, besides those that any container shows."""

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
    """One command to start on one host. ``environment`` is added to that of the starting process, or of a login over ssh."""

    host: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    inherited: Mapping[str, str] | None = None
    """The environment that it adds to, of which another host gets what ranks need; None: what is handed on of the driver's."""
    folder: Path | None = None
    """Where it starts; None: where the driver runs."""


def interface_environment(interface: str | None) -> dict[str, str]:
    """Variables by which Gloo, NCCL and Horovod's Gloo use a network interface; none for None."""
    names = (GLOO_INTERFACE, "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
    return dict.fromkeys(names, interface) if interface else {}


class Launcher(ABC):
    """Turns a job into commands. Stateless."""

    executable: ClassVar[str]
    """Looked for beside the Python that runs, then on PATH, before anything starts."""

    rank_variables: ClassVar[tuple[RankVariables, ...]] = ()
    """By which its ranks read their place; where there are several, the first that are set count."""

    remedies: ClassVar[Mapping[str, str]] = {}
    """How people who call it themselves get what it gives on request only, by need; see ``World.gives``."""

    chooses_hosts: ClassVar[bool] = False
    """Whether it chooses hosts and threads of its ranks, and what other hosts get of the environment: a command of the user's."""

    @abstractmethod
    def commands(self, job: RankCommand) -> tuple[HostCommand, ...]:
        """The commands that start the job, one per host that needs one. Pure."""

    def typed(self, job: RankCommand) -> tuple[HostCommand, ...]:
        """The commands by which a person starts the job, without a driver. Pure."""
        return self.commands(job)

    def gives(self, transport: str | None) -> frozenset[str]:
        """What a backend can count on in the ranks of a job over this transport; see ``World.gives``. Pure."""
        return self.rank_variables[0].gives if self.rank_variables else frozenset()

    def mpi_program(self, transport: str | None) -> tuple[str, str] | None:
        """The program that must be of one MPI, and that MPI's name (``probes.installed_libraries``); None: there is none."""
        return None

    def refuses(self, hosts: Sequence[HostSlots]) -> str | None:
        """Why it cannot start ranks placed like this; None where it can. Pure."""
        return None
