"""The only module that reads rank variables from the environment.

Each launcher's module names those that it sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from measurement.agent.ringside_agent.place import RENDEZVOUS, VariableNames, World, read_place
from measurement.errors import LaunchError, cut


@dataclass(frozen=True, kw_only=True)
class RankVariables:
    """The names of the variables from which a rank reads its place."""

    name: str
    """The launcher's name, for records."""
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    node_rank: str | None = None
    gives: frozenset[str] = frozenset()
    """What a rank that finds these variables can count on (``World.gives``)."""
    others: tuple[str, ...] = ()
    """Prefixes of further variables that belong to a rank."""

    def are_set(self, environment: Mapping[str, str]) -> bool:
        """Whether this process was started as such a rank."""
        return all(name in environment for name in (self.rank, self.world_size, self.local_rank))

    @property
    def names(self) -> VariableNames:
        """The names alone."""
        return VariableNames(
            self.name,
            self.rank,
            self.world_size,
            self.local_rank,
            self.local_world_size,
            self.node_rank,
        )

    def read(self, environment: Mapping[str, str]) -> World:
        """The rank's place.

        Raises:
            LaunchError: a variable does not hold a number that fits.
        """
        try:
            world = read_place(environment, self.names)
        except ValueError as error:
            raise LaunchError(
                f"the variables of {self.name} do not fit together: {cut(str(error))}; start with"
                " one launcher"
            ) from error
        return replace(
            world, gives=self.gives | ({RENDEZVOUS} if "MASTER_ADDR" in environment else set())
        )

    def belong(self, name: str) -> bool:
        """Whether a variable belongs to a rank."""
        return name in self.names[1:] or name.startswith(self.others or ("\0",))

    def meeting_place(self, environment: Mapping[str, str]) -> dict[str, str]:
        """MASTER_ADDR and MASTER_PORT from this launcher's variables; empty if it sets them itself,
        or they do not follow.
        """
        return {}


@dataclass(frozen=True, kw_only=True)
class UnknownLauncher:
    """A launcher that Ringside does not support.

    Its variables show that a process is one of several.
    """

    name: str
    rank: tuple[str, ...]
    """Set in each of its processes; any of these."""
    size: tuple[str, ...]
    """The number of processes; the first variable that is set counts."""


UNKNOWN_LAUNCHERS = (
    UnknownLauncher(
        name="srun (Slurm)", rank=("SLURM_STEP_ID",), size=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    ),
    UnknownLauncher(name="jsrun", rank=("JSM_NAMESPACE_RANK",), size=("JSM_NAMESPACE_SIZE",)),
    UnknownLauncher(name="PALS", rank=("PALS_RANKID",), size=("PMI_SIZE", "PALS_SIZE")),
    UnknownLauncher(
        name="a PMI launcher",
        rank=("PMI_RANK", "PMI_ID", "PMIX_RANK"),
        size=("PMI_SIZE", "SLURM_STEP_NUM_TASKS"),
    ),
    UnknownLauncher(name="blaunch (LSF)", rank=("LSF_PM_TASKID",), size=("LSB_DJOB_NUMPROC",)),
)
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
    for launcher in UNKNOWN_LAUNCHERS:
        _refuse_several(environment, launcher)
    return World()


def _refuse_several(environment: Mapping[str, str], launcher: UnknownLauncher) -> None:
    """Refuse an unsupported launcher's processes, each of which would take itself for a world of
    one.
    """
    marker = next((name for name in launcher.rank if name in environment), None)
    if marker is None or (marker == "SLURM_STEP_ID" and not is_slurm_task(environment)):
        return
    size = next((name for name in launcher.size if name in environment), None)
    if size is not None and environment[size].strip() == "1":
        return
    evidence = f"{size or marker}={cut(environment[size or marker])}"
    raise LaunchError(
        f"{launcher.name} started this process as one of several ({evidence}), and Ringside does"
        " not read its variables: each would be a world of 1; start the ranks with horovodrun or"
        " mpirun inside the job, or with torchrun, once per host"
    )


def is_slurm_task(environment: Mapping[str, str]) -> bool:
    """Whether this process is a task of an ``srun``, not a batch script or a shell of
    ``salloc``.
    """
    step = environment.get("SLURM_STEP_ID", "")
    return re.fullmatch("[0-9]{1,10}", step) is not None and int(step) < FIRST_SPECIAL_STEP
