"""A user's own command as a launcher: its words are kept, and its ranks load the agent."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import ClassVar

from measurement.host import OPEN_MPI, installed_mpi
from runners.launchers.base import (
    CONTAINER_FILE,
    HERE,
    RUN_ID,
    HostCommand,
    Launcher,
    LaunchRequest,
)
from runners.launchers.command_lines import (
    CONTAINERS,
    MPIRUN,
    SRUN,
    TORCHRUN,
    CommandLine,
    command_of,
)
from runners.launchers.mpirun import ALLOW_ROOT

AGENT_FOLDER = Path(__file__).resolve().parents[2] / "measurement" / "agent"
PYTHONPATH = "PYTHONPATH"
SLURM_EXPORT_ENV = "SLURM_EXPORT_ENV"
IN_FOLDER = 'cd -- "$0" && exec env "$@"'
"""For any shell: runs a command in a folder, with variables."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image in which a command runs; or a program that runs images, before one is named."""

    name: str = ""
    """With the program, and the ID if that is known."""
    shows: tuple[str, ...]
    """A command of the program, with the image's name, that fails unless it has that image."""
    start: tuple[str, ...]
    """Words of the program before the folders to mount."""
    mount: str
    """Words that mount a folder at its own path."""
    words: tuple[str, ...] = ()
    """Flags for GPUs, the user's flags, and the image."""
    writes_id: str = ""
    """A flag that writes a container's ID to a file; empty: none outlives its program."""

    def around(
        self, argv: Iterable[str], *, environment: Mapping[str, str], request: LaunchRequest
    ) -> tuple[str, ...]:
        """Return the command that runs another one in this image, with these variables."""
        mounts = (
            self.mount.format(folder)
            for folder in dict.fromkeys((str(AGENT_FOLDER), request.folder, *request.folders))
        )
        assignments = (f"{name}={value}" for name, value in environment.items())
        run = environment.get(RUN_ID)
        file = CONTAINER_FILE.format(run=run, number=token_hex(4), program=self.start[0])
        return (
            *self.start,
            *((self.writes_id.format(file),) if self.writes_id and run else ()),
            *mounts,
            *self.words,
            "sh",
            "-c",
            IN_FOLDER,
            request.folder,
            *assignments,
            *argv,
        )


