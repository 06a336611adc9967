"""Flags that are made of the fields of models: types, bounds, defaults, what counts as given, and a
help that can be read."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import typer
from pydantic import BaseModel, ConfigDict, Field
from typer.testing import CliRunner

from measurement.errors import PlanError
from runners.flags import Flag, GroupedCommand, command, command_to_repeat, values_of
from runners.planning.standalone_flags import FLAGS
from runners.standalone.command import command_line


class Options(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    steps: int = Field(default=3, ge=1, lt=10)
    """Steps in ``each`` block. None: as many
    as there are."""
    rate: float | None = Field(default=None, gt=0)
    kind: Literal["one", "two"] = "one"
    folder: Path | None = None
    options: dict[str, int] = {}
    is_whole: bool = False
    later: int = Field(default=30, ge=0)


def run(*arguments, flags=None):
    """What was given, by name, and the result of the command."""
    read = {}
    names = flags or [
        Flag("Own", Options, name, default=None if name == "later" else ...)
        for name in Options.model_fields
    ]
    app = typer.Typer(rich_markup_mode=None)
    app.command(cls=GroupedCommand)(
        command(lambda given: read.update(values_of(given, Options)), names, text="Try.")
    )
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})
    return read, result


def test_what_is_given_has_the_type_of_its_field():
    given, _ = run(
        "--steps",
        "9",
        "--rate",
        "0.5",
        "--folder",
        "a",
        "--options",
        "x=1",
        "--options",
        "y=2",
        "--is-whole",
    )
    expected = {
        "steps": 9,
        "rate": 0.5,
        "folder": Path("a"),
        "options": ["x=1", "y=2"],
        "is_whole": True,
    }
    assert given == {"kind": "one", **expected}


def test_what_is_not_given_is_the_default_or_absent():
    assert run()[0] == {"steps": 3, "kind": "one"}, (
        "neither what has no default nor what the reader has to know of"
    )
    assert run("--later", "0")[0]["later"] == 0


@pytest.mark.parametrize("value", ["0", "10"])
def test_bounds_are_the_fields(value):
    given, result = run("--steps", value)
    assert (given, result.exit_code) == ({}, 2)
    assert "Invalid value for '--steps': " in result.output


def test_a_word_that_is_not_on_the_list_is_refused():
    with pytest.raises(PlanError, match="--kind 'three' is not known; use one or two"):
        raise run("--kind", "three")[1].exception


def test_a_command_that_asks_for_the_same_is_written_with_its_folder():
    flag = partial(Flag, "Own", Options)
    given = {
        flag("kind", is_argument=True): "one",
        flag("options"): ["x=1", "y=2"],
        flag("is_whole"): True,
    }
    given[flag("folder", ("-o", "--folder"))] = Path("a")
    given |= {
        flag("steps"): 3,
        flag("later", default=None): 30,
    }  # a default, and what somebody typed
    words = [
        "ringside",
        "try",
        "one",
        "-o",
        "out",
        "--options",
        "x=1",
        "--options",
        "y=2",
        "--is-whole",
        "--folder",
        "a",
        "--later",
        "30",
    ]
    assert command_to_repeat("try", given, Path("out")) == words


def test_help_is_the_fields_docstring_with_its_default():
    help_text = " ".join(run("--help")[1].output.split())
    assert (
        "Own: --steps <int range> Steps in each block. Default: as many as there are. [default: 3; 1<=x<=9]"
        in help_text
    )
    assert "--kind {one,two}" in help_text


def test_help_of_the_runners_is_in_groups_and_cuts_no_name():
    app = typer.Typer(rich_markup_mode=None)
    app.command(cls=GroupedCommand)(command_line("ddp"))
    help_text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    assert re.findall(r"^(\w+):$", help_text, re.M)[:3] == ["Measuring", "Training", "Launch"]
    for flag in FLAGS:
        assert re.search(rf"^  (-\w, )?{flag.name}[ ,]", help_text, re.M), flag.name
    assert max(map(len, help_text.splitlines())) <= 80
