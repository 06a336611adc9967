"""Flags that are made of the fields of models: types, bounds, defaults, what counts as given, and a
help that can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer
from pydantic import BaseModel, ConfigDict, Field
from typer.testing import CliRunner

from runners.flags import Flag, command, command_to_repeat, values_of


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
    app.command()(command(lambda given: read.update(values_of(given, Options)), names, text="Try."))
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


def test_bounds_are_the_fields():
    given, result = run("--steps", "0")
    assert (given, result.exit_code) == ({}, 2)
    assert "Invalid value for '--steps': " in result.output


def test_a_word_that_is_not_on_the_list_is_refused():
    given, result = run("--kind", "three")
    assert (given, result.exit_code) == ({}, 2)
    assert "'three' is not one of 'one', 'two'" in result.output


def test_the_command_to_repeat_is_this_one_with_its_folder(monkeypatch):
    monkeypatch.setattr("sys.argv", ["ringside", "compare", "local"])
    assert command_to_repeat(Path("out")) == ["ringside", "compare", "local", "-o", "out"]
    monkeypatch.setattr("sys.argv", ["ringside", "compare", "-o", "mine", "local"])
    assert command_to_repeat(Path("mine")) == ["ringside", "compare", "-o", "mine", "local"]


def test_help_is_the_fields_docstring_with_its_default():
    help_text = " ".join(run("--help")[1].output.split())
    assert (
        "--steps <int range> Steps in each block. Default: as many as there are. [default: 3; x>=1]"
        in help_text
    )
    assert "--kind <one|two>" in help_text
