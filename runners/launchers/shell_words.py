"""Splits a command into words as a shell would. What only a shell can run is refused."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Mapping
from functools import partial

from measurement.environment import looks_secret
from measurement.errors import PlanError, quoted

PIECE = re.compile(
    r"""(?P<single>'[^']*')
    | "(?P<double>(?:[^"\\]|\\.)*)"
    | (?P<escaped>\\.)
    | (?P<pattern>(?<!\S)[^\s'"\\$`|;&<>(){}]*[*?[][^\s'"\\$`|;&<>(){}]*(?!\S))
    | (?P<home>(?<!\S)(?:[A-Za-z_]\w*=)?~[\w.-]*(?=[/\s]|$))
    | \$(?P<name>[A-Za-z_]\w*|\{[A-Za-z_]\w*\})
    | (?P<needs_shell>\$[({0-9?$!@*\#'"-] | ` | [<>]\( | &&|\|\||2>&1|>>|<<|[|;&<>]
        | \{[^\s{}'"]*(?:,|\.\.)[^\s{}'"]*\})""",
    re.VERBOSE | re.DOTALL,
)
IN_DOUBLE_QUOTES = re.compile(
    r"(?P<escaped>\\.) | \$(?P<name>[A-Za-z_]\w*|\{[A-Za-z_]\w*\}) |"
    r" (?P<needs_shell>\$[({0-9?$!@*\#-] | `)",
    re.VERBOSE | re.DOTALL,
)
"""What a shell reads between double quotes."""


def shell_words(text: str, environment: Mapping[str, str]) -> list[str]:
    """Split a command into words, with variables filled in from an environment.

    Raises:
        PlanError: a quote is open, a variable is not set or secret, or only a shell could run it.
    """
    expanded = PIECE.sub(partial(_read, text, environment), text)
    try:
        return shlex.split(expanded)
    except ValueError as error:
        raise PlanError(
            f"command {quoted(text)} cannot be read: {error}; quote it as for a shell"
        ) from error


def _read(text: str, environment: Mapping[str, str], piece: re.Match[str]) -> str:
    """Return the replacement for a piece of a command, quoted so that it is split no further than a
    shell does.
    """
    names_files = piece["pattern"] and glob.glob(piece[0])  # noqa: PTH207 - as a shell reads it
    if piece["needs_shell"] or names_files:
        raise _needs_shell(text, piece[0])
    if piece["double"] is not None:
        return shlex.quote(
            IN_DOUBLE_QUOTES.sub(partial(_read_inside, text, environment), piece["double"])
        )
    if piece["home"]:
        name, equals, path = piece[0].rpartition("=")
        return name + equals + shlex.quote(os.path.expanduser(path))  # noqa: PTH111 - an unknown user's ~ stays
    if piece["name"]:
        return " ".join(map(shlex.quote, _value(text, piece["name"], environment).split()))
    return "" if piece[0] == "\\\n" else piece[0]


def _read_inside(text: str, environment: Mapping[str, str], piece: re.Match[str]) -> str:
    if piece["needs_shell"]:
        raise _needs_shell(text, piece[0])
    if piece["name"]:
        return _value(text, piece["name"], environment)
    return "" if piece[0] == "\\\n" else piece[0][1:] if piece[0][1] in '$`"\\' else piece[0]


def _value(text: str, name: str, environment: Mapping[str, str]) -> str:
    name = name.strip("{}")
    if looks_secret(name):
        raise PlanError(
            f"command {quoted(text)} has ${name}, which looks like a secret, and reports show"
            " commands; have the script read it, or put it into bash -c '...', which is shown as"
            " it is typed"
        )
    if name not in environment:
        raise PlanError(
            f"command {quoted(text)} has ${name}, which is not set; set it, or write its value"
        )
    return environment[name]


def _needs_shell(text: str, piece: str) -> PlanError:
    return PlanError(
        f"command {quoted(text)} has '{piece}', and no shell runs it; put it into a file, or bash"
        " -c '...'"
    )
