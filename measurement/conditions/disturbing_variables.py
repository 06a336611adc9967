"""Variables in a user's shell that change what is measured: one table of what each does, and to
which libraries.

A variable that makes a library measure something else, or fail, is refused. The progress and the
headline report the others. Variables in the plan's ``environment`` are the user's choice: refused
as well, but not reported. The table is in docs/variables.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from measurement.errors import cut
from measurement.files import read_text

Library = Literal["horovod", "torch.distributed", "cuda", "any"]
"""Which ranks a variable affects: those of a library, those that compute on GPUs, or all."""


class DisturbingVariable(BaseModel):
    """One variable, or all with the same beginning."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """With ``*`` at its end: all that begin so."""
    does: str
    """What follows the variable in a sentence."""
    library: Library = "any"
    is_refused: bool = False
    only: tuple[str, ...] = ()
    """The values that have this effect, in capitals; empty: all but ``unless``."""
    unless: tuple[str, ...] = ("", "0")

    def acts(self, name: str, value: str) -> bool:
        """Whether a variable is this one, with a value that has an effect."""
        setting = value.strip().upper()
        has_effect = setting in self.only if self.only else setting not in self.unless
        return has_effect and fnmatchcase(name, self.name)


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """A variable of the table that an environment contains."""

    name: str
    value: str
    variable: DisturbingVariable

    def __str__(self) -> str:
        return f"{self.setting} {self.variable.does}"

    @property
    def setting(self) -> str:
        """Name and value."""
        return f"{self.name}={cut(self.value)}"


KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""Makes glibc keep freed memory (mallopt(3)), in processes started with these: no allocation is a
separate mapping, and the heap is trimmed only above 1 TiB. ``freed_memory: keep`` sets them."""


@cache
def disturbing_variables() -> Sequence[DisturbingVariable]:
    """The whole table (``disturbing_variables.toml``)."""
    content = tomllib.loads(read_text(Path(__file__).with_suffix(".toml")))
    return [DisturbingVariable(**entry) for entry in content["variables"]]


def disturbances(
    environment: Mapping[str, str], libraries: Collection[Library]
) -> list[Disturbance]:
    """The variables of the table that an environment contains and that affect ranks of these
    libraries.
    """
    return [
        Disturbance(name=name, value=value, variable=variable)
        for variable in disturbing_variables()
        if variable.library in ("any", *libraries)
        for name, value in sorted(environment.items())
        if variable.acts(name, value)
    ]


def refusal(environment: Mapping[str, str], libraries: Collection[Library]) -> str | None:
    """Why ranks of these libraries cannot be measured correctly in this environment, and what to
    do; None: they can.
    """
    found = disturbances(environment, libraries)
    refused = [str(disturbance) for disturbance in found if disturbance.variable.is_refused]
    return refused[0] if refused else None


def describe_variables(by_arm: Mapping[str, Iterable[Disturbance]]) -> list[str]:
    """A sentence for each variable, with its arms where it does not affect all.

    ``by_arm``: the variables of each.
    """
    by_text: dict[str, list[str]] = {}
    for arm, of_arm in by_arm.items():
        for disturbance in of_arm:
            by_text.setdefault(str(disturbance), []).append(arm)
    return [
        (
            text
            if len(arms) == len(by_arm)
            else f"{text}; it reaches {', '.join(arms)} alone, which makes the comparison uneven"
        )
        for text, arms in by_text.items()
    ]
