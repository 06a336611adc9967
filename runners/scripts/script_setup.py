"""Resolves arms by command: where they start, by which programs, in which environment, and what their launchers need besides."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from backends.base import WHILE_STOPPED
from measurement.addresses import free_port
from measurement.conditions.disturbing_variables import KEEP_FREED_MEMORY
from measurement.environment import DISTURBING, PER_RANK, SECRET, STEERING
from measurement.errors import PlanError, UnavailableError, about
from measurement.plans.plan import Arm, Plan
from measurement.probes.installed_libraries import OPEN_MPI, installed_mpi
from runners.hosts.placement import Placement
from runners.launchers import HERE, HostCommand, known_rank_variables, without_rank_variables
from runners.launchers.carried_variables import carrying, on_hosts, seeded
from runners.launchers.command_lines import (
    CONTAINERS,
    HOROVODRUN,
    MPIRUN,
    PYTHON,
    SRUN,
    TORCHRUN,
    CommandLine,
    blocking_flag,
    read_command,
)
from runners.launchers.mpirun import ALLOW_ROOT
from runners.launchers.slurm_job import OVERLAP, shared_cores
from runners.planning.arms import require_driven, require_no_secrets, seed_of
from runners.planning.command_place import CommandPlace, activated, require_program, resolve_place
from runners.planning.launched_arms import ArmStart, LaunchedArm
from runners.processes import remote
from runners.processes.local import OUR_PYTHON
from runners.processes.run_processes import RUN_ID
from runners.scripts.learned import Learned

AGENT_FOLDER = Path(__file__).resolve().parents[2] / "measurement" / "agent"
PYTHONPATH = "PYTHONPATH"
MASTER_PORT = "MASTER_PORT"
MEETING = ("MASTER_ADDR", MASTER_PORT)
SLURM_EXPORT_ENV = "SLURM_EXPORT_ENV"
FOR_LAUNCHERS = (*ALLOW_ROOT, OVERLAP, SLURM_EXPORT_ENV)
"""What a start adds to the environment for launchers alone. All else is for ranks, on other hosts, too."""
BESIDE_PYTHON = (TORCHRUN, HOROVODRUN, PYTHON)
"""Programs that an environment must have itself: another environment's would run the script there."""
SOURCES = (".py", ".sh", ".yaml", ".yml", ".toml", ".json", ".cfg")
MOST_SOURCE_BYTES = 1 << 20
FOLDER_FLAGS = ("wdir", "wd", "D", "chdir")


@dataclass(frozen=True, kw_only=True)
class ScriptSetup(LaunchedArm):
    """An arm by command with its programs and folders found. Its launcher is the outermost, or the program in its place."""

    is_script: ClassVar[bool] = True
    line: CommandLine
    inherited: Mapping[str, str]
    """The user's environment, with the right programs first on PATH."""
    learned: Learned | None = None
    """What its trial has shown; None: in the trial itself."""

    def sources(self) -> dict[str, Path]:
        """Files that the command names, under the arm's name. None of a commit."""
        paths = [self.place.typed_in / word for word in self.line.words] if self.place.commit is None else []
        shown = [path for path in paths if path.suffix in SOURCES and path.is_file() and path.stat().st_size < MOST_SOURCE_BYTES]
        return {f"{self.name}/{path.name}": path for path in shown}

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
        return Path(self.line.words[0]).name in CONTAINERS

    @property
    def needs_port(self) -> bool:
        """Whether its ranks may meet at a port that the script itself falls back to, which serves one arm only."""
        names_it = MASTER_PORT in self.inherited or any(MASTER_PORT in word for word in self.line.words)
        return self.line.kind in (SRUN, MPIRUN) and not names_it

    def placement(self, whole: Placement) -> Placement:
        return whole.keeping_hosts(self.plan.world_size)

    def commands(self, start: ArmStart) -> tuple[HostCommand, ...]:
        placement, own = start.placement, self._variables(start)
        line, flag = self.line, self.plan.scripts.seed_flag
        line = seeded(line, flag, seed_of(self.plan, start.launch)) if flag else line
        several = not placement.is_local and len(placement.hosts) > 1 and line.kind == TORCHRUN
        lines = on_hosts(line, [entry.host for entry in placement.hosts]) if several else [(HERE, line)]
        port = placement.free_port() if several else free_port()
        own |= {MASTER_PORT: str(port)} if MASTER_PORT in self.inherited or self.needs_port else {}
        carried = {name: value for name, value in own.items() if name not in FOR_LAUNCHERS} | {RUN_ID: start.run_id}
        return tuple(
            HostCommand(
                host=host,
                argv=carrying(one, carried, port=port, is_open_mpi=self.is_open_mpi),
                environment=own,
                inherited=self.inherited if host in placement.here else self._elsewhere(),
                folder=self.place.folder,
            )
            for host, one in lines
        )

    def command(self, placement: Placement, seed: int) -> str:
        flag, asked = self.plan.scripts.seed_flag, self.arm.command or ""
        line = shlex.join(seeded(self.line, flag, seed).words) if flag else asked
        return self.place.shell_line(line, environment=self.chosen, path=self.inherited["PATH"])

    @property
    def environment(self) -> dict[str, str]:
        threads = {} if self.plan.threads is None else {"OMP_NUM_THREADS": str(self.plan.threads)}
        return threads | self.arm.environment

    def _variables(self, start: ArmStart) -> dict[str, str]:
        """What a start adds to the environment."""
        chosen = self.chosen
        freed = KEEP_FREED_MEMORY if self.plan.freed_memory == "keep" else {}
        users_path = chosen.get(PYTHONPATH, self.inherited.get(PYTHONPATH, ""))
        path = os.pathsep.join([str(AGENT_FOLDER), *([users_path] if users_path else [])])
        root = dict.fromkeys(ALLOW_ROOT, "1") if os.geteuid() == 0 else {}
        of_arm = self.arm.model_dump(include={"samples_per_step", "iteration_ends", "untimed"})
        of_arm |= {"python": sys.executable, "ranks": self.plan.world_size, **lists_for_agent(), **start.state}
        agent = {PYTHONPATH: path} | self.told(start, **of_arm)
        found = WHILE_STOPPED | freed | root | shared_cores(os.environ) | self._mounts(start) | chosen | agent | start.padding
        return found | self._exported(found)

    def _exported(self, found: Mapping[str, str]) -> dict[str, str]:
        """An srun without ``--export`` follows this variable."""
        given = self.inherited.get(SLURM_EXPORT_ENV, "ALL")
        names = [given, RUN_ID, *(name for name in found if name not in FOR_LAUNCHERS)]
        return {} if "ALL" in given else {SLURM_EXPORT_ENV: ",".join(names)}

    def _mounts(self, start: ArmStart) -> dict[str, str]:
        """An image sees the home folder, /tmp and the current folder; the agent may lie elsewhere."""
        if not self.is_in_container:
            return {}
        needed = [str(AGENT_FOLDER), str(start.key_file.parent)]
        return {
            name: ",".join([*([self.inherited[name]] if name in self.inherited else []), *needed])
            for name in ("APPTAINER_BIND", "SINGULARITY_BIND")
        }

    def _elsewhere(self) -> dict[str, str]:
        """What goes to another host of the user's environment."""
        return {name: value for name, value in remote.forwarded_environment().items() if name not in OUR_PYTHON} | {
            "PATH": self.inherited["PATH"]
        }


