"""Comparisons of a user's scripts, as they are typed in a folder of theirs, and their plans."""

from __future__ import annotations

import contextlib

import pytest
import yaml

from measurement.records.results import ResultsFolder
from runners.cli import app
from tests.conftest import REPOSITORY, no_process_stays, run_here
from tests.kit.commands import environment
from tests.kit.comparisons import Compared

MEASUREMENT = {
    "launches": 1,
    "rounds": 1,
    "block_steps": 4,
    "control": False,
    "start_timeout_s": 120,
}
"""The shortest one of scripts."""


def ringside_in(folder, *arguments, **variables):
    """As a user runs it in a folder of their own, in an environment that is activated; in this
    process, which has imported it."""

    def command():
        with contextlib.chdir(folder):
            app(list(map(str, arguments)))

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (environment() | {"PYTHONPATH": str(REPOSITORY)} | variables).items():
            patch.setenv(name, value)
        return run_here(command)


def compare_in(folder, *typed, out="out", code=0, **variables):
    """What is typed is measured, and ends with this exit code; nothing of it is left."""
    with no_process_stays():
        done = ringside_in(folder, *typed, "-o", out, **variables)
    assert done.returncode == code, done.stderr + done.stdout
    return Compared(done, ResultsFolder(folder / out))


def write_script_plan(folder, commands, *, measurement=None, **changes):
    """A plan of commands by the names of their arms, of which the first is the baseline."""
    arms = {
        name: {"command": arm} if isinstance(arm, str) else arm for name, arm in commands.items()
    }
    content = {"name": "scripts", "baseline": next(iter(arms)), "arms": arms, **changes}
    content["measurement"] = MEASUREMENT | (measurement or {})
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(content))
    return path
