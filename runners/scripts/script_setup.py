"""Resolves arms by command: where they start, with which programs and environment, what their
launchers need, and the parameters that all start with if the plan asks for that
(``scripts.same_start``).
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from backends.base import WHILE_STOPPED
from backends.single import ScriptBackend
from measurement.agent.ringside_agent.settings import IMPOSABLE, is_imposable
from measurement.environment import KEEP_FREED_MEMORY, PER_RANK, SECRET, recorded_names, refusal
from measurement.errors import LaunchError, PlanError, UnavailableError, about, unknown_name
from measurement.files import write_whole
from measurement.plans.plan import Plan
from measurement.plans.sections import Arm
from measurement.records.record import RankReport
from runners.hosts.placement import Placement
from runners.launchers import known_rank_variables, without_rank_variables
from runners.launchers.command_lines import (
    HOROVODRUN,
    PYTHON,
    PYTHON_NAME,
    TORCHRUN,
    CommandLine,
    read_command,
)
from runners.launchers.users_command import UsersCommand
from runners.planning.arm_specs import ArmSpec
from runners.planning.arms import require_driven, require_no_secrets
from runners.planning.command_place import (
    CommandPlace,
    activated,
    interpreter,
    require_program,
    resolve_place,
)
from runners.processes import remote
from runners.scripts.environments import with_image, with_packages

DEFAULT_PORTS = (29400, 29500)
"""Where torchrun's ranks meet by default."""
PORT_PATTERN = re.compile(
    r"(?:(?:master|main[_-]process)[_-]port|rdzv[_-]endpoint|tcp://)\W{0,6}(?:[^\s'\"]*:)?(\d{2,5})\b",
    re.IGNORECASE,
)
"""``MASTER_PORT=1234``, ``os.environ["MASTER_PORT"] = "1234"``, ``--rdzv-endpoint host:1234``,
``tcp://host:1234``."""
MASTER_PORT = "MASTER_PORT"
MEETING = ("MASTER_ADDR", MASTER_PORT)
BESIDE_PYTHON = (TORCHRUN, HOROVODRUN, PYTHON)
"""Programs that an environment must have itself: those of another would run the script there."""
SOURCES = (".py", ".sh", ".yaml", ".yml", ".toml", ".json", ".cfg")
MAX_SOURCE_BYTES = 1 << 20
HOROVODS_FLAGS = {"autotune": "HOROVOD_AUTOTUNE", "timeline-filename": "HOROVOD_TIMELINE"}
"""Flags of horovodrun and the variables that they set."""
FOLDER_FLAGS = ("wdir", "wd", "D", "chdir")
FIRST_STATE = "first-state.pt"
"""In the results folder."""
COPY_TIMEOUT_S = 120.0
PUT = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'


def named_ports(texts: Iterable[str]) -> set[int]:
    """The ports that a command, its scripts and its variables name for ranks to meet at. Pure."""
    return {int(port) for text in texts for port in PORT_PATTERN.findall(text)}


def lists_for_agent() -> dict[str, Any]:
    """Lists that the agent shares with the driver: the rank variables of launchers, and which
    variables ranks report.
    """
    rank_variables = [list(variables.names) for variables in known_rank_variables()]
    return {
        "rank_variables": rank_variables,
        "recorded": recorded_names(),
        "left_out": PER_RANK,
        "secret": SECRET.pattern,
    }


def resolve_scripts(plan: Plan) -> dict[str, ArmSpec]:
    """Resolve every arm of a plan of commands, including the control; returns them by name.

    Raises:
        PlanError: a folder, a Python or a program does not exist, or the agent could not be loaded.
    """
    require_driven(plan)
    return {name: _resolved(name, arm, plan) for name, arm in plan.compared_arms().items()}


