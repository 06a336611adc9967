"""The Launcher interface: a job in, commands out. Pure: no I/O, argv lists, never a shell string."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class HostSlots:
    """A host and how many ranks it takes."""

    host: str
    slots: int


@dataclass(frozen=True, kw_only=True)
class LaunchJob:
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
    as_root: bool = False
    """Some launchers refuse root unless told that it is meant."""
    oversubscribed: bool = False
    """More ranks than cores."""

    @property
    def host_list(self) -> str:
        """``host1:4,host2:4``."""
        return ",".join(f"{entry.host}:{entry.slots}" for entry in self.hosts)

    @property
    def is_local(self) -> bool:
        """All ranks on the host the launcher runs on."""
        return all(entry.host in ("localhost", "127.0.0.1") for entry in self.hosts)

    @property
    def python_command(self) -> tuple[str, ...]:
        """What each rank runs."""
        return (self.python, "-m", self.module, *self.arguments)


@dataclass(frozen=True, kw_only=True)
class HostCommand:
    """One command to start on one host. ``environment`` is added to that of the starting process."""

    host: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]


class Launcher(ABC):
    """Turns a job into commands. Stateless."""

    name: ClassVar[str]
    executable: ClassVar[str]
    """Looked for beside the Python that runs, then on PATH, before anything starts."""

    @abstractmethod
    def commands(self, job: LaunchJob) -> tuple[HostCommand, ...]:
        """The commands that start the job, one per host that needs one. Pure."""