@dataclass(frozen=True, kw_only=True)
class UsersCommand(Launcher):
    """Ranks are started by the command's own outermost launcher, or by its program."""

    chooses_hosts: ClassVar[bool] = True
    line: CommandLine
    inherited: Mapping[str, str]
    """The user's environment, with the right programs first on PATH."""
    seed_flag: str | None = None
    """The flag by which its script takes the seed of a launch."""
    image: Image | None = None
    """The image that all of it runs in."""

    @cached_property
    def is_open_mpi(self) -> bool:
        """Whether its ``mpirun`` is Open MPI's."""
        mpirun = self.line.find(MPIRUN)
        if mpirun is None or self.is_in_container:
            return True
        installed = installed_mpi(self.line.words[mpirun.flags_at - 1], self.inherited["PATH"])
        return installed is None or installed.name == OPEN_MPI

    @property
    def is_in_container(self) -> bool:
        """Whether an image has the programs."""
        return self.image is not None or Path(self.line.words[0]).name in CONTAINERS

    def typed(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        return (self._started(HERE, self._filled(request).words, request.environment, request),)

    def _started(
        self,
        host: str,
        argv: tuple[str, ...],
        environment: Mapping[str, str],
        request: LaunchRequest,
    ) -> HostCommand:
        if self.image:
            argv, environment = (
                self.image.around(argv, environment=environment, request=request),
                {},
            )
        return HostCommand(host=host, argv=argv, environment=environment, inherited=self.inherited)

    def commands(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        """The command, on every host where it is a torchrun that several hosts start."""
        line, environment = self._filled(request), self._for_ranks(request)
        lines = [(HERE, line)]
        if line.kind == TORCHRUN and len(request.hosts) > 1:
            lines = for_each_host(line, [entry.host for entry in request.hosts])
        # an srun without --export follows it
        exported_names = self.inherited.get(SLURM_EXPORT_ENV, "ALL")
        exported = (
            {}
            if "ALL" in exported_names
            else {SLURM_EXPORT_ENV: ",".join([exported_names, *environment])}
        )
        root = dict.fromkeys(ALLOW_ROOT, "1") if request.as_root else {}
        return tuple(
            self._started(
                host,
                with_variables(with_agent_path(command), environment, is_open_mpi=self.is_open_mpi),
                environment | root | exported,
                request,
            )
            for host, command in lines
        )

    def _filled(self, request: LaunchRequest) -> CommandLine:
        values = {"{arm}": request.arm, "{launch}": request.launch, "{seed}": str(request.seed)}
        words = list(self.line.words)
        for placeholder, value in values.items():
            words = [word.replace(placeholder, value) for word in words]
        line = command_of(words)
        return with_seed(line, self.seed_flag, request.seed) if self.seed_flag else line

    def _for_ranks(self, request: LaunchRequest) -> dict[str, str]:
        """All variables that must reach its ranks, with those that load the agent."""
        users_path = request.environment.get(PYTHONPATH, self.inherited.get(PYTHONPATH, ""))
        environment = {
            **request.environment,
            PYTHONPATH: os.pathsep.join(filter(None, [str(AGENT_FOLDER), users_path])),
        }
        # it sees the home folder, /tmp and the current folder
        if self.is_in_container and not self.image:
            for name in ("APPTAINER_BIND", "SINGULARITY_BIND"):
                environment[name] = ",".join(
                    filter(None, [self.inherited.get(name), str(AGENT_FOLDER), *request.folders])
                )
        return environment


def with_variables(
    line: CommandLine, names: Iterable[str], *, is_open_mpi: bool = True
) -> tuple[str, ...]:
    """Return the words of a command that passes these variables on, where its launcher does not do
    so by itself.

    ``is_open_mpi``: whether its ``mpirun`` is Open MPI's, which takes each by a flag.
    """
    words, names = list(line.words), list(names)
    for launcher in reversed(line.launchers):
        exported = launcher.value("export")
        if launcher.kind == SRUN and exported is not None and "ALL" not in exported.split(","):
            variables = ",".join([*([] if exported == "NONE" else [exported]), *names])
            index = launcher.flags["export"][0]
            if "=" in words[index]:
                words[index] = f"--export={variables}"
            else:
                words[index + 1] = variables
        elif launcher.kind == MPIRUN and is_open_mpi:
            passed = {
                word.partition("=")[0] for flag, word in itertools.pairwise(words) if flag == "-x"
            }
            words[launcher.flags_at : launcher.flags_at] = [
                word for name in names if name not in passed for word in ("-x", name)
            ]
    return tuple(words)


def with_agent_path(line: CommandLine) -> CommandLine:
    """Return the command with the agent's folder at the front of a PYTHONPATH that it sets
    itself.
    """
    start = f"{PYTHONPATH}="
    words = [
        word.replace(start, f"{start}{AGENT_FOLDER}:", 1) if word.startswith(start) else word
        for word in line.words
    ]
    return command_of(words)


def for_each_host(line: CommandLine, hosts: Sequence[str]) -> list[tuple[str, CommandLine]]:
    """Return the command of each host for a torchrun on several hosts.

    Each has its node rank, and all meet at the first.
    """
    launcher = line.launchers[0]
    is_static = launcher.value("rdzv-backend") in (None, "static")
    commands = []
    for node, host in enumerate(hosts):
        required_flags = {"nnodes": str(len(hosts))}
        required_flags |= {"node-rank": str(node), "master-addr": hosts[0]} if is_static else {}
        added = [
            word
            for name, value in required_flags.items()
            if name not in launcher.flags
            for word in (f"--{name}", value)
        ]
        words, at = line.words, launcher.flags_at
        commands.append((host, command_of([*words[:at], *added, *words[at:]])))
    return commands


def with_seed(line: CommandLine, flag: str, seed: int) -> CommandLine:
    """Return the command with a seed for its script: replaces the flag's value, or adds the flag at
    the end.
    """
    words = list(line.words)
    script_at = line.launchers[-1].command_at if line.launchers else 0
    for index in range(script_at, len(words)):
        if words[index] == flag and index + 1 < len(words):
            words[index + 1] = str(seed)
            break
        if words[index].startswith(f"{flag}="):
            words[index] = f"{flag}={seed}"
            break
    else:
        words += [flag, str(seed)]
    return command_of(words)