def _resolved(name: str, arm: Arm, plan: Plan) -> ArmSpec:
    assert arm.command is not None
    require_no_secrets(plan, arm)
    if unknown := [setting for setting in arm.impose if not is_imposable(setting)]:
        raise PlanError(f"arm '{name}': {unknown_name('setting to impose', unknown[0], IMPOSABLE)}")
    with about(f"arm '{name}'"):
        line = read_command(arm.command)
        if not arm.image and any(other.packages is not None for other in plan.arms.values()):
            arm = arm.model_copy(update={"python": _python_with_packages(arm, line)})
        moves = any(flag in launcher.flags for launcher in line.launchers for flag in FOLDER_FLAGS)
        place = resolve_place(name, arm, plan, file=None if moves else line.file)
        if place.repository and (
            named := next(
                (word for word in line.words if word.startswith(f"{place.repository}/")), None
            )
        ):
            raise PlanError(
                f"'{named}' is a path outside the commit; name it relative to '{place.typed_in}'"
            )
        image = with_image(arm.image) if arm.image else None
        inherited = _inherited(place, [] if image else line.programs)
        launcher = UsersCommand(
            line=line, inherited=inherited, seed_flag=plan.scripts.seed_flag, image=image
        )
        if not launcher.is_in_container:
            _require_programs(launcher, place, python=arm.python)
        _require_undisturbed(line, {**launcher.inherited, **plan.environment, **arm.environment})
        freed = KEEP_FREED_MEMORY if plan.freed_memory == "keep" else {}
        threads = {} if plan.threads is None else {"OMP_NUM_THREADS": str(plan.threads)}
        sources, own_port = _sources(name, place, line), launcher.inherited.get(MASTER_PORT, "")
        texts = [
            *(path.read_text(encoding="utf-8", errors="replace") for path in sources.values()),
            *(" ".join(line.words), str(plan.environment), str(arm.environment)),
            f"{MASTER_PORT}={own_port}",
        ]
        agent = arm.model_dump(include={"samples_per_step", "iteration_ends", "untimed", "impose"})
        agent["perturbs"] = name == plan.control_name
        return ArmSpec(
            name=name,
            arm=arm,
            plan=plan,
            launcher_reference=line.kind or Path(line.words[0]).name,
            recorded=place.recorded | {"image": image and image.name},
            place=place,
            backend=ScriptBackend(transport=None),
            launcher=launcher,
            variables=WHILE_STOPPED | freed | threads,
            agent=agent | {"python": sys.executable, "cpu": plan.scripts.cpu, **lists_for_agent()},
            sources=sources,
            named_ports={*DEFAULT_PORTS, *named_ports(texts)},
            may_end=True,
        )


def _python_with_packages(arm: Arm, line: CommandLine) -> str:
    """The Python of an environment with the arm's packages, beside those of the command's own."""
    path = os.environ.get("PATH", os.defpath)
    named_python = arm.python or str(
        _python_of(line, path) or shutil.which("python", path=path) or sys.executable
    )
    return with_packages(interpreter(named_python, is_here=True), arm.packages or "")


def _python_of(line: CommandLine, path: str) -> Path | None:
    """The Python that runs the script of a command; None if another program chooses it."""
    torchrun = line.find(TORCHRUN)
    at = line.python if line.python is not None else torchrun.program_at if torchrun else None
    if at is None or line.words[at] not in line.programs:
        return None
    program = shutil.which(line.words[at], path=path)
    if program is None or PYTHON_NAME.fullmatch(Path(program).name):
        return Path(program) if program else None
    return Path(program).with_name("python")


def _require_undisturbed(line: CommandLine, environment: Mapping[str, str]) -> None:
    """Refuse flags of horovodrun and variables with which Horovod tunes or writes a timeline while
    steps are timed.
    """
    if horovodrun := line.find(HOROVODRUN):
        assigned = dict(
            word.split("=", 1) for word in line.words[: horovodrun.program_at] if "=" in word
        )
        flags = {
            HOROVODS_FLAGS[name]: value or "1"
            for name, (_, value) in horovodrun.flags.items()
            if name in HOROVODS_FLAGS
        }
        if why := refusal({**environment, **assigned, **flags}, ["horovod"]):
            raise PlanError(f"horovodrun with {why}")


