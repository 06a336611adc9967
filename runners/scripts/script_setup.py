"""Resolves arms by command: where they start, by which programs, in which environment, and what their launchers need besides."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backends.base import WHILE_STOPPED
from backends.single import OfScript
from measurement.agent.ringside_agent import imposing
from measurement.conditions.disturbing_variables import KEEP_FREED_MEMORY, refusal
from measurement.environment import DISTURBING, PER_RANK, SECRET, STEERING
from measurement.errors import PlanError, UnavailableError, about, unknown_name
from measurement.plans.plan import Arm, Plan
from runners.launchers import known_rank_variables, without_rank_variables
from runners.launchers.command_lines import HOROVODRUN, PYTHON, TORCHRUN, CommandLine, blocking_flag, read_command
from runners.launchers.users_command import UsersCommand
from runners.planning.arm_specs import ArmSpec
from runners.planning.arms import require_driven, require_no_secrets
from runners.planning.command_place import CommandPlace, activated, interpreter, require_program, resolve_place
from runners.planning.meeting_ports import DEFAULTS, named_ports
from runners.scripts.environments import with_image, with_packages
from runners.scripts.frameworks import require_torch
from runners.scripts.other_pythons import python_of

MASTER_PORT = "MASTER_PORT"
MEETING = ("MASTER_ADDR", MASTER_PORT)
BESIDE_PYTHON = (TORCHRUN, HOROVODRUN, PYTHON)
"""Programs that an environment must have itself: another environment's would run the script there."""
SOURCES = (".py", ".sh", ".yaml", ".yml", ".toml", ".json", ".cfg")
MAX_SOURCE_BYTES = 1 << 20
HOROVODS_FLAGS = {"autotune": "HOROVOD_AUTOTUNE", "timeline-filename": "HOROVOD_TIMELINE"}
"""Flags of horovodrun, and the variables that they set."""
FOLDER_FLAGS = ("wdir", "wd", "D", "chdir")


def lists_for_agent() -> dict[str, Any]:
    """What the agent must know alike: the rank variables of launchers, and which variables ranks report."""
    families = [list(one.family) for one in known_rank_variables()]
    return {"families": families, "recorded": [*STEERING, *DISTURBING], "left_out": PER_RANK, "secret": SECRET.pattern}


def resolve_scripts(plan: Plan) -> dict[str, ArmSpec]:
    """Resolve every arm of a plan of commands, the control included; returns them by name.

    Raises:
        PlanError: a folder, a Python or a program is not there, or the agent could not arrive.
    """
    require_driven(plan)
    return {name: _resolved(name, arm, plan) for name, arm in plan.compared_arms().items()}


