"""A command of the user's as a launcher: what it says is kept, and its ranks find the agent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import ClassVar

from measurement.probes.installed_libraries import OPEN_MPI, installed_mpi
from runners.launchers.base import HERE, HostCommand, Launcher, RankCommand
from runners.launchers.carried_variables import with_variables
from runners.launchers.command_lines import CONTAINERS, MPIRUN, TORCHRUN, CommandLine, command_of
from runners.launchers.mpirun import ALLOW_ROOT

AGENT_FOLDER = Path(__file__).resolve().parents[2] / "measurement" / "agent"
PYTHONPATH = "PYTHONPATH"
SLURM_EXPORT_ENV = "SLURM_EXPORT_ENV"
THERE = 'cd -- "$0" && exec env "$@"'
"""For any shell: a command in a folder, behind its variables."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image in which a command runs; or a program that runs any, before one is named."""

    name: str = ""
    """With the program, and the ID where that tells one."""
    shows: tuple[str, ...]
    """Words of the program that fail unless it has an image, whose name stands in them."""
    start: tuple[str, ...]
    """Its words before folders that it is to show."""
    mount: str
    """Such a folder, at its own path."""
    words: tuple[str, ...] = ()
    """Its flags for GPUs, the user's flags, and the image."""

    def around(self, argv: Iterable[str], *, environment: Mapping[str, str], job: RankCommand) -> tuple[str, ...]:
        """Return the command that runs another one in it, with these variables."""
        shown = (self.mount.format(one) for one in dict.fromkeys((str(AGENT_FOLDER), job.folder, *job.folders)))
        given = (f"{name}={value}" for name, value in environment.items())
        return (*self.start, *shown, *self.words, "sh", "-c", THERE, job.folder, *given, *argv)


@dataclass(frozen=True, kw_only=True)
class UsersCommand(Launcher):
    """Its own launcher is the outermost, or the program in its place."""

    chooses_hosts: ClassVar[bool] = True
    line: CommandLine
    inherited: Mapping[str, str]
    """The user's environment, with the right programs first on PATH."""
    seed_flag: str | None = None
    """By which its script takes the seed of a launch."""
    image: Image | None = None
    """In which all of it runs."""

    @cached_property
    def is_open_mpi(self) -> bool:
        """Whether its ``mpirun`` is Open MPI's."""
        one = self.line.find(MPIRUN)
        if one is None or self.is_in_container:
            return True
        found = installed_mpi(self.line.words[one.at - 1], self.inherited["PATH"])
        return found is None or found.name == OPEN_MPI

    @property
    def is_in_container(self) -> bool:
        """Whether an image has the programs."""
        return self.image is not None or Path(self.line.words[0]).name in CONTAINERS

    def typed(self, job: RankCommand) -> tuple[HostCommand, ...]:
        return (self._started(HERE, self._filled(job).words, job.environment, job),)

    def _started(self, host: str, argv: tuple[str, ...], environment: Mapping[str, str], job: RankCommand) -> HostCommand:
        if self.image:
            argv, environment = self.image.around(argv, environment=environment, job=job), {}
        return HostCommand(host=host, argv=argv, environment=environment, inherited=self.inherited)

    def commands(self, job: RankCommand) -> tuple[HostCommand, ...]:
        """The command, on every host where it is a torchrun that several hosts start."""
        line, environment = self._filled(job), self._for_ranks(job)
        starts_everywhere = not job.is_local and len(job.hosts) > 1 and line.kind == TORCHRUN
        lines = for_each_host(line, [entry.host for entry in job.hosts]) if starts_everywhere else [(HERE, line)]
        given = self.inherited.get(SLURM_EXPORT_ENV, "ALL")  # which an srun without --export follows
        exported = {} if "ALL" in given else {SLURM_EXPORT_ENV: ",".join([given, *environment])}
        root = dict.fromkeys(ALLOW_ROOT, "1") if job.as_root else {}
        return tuple(
            self._started(
                host,
                with_variables(with_agent_path(one), environment, is_open_mpi=self.is_open_mpi),
                environment | root | exported,
                job,
            )
            for host, one in lines
        )

    def _filled(self, job: RankCommand) -> CommandLine:
        values = {"{arm}": job.arm, "{launch}": job.launch, "{seed}": str(job.seed)}
        line = command_of([reduce(lambda word, one: word.replace(*one), values.items(), word) for word in self.line.words])
        return with_seed(line, self.seed_flag, job.seed) if self.seed_flag else line

    def _for_ranks(self, job: RankCommand) -> dict[str, str]:
        """All variables that must reach its ranks, those by which the agent arrives too."""
        users_path = job.environment.get(PYTHONPATH, self.inherited.get(PYTHONPATH, ""))
        environment = {**job.environment, PYTHONPATH: os.pathsep.join(filter(None, [str(AGENT_FOLDER), users_path]))}
        if self.is_in_container and not self.image:  # it sees the home folder, /tmp and the current folder
            for name in ("APPTAINER_BIND", "SINGULARITY_BIND"):
                environment[name] = ",".join(filter(None, [self.inherited.get(name), str(AGENT_FOLDER), *job.folders]))
        return environment


def with_agent_path(line: CommandLine) -> CommandLine:
    """Return the command with the agent's folder before a PYTHONPATH that it sets itself."""
    own = f"{PYTHONPATH}="
    return command_of([f"{own}{AGENT_FOLDER}:{word.removeprefix(own)}" if word.startswith(own) else word for word in line.words])


def for_each_host(line: CommandLine, hosts: Sequence[str]) -> list[tuple[str, CommandLine]]:
    """Return the command of each host, for a torchrun that several hosts start: each has its number, and meets at the first."""
    one = line.launchers[0]
    is_static = one.value("rdzv-backend") in (None, "static")
    found = []
    for node, host in enumerate(hosts):
        wanted = {"nnodes": str(len(hosts))}
        wanted |= {"node-rank": str(node), "master-addr": hosts[0]} if is_static else {}
        added = [word for name, value in wanted.items() if name not in one.flags for word in (f"--{name}", value)]
        found.append((host, command_of([*line.words[: one.at], *added, *line.words[one.at :]])))
    return found


def with_seed(line: CommandLine, flag: str, seed: int) -> CommandLine:
    """Return the command whose script is given a seed by a flag: in the place of one that it has, or behind all else."""
    words = list(line.words)
    first = line.launchers[-1].program if line.launchers else 0
    for index in range(first, len(words)):
        if words[index] == flag and index + 1 < len(words):
            words[index + 1] = str(seed)
            break
        if words[index].startswith(f"{flag}="):
            words[index] = f"{flag}={seed}"
            break
    else:
        words += [flag, str(seed)]
    return command_of(words)
