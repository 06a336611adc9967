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