def _sources(name: str, place: CommandPlace, line: CommandLine) -> dict[str, Path]:
    """Files that the command names, under the arm's name; none if the arm has a commit."""
    paths = [place.typed_in / word for word in line.words] if place.commit is None else []
    shown = [
        path
        for path in paths
        if path.suffix in SOURCES and path.is_file() and path.stat().st_size < MAX_SOURCE_BYTES
    ]
    return {f"{name}/{path.name}": path for path in shown}


def _inherited(place: CommandPlace, programs: Sequence[str]) -> dict[str, str]:
    """Return the user's whole environment, as in the shell, with the arm's Python first on PATH."""
    environment = without_rank_variables(os.environ)
    # the user set them, for the rendezvous of ranks without torchrun
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        environment |= {name: os.environ[name] for name in MEETING if name in os.environ}
    path, our_folder = environment.get("PATH", os.defpath), str(Path(sys.executable).parent)
    has_only_ours = any(
        shutil.which(name, path=path) is None and shutil.which(name, path=our_folder)
        for name in programs
    )
    python = place.python or (sys.executable if has_only_ours else None)
    if python is None:
        return environment
    for name in ("VIRTUAL_ENV", "PYTHONHOME"):
        environment.pop(name, None)
    return environment | activated(python, path)


def _require_programs(launcher: UsersCommand, place: CommandPlace, *, python: str | None) -> None:
    """Refuse programs and files that do not exist. ``python``: the arm's, as the plan names it."""
    remedy = (
        "activate its environment, or give its python (--python-a, --python-b, or --python for"
        " both)"
    )
    for word in launcher.line.programs:
        program = require_program(
            word, path=launcher.inherited["PATH"], folder=place.typed_in, remedy=remedy
        )
        if place.python and word in BESIDE_PYTHON and program.parent != Path(place.python).parent:
            raise UnavailableError(
                f"'{word}' is not beside python '{python}'; install it there", lack=f"no {word}"
            )
    if place.file and place.commit is None and not (place.typed_in / place.file).is_file():
        raise PlanError(
            f"'{place.file}' is not in '{place.typed_in}'; give its path from there, or directory"
        )


class SharedInitialState:
    """The file with which all scripts start, at one path on all hosts; the baseline's rank 0 writes
    it once.
    """

    def __init__(self, path: Path, placement: Placement) -> None:
        self.path = path.absolute()
        self._placement = placement

    @property
    def is_missing(self) -> bool:
        """Whether no baseline has saved it yet."""
        return not self.path.is_file()

    def agent_settings(self, *, is_baseline: bool) -> dict[str, str]:
        """Settings for an arm's agent: the file, and whether it saves or loads it."""
        return {
            "state_file": str(self.path),
            "state": "save" if is_baseline and self.is_missing else "load",
        }

    def share(self, ranks: Sequence[RankReport]) -> None:
        """Copy the file from rank 0's host to all hosts that do not share the folder.

        Raises:
            LaunchError: a host cannot be reached, or there is no file.
        """
        try:
            writer = ranks[0].host
            if self.is_missing and writer != socket.gethostname():
                name = writer.partition(".")[0]
                sources = (
                    host for host in self._placement.remote if host.partition(".")[0] == name
                )
                if source := next(sources, None):
                    argv = ["cat", str(self.path)]
                    write_whole(self.path, remote.run(source, argv, timeout_s=COPY_TIMEOUT_S))
            content = self.path.read_bytes()
            argv = ["sh", "-c", PUT, "sh", str(self.path)]
            remote.run_on(self._placement.remote, argv, timeout_s=COPY_TIMEOUT_S, stdin=content)
        except (LaunchError, OSError) as error:
            raise LaunchError(
                f"its initial parameters cannot be copied to the other hosts: {error}"
            ) from error
