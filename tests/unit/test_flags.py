"""Flags that are made of the fields of models: types, bounds, defaults, what counts as given, and a
help that can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
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


def run(*arguments):
    """What was given, by name, and the result of the command."""
    read = {}
    flags = [
        Flag("Own", Options, name, default=None if name == "later" else ...)
        for name in Options.model_fields
    ]
    app = typer.Typer(rich_markup_mode=None)
    app.command()(command(lambda given: read.update(values_of(given, Options)), flags, text="Try."))
    return read, CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def test_what_is_given_has_the_type_of_its_field():
    words = "--steps 9 --rate 0.5 --folder a --options x=1 --options y=2 --is-whole"
    assert run(*words.split())[0] == {
        "kind": "one",
        "steps": 9,
        "rate": 0.5,
        "folder": Path("a"),
        "options": ["x=1", "y=2"],
        "is_whole": True,
    }


def test_what_is_not_given_is_the_default_or_absent():
    assert run()[0] == {"steps": 3, "kind": "one"}, (
        "neither what has no default nor what the reader has to know of"
    )
    assert run("--later", "0")[0]["later"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--steps", "0"), "Invalid value for '--steps': "),
        (("--kind", "three"), "'three' is not one of 'one', 'two'"),
    ],
)
def test_what_the_field_does_not_allow_is_refused(words, message):
    given, result = run(*words)
    assert (given, result.exit_code) == ({}, 2)
    assert message in result.output


@pytest.mark.parametrize("typed", ["compare local", "compare local -o out"])
def test_the_command_to_repeat_is_this_one_with_its_folder(monkeypatch, typed):
    monkeypatch.setattr("sys.argv", ["ringside", *typed.split()])
    assert command_to_repeat(Path("out")) == ["ringside", "compare", "local", "-o", "out"]