def lists_for_agent() -> dict[str, Any]:
    """What the agent must know alike: the rank variables of launchers, and which variables ranks report."""
    families = [list(one.family) for one in known_rank_variables()]
    return {"families": families, "recorded": [*STEERING, *DISTURBING], "left_out": PER_RANK, "secret": SECRET.pattern}


def resolve_scripts(plan: Plan) -> dict[str, ScriptSetup]:
    """Resolve every arm of a plan of commands, the control included; returns them by name.

    Raises:
        PlanError: a folder, a Python or a program is not there, or the agent could not arrive.
    """
    require_driven(plan)
    return {name: _resolved(name, arm, plan) for name, arm in plan.compared_arms().items()}


def _resolved(name: str, arm: Arm, plan: Plan) -> ScriptSetup:
    assert arm.command is not None
    require_no_secrets(plan, arm)
    with about(f"arm '{name}'"):
        line = read_command(arm.command)
        if flag := blocking_flag(line):
            raise PlanError(f"python {flag} does not read PYTHONPATH, by which Ringside's agent arrives; leave that flag out")
        moves = any(flag in one.flags for one in line.launchers for flag in FOLDER_FLAGS)
        place = resolve_place(name, arm, plan, file=None if moves else line.script)
        if place.repository and (named := next((word for word in line.words if word.startswith(f"{place.repository}/")), None)):
            raise PlanError(f"'{named}' lies where it is, and not in the commit; name it from '{place.typed_in}'")
        setup = ScriptSetup(
            name=name,
            arm=arm,
            plan=plan.model_copy(update={"world_size": arm.ranks or plan.world_size}),
            launcher_reference=line.kind or Path(line.words[0]).name,
            place=place,
            line=line,
            inherited=_inherited(place, line),
        )
        if not setup.is_in_container:
            _require_programs(setup)
    return setup


def _inherited(place: CommandPlace, line: CommandLine) -> dict[str, str]:
    """Return the user's whole environment, as the command has it where it is typed, with the arm's Python first."""
    found = without_rank_variables(os.environ)
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # the user's own, by which ranks without a launcher of torch's meet
        found |= {name: os.environ[name] for name in MEETING if name in os.environ}
    path, own = found.get("PATH", os.defpath), str(Path(sys.executable).parent)
    names = [line.words[0], *(line.words[one.named] for one in line.launchers)]
    only_ours = [name for name in names if shutil.which(name, path=path) is None and shutil.which(name, path=own)]
    python = place.python or (sys.executable if only_ours else None)
    if python is None:
        return found
    return {name: value for name, value in found.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")} | activated(python, path)


def _require_programs(setup: ScriptSetup) -> None:
    """Refuse programs and files that are not there, before anything starts."""
    line, place = setup.line, setup.place
    words = [line.words[0], *(line.words[one.named] for one in line.launchers)]
    words += [line.words[line.python]] if line.python is not None else []
    remedy = "activate its environment, or give its python (--python-a, --python-b)"
    for word in dict.fromkeys(words):
        found = require_program(word, path=setup.inherited["PATH"], folder=place.typed_in, remedy=remedy)
        if place.python and word in BESIDE_PYTHON and found.parent != Path(place.python).parent:
            raise UnavailableError(f"'{word}' is not beside python '{setup.arm.python}'; install it there", lack=f"no {word}")
    if place.file and place.commit is None and not (place.typed_in / place.file).is_file():
        raise PlanError(f"'{place.file}' is not in '{place.typed_in}'; give its path from there, or directory")
