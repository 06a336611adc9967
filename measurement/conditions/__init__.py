"""What must be equal, and for whom, and which versions have a known fault: two tables.

``conditions.yaml``: each reader filters it by its column; ``differences`` makes rows from it. A new
condition is one line there, with a field of what ``source`` names. Facts of the host are read by
the agent (``ringside_agent.machine``).

``known_bad.yaml``: versions that slow or break exchange. Sites and users have lists of their own.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter

from measurement.errors import RingsideError, cut
from measurement.files import read_text

Source = Literal["plan", "rank", "host", "record", "script"]
"""Where a value is found: a field of a plan, a rank's report, the fingerprint of a host, a launch's
record, or the agent's settings of a script."""
ArmRule = Literal["equal", "as ranks", "own", "result"]
"""``as ranks``: arms with equal numbers of ranks agree. ``own``: it defines the arm. ``result``: it
is only shown."""
Severity = Literal["mistake", "work", "training", "speed", "note"]
"""How much a difference matters: a common mistake in porting; other work; another training; other
speed; or a note, where it comes with a library or was asked for."""


class Condition(BaseModel):
    """One value, or all whose names begin so, and for whom it must be equal; None or False: it may
    differ.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    field: str
    """How names begin. The longest match counts: ``environment.HOROVOD_`` before
    ``environment``."""
    source: Source
    matters: Severity = "speed"
    """How much a difference matters where it was not asked for."""
    label: str | None = None
    """Its name for people; None: the field's."""
    of_library: bool = False
    """Whether it comes with a library or launcher: then it may differ without being asked for."""
    arms: ArmRule | None = None
    """Arms of a launch, and launches of runs started by hand (``differences``,
    ``reports.runs``)."""
    called: str | None = None
    """Its name among arms; None: the field's."""
    scripts: bool = False
    """Whether scripts are compared by it, besides the settings that the agent reads."""
    between_runs: str | None = None
    """Its name between runs, which compare another form of it; None: as among arms."""
    runs: bool = False
    """Plans of runs started by hand (``reports.runs``)."""
    sessions: Literal["driver", "ranks"] | None = None
    """Sessions that measure into one folder (``same_environment``). ``driver``: values on ranks do
    not count."""
    hosts: Literal["refuse", "report"] | None = None
    """Hosts of a plan (``runners.hosts.preflight``)."""
    follows: frozenset[str] = frozenset()
    """Fields of a launch's record that define an arm's own work: the value may differ where one of
    these does."""

    @property
    def name(self) -> str:
        """Its name in messages about arms."""
        return self.called or (f"host.{self.field}" if self.source == "host" else self.field)


OWN_WORK = frozenset({"python", "image", "commit", "workload", "workload_options"})
"""Fields of a launch's record: what an arm may have of its own besides a backend."""


SPEED_ENDS = (".fused", ".foreach", ".capturable")
"""How names of optimizer settings end that change how it computes, and not what."""

MAY_CHANGE_IN_A_PLAN = frozenset(
    {
        "minutes",
        "launches",
        "max_minutes",
        "rehearsal",
        "reports",
        "link",
        "question",
        "allow",
        "trace",
        "peak_tflops",
    }
)
"""Fields of a plan that may change where a comparison goes on: how long is measured, and what is
concluded."""


@functools.cache
def conditions() -> Sequence[Condition]:
    """The whole table (``conditions.yaml``)."""
    rows = list[Condition]()
    for group in yaml.safe_load(read_text(Path(__file__).with_name("conditions.yaml"))):
        fields = group.pop("fields")
        rows += [Condition(field=field, label=label, **group) for field, label in fields.items()]
    return rows


def condition_of(name: str, *, of_scripts: bool = False) -> Condition:
    """The condition of a value by its name, such as ``host.cpu`` or ``optimizer.lr``.

    ``of_scripts``: the name is one of the settings that the agent reads in a script.
    """
    matching = [
        condition
        for condition in conditions()
        if (condition.source == "script") == of_scripts
        and (name.startswith(condition.name) or name == condition.between_runs)
    ]
    return max(matching, key=lambda condition: len(condition.name))


BUILT_IN = Path(__file__).with_name("known_bad.yaml")
Version = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)*$")]


class KnownBad(BaseModel):
    """One entry of a list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    package: str
    """Such as nccl: the last part of a condition's name."""
    first: Version
    last: Version | None = None
    """With all versions that begin so; None: all later ones."""
    fault: str
    """What follows package and version in a sentence."""
    source: str
    """Address of a report of the fault."""
    remedy: str = ""

    def covers(self, version: str) -> bool:
        """Whether this version has the fault."""
        first, last, own = map(_numbers, (self.first, self.last or version, version))
        return first <= own and own[: len(last)] <= last


VERSION = re.compile(r"\d+(\.\d+)*")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def faults(package: str, version_text: object) -> dict[str, str]:
    """The known faults of a version, as sentences without a full stop, each with its remedy or an
    empty one.

    ``version_text``: a text with the version in it, such as ``2.30.7
    (nvidia/nccl/lib/libnccl.so.2)``.
    """
    version = VERSION.search(str(version_text))
    return {
        f"{package} {version[0]} {entry.fault} ({entry.source})": entry.remedy
        for entry in known_bad()
        if version and entry.package == package and entry.covers(version[0])
    }


def faults_clause(field: str, values: Mapping[str, Any]) -> str:
    """The known faults of these versions, to append to the sentence about a difference; empty where
    there are none.
    """
    package = field.rpartition(".")[2]
    found = dict.fromkeys(fault for value in values.values() for fault in faults(package, value))
    return "".join(f"; {fault}" for fault in found)


@functools.cache
def known_bad() -> Sequence[KnownBad]:
    """All entries.

    Raises:
        RingsideError: an added list cannot be read.
    """
    of_user = Path(os.environ.get("HOME", "/"), ".config/ringside/known-bad.yaml")
    return [
        entry
        for path in (BUILT_IN, Path("/etc/ringside/known-bad.yaml"), of_user)
        for entry in _read_list(path)
    ]


def _read_list(path: Path) -> list[KnownBad]:
    try:
        return TypeAdapter(list[KnownBad]).validate_python(yaml.safe_load(read_text(path)) or [])
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RingsideError(
            f"{path} cannot be read: {cut(str(error))}; it must be a list like {BUILT_IN}"
        ) from error
