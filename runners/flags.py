"""Command lines from fields of pydantic models: a flag takes type, default, bounds and help from
its field.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from keyword import iskeyword
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from measurement.errors import PlanError, printable, quoted
from measurement.plans.settings import Section

FlagValues = Mapping["Flag", Any]
"""The flags that were given or have a default, with their values."""
MINUTES = "Minutes to spend; launches and their length are chosen so that intervals are narrow."
"""Help of ``--minutes``."""


@dataclass(frozen=True)
class Flag:
    """One flag, and the field that takes its value."""

    panel: str
    """Heading in ``--help``."""
    model: type[BaseModel]
    field: str
    names: tuple[str, ...] = ()
    """Empty: ``--`` and the name of the field. Messages use the longest."""
    default: Any = ...
    """Ellipsis: the field's default. None: no default."""
    help: str = ""
    """Empty: the docstring of the field."""
    is_argument: bool = False
    """Whether it is given without a name: an argument, not an option."""
    metavar: str | None = None

    @property
    def name(self) -> str:
        """The flag as messages name it."""
        return max(self.names, key=len, default=f"--{self.field.replace('_', '-')}")

    def parameter(self) -> inspect.Parameter:
        """Return the flag as an argument of a function that typer reads."""
        field = self.model.model_fields[self.field]
        kind = _type(field)
        default = field.get_default() if self.default is ... else self.default
        text = self.help or " ".join(
            (field.description or "").replace("``", "").replace("None:", "Default:").split()
        )
        if kind is bool:
            default = False
        elif self.is_argument and field.is_required():
            default = ...
        elif kind == list[str] or default is None:
            kind, default = kind | None, None
        bounds = {
            limit: getattr(bound, name)
            for bound in field.metadata
            for limit, name in (("min", "ge"), ("max", "le"))
            if hasattr(bound, name)
        }
        how: dict[str, Any] = {
            "help": text,
            "rich_help_panel": self.panel,
            "metavar": self.metavar,
            **bounds,
        }
        names = self.names or (self.name,)
        option = (
            typer.Argument(default, **how)
            if self.is_argument
            else typer.Option(default, *names, **how)
        )
        return inspect.Parameter(
            _identifier(self.name), inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind
        )


def _identifier(name: str) -> str:
    identifier = name.removeprefix("--").replace("-", "_")
    return f"{identifier}_" if iskeyword(identifier) else identifier


def _type(field: FieldInfo) -> Any:
    """The type for typer: a list of texts for a mapping, list or tuple; text for types that typer
    does not have.
    """
    annotation = field.annotation
    if get_origin(annotation) in (dict, list, tuple):
        return list[str]
    if get_origin(annotation) is not Literal:
        arguments = [part for part in get_args(annotation) if part is not type(None)]
        annotation = arguments[0] if len(arguments) == 1 else annotation
    is_literal = get_origin(annotation) is Literal
    return annotation if is_literal or annotation in (bool, int, float, Path) else str


def command(
    run: Callable[[FlagValues], None], flags: Sequence[Flag], *, text: str
) -> Callable[..., None]:
    """Return a function for typer that calls ``run`` with the flags given.

    ``text``: the help above the flags.
    """
    by_name = {_identifier(flag.name): flag for flag in flags}

    def called(**values: Any) -> None:
        run(
            {
                flag: values[name]
                for name, flag in by_name.items()
                if values[name] is not None and values[name] is not False
            }
        )

    called.__doc__, called.__annotations__ = text, {}
    vars(called)["__signature__"] = inspect.Signature([flag.parameter() for flag in flags])
    return called


def values_of(flags: FlagValues, model: type[BaseModel]) -> dict[str, Any]:
    """Return what was given for the fields of one model."""
    return {flag.field: value for flag, value in flags.items() if flag.model is model}


class SessionOptions(Section):
    """Options of every command that measures."""

    output: Path | None = None
    """Results folder; one that exists is resumed. [results/NAME-TIME]"""
    settings: tuple[str, ...] = ()
    """Replace a value of the plan; may be repeated."""
    resume_elsewhere: bool = False
    """Resume even if versions, machine or sources changed."""


def session_flags(model: type[SessionOptions], panel: str) -> tuple[Flag, ...]:
    """Return the flags of ``SessionOptions``, for a command whose options derive from it."""
    option = partial(Flag, panel, model)
    return (
        option("output", ("-o", "--output")),
        option("settings", ("--set",), metavar="KEY=VALUE"),
        option("resume_elsewhere"),
    )


def command_to_repeat(folder: Path) -> list[str]:
    """Return this command line, with the results folder if it does not name one."""
    words = sys.argv[1:]
    return ["ringside", *words, *([] if {"-o", "--output"} & {*words} else ["-o", str(folder)])]


def say(text: str) -> None:
    """Print what a person should know while a command runs, on stderr; results go to stdout."""
    print(f"ringside: {printable(text)}", file=sys.stderr, flush=True)


def percent_of(text: str, *, flag: str) -> float:
    """Read ``5%`` or ``5``.

    Raises:
        PlanError: it is no share from 0 to 100.
    """
    with suppress(ValueError):
        share = float(text.strip().removesuffix("%"))
        if 0 <= share < 100:
            return share
    raise PlanError(
        f"{flag} {quoted(text)} is no share; give one from 0% to below 100%, such as 5%"
    )