def _resolved(name: str, arm: Arm, plan: Plan) -> ArmSpec:
    assert arm.command is not None
    require_no_secrets(plan, arm)
    if unknown := [setting for setting in arm.impose if not imposing.is_known(setting)]:
        raise PlanError(f"arm '{name}': {unknown_name('setting to impose', unknown[0], imposing.KNOWN)}")
    with about(f"arm '{name}'"):
        line = read_command(arm.command)
        if not arm.image and any(one.packages is not None for one in plan.arms.values()):
            path = os.environ.get("PATH", os.defpath)
            found = arm.python or str(python_of(line.words, path) or shutil.which("python", path=path) or sys.executable)
            python = interpreter(found, is_here=True)
            arm = arm.model_copy(update={"python": with_packages(python, arm.packages or "")})
        if flag := blocking_flag(line):
            raise PlanError(f"python {flag} does not read PYTHONPATH, by which Ringside's agent arrives; leave that flag out")
        moves = any(flag in one.flags for one in line.launchers for flag in FOLDER_FLAGS)
        place = resolve_place(name, arm, plan, file=None if moves else line.file)
        if place.repository and (named := next((word for word in line.words if word.startswith(f"{place.repository}/")), None)):
            raise PlanError(f"'{named}' lies where it is, and not in the commit; name it from '{place.typed_in}'")
        image = with_image(arm.image) if arm.image else None
        inherited = _inherited(place, [] if image else line.programs)
        launcher = UsersCommand(line=line, inherited=inherited, seed_flag=plan.scripts.seed_flag, image=image)
        if not launcher.is_in_container:
            _require_programs(launcher, place, python=arm.python)
        if place.file and place.commit is None:
            require_torch(place.typed_in / place.file, place.file)
        _require_undisturbed(line, {**launcher.inherited, **plan.environment, **arm.environment})
        freed = KEEP_FREED_MEMORY if plan.freed_memory == "keep" else {}
        threads = {} if plan.threads is None else {"OMP_NUM_THREADS": str(plan.threads)}
        sources, own_port = _sources(name, place, line), launcher.inherited.get(MASTER_PORT, "")
        texts = [*(path.read_text(encoding="utf-8", errors="replace") for path in sources.values()), f"{MASTER_PORT}={own_port}"]
        asked = arm.model_dump(include={"samples_per_step", "iteration_ends", "untimed", "impose"})
        return ArmSpec(
            name=name,
            arm=arm,
            plan=plan,
            launcher_reference=line.kind or Path(line.words[0]).name,
            recorded=place.recorded | {"image": image and image.name},
            place=place,
            backend=OfScript(transport=None),
            launcher=launcher,
            variables=WHILE_STOPPED | freed | threads,
            agent=asked | {"python": sys.executable, "cpu": plan.scripts.cpu, **lists_for_agent()},
            sources=sources,
            named_ports={*DEFAULTS, *named_ports([" ".join(line.words), str(plan.environment), str(arm.environment), *texts])},
            may_end=True,
        )


def _require_undisturbed(line: CommandLine, environment: Mapping[str, str]) -> None:
    """Refuse what has Horovod tune or write a timeline while steps are timed: by flags of horovodrun, or in its environment."""
    if horovodrun := line.find(HOROVODRUN):
        given = dict(word.split("=", 1) for word in line.words[: horovodrun.program_at] if "=" in word)
        flags = {HOROVODS_FLAGS[name]: value or "1" for name, (_, value) in horovodrun.flags.items() if name in HOROVODS_FLAGS}
        if why := refusal({**environment, **given, **flags}, ["horovod"]):
            raise PlanError(f"horovodrun with {why}")


def _sources(name: str, place: CommandPlace, line: CommandLine) -> dict[str, Path]:
    """Files that the command names, under the arm's name. None of a commit."""
    paths = [place.typed_in / word for word in line.words] if place.commit is None else []
    shown = [path for path in paths if path.suffix in SOURCES and path.is_file() and path.stat().st_size < MAX_SOURCE_BYTES]
    return {f"{name}/{path.name}": path for path in shown}


def _inherited(place: CommandPlace, programs: Sequence[str]) -> dict[str, str]:
    """Return the user's whole environment, as the command has it where it is typed, with the arm's Python first."""
    found = without_rank_variables(os.environ)
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # the user's own, by which ranks without a launcher of torch's meet
        found |= {name: os.environ[name] for name in MEETING if name in os.environ}
    path, own = found.get("PATH", os.defpath), str(Path(sys.executable).parent)
    only_ours = [name for name in programs if shutil.which(name, path=path) is None and shutil.which(name, path=own)]
    python = place.python or (sys.executable if only_ours else None)
    if python is None:
        return found
    return {name: value for name, value in found.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")} | activated(python, path)


def _require_programs(launcher: UsersCommand, place: CommandPlace, *, python: str | None) -> None:
    """Refuse programs and files that are not there, before anything starts. ``python``: the arm's own, as the plan names it."""
    remedy = "activate its environment, or give its python (--python-a, --python-b, or --python for both)"
    for word in launcher.line.programs:
        found = require_program(word, path=launcher.inherited["PATH"], folder=place.typed_in, remedy=remedy)
        if place.python and word in BESIDE_PYTHON and found.parent != Path(place.python).parent:
            raise UnavailableError(f"'{word}' is not beside python '{python}'; install it there", lack=f"no {word}")
    if place.file and place.commit is None and not (place.typed_in / place.file).is_file():
        raise PlanError(f"'{place.file}' is not in '{place.typed_in}'; give its path from there, or directory")
