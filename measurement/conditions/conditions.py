"""What must be equal, and for whom: one table.

Each reader filters it by its column; ``differences`` makes rows from it.

A new condition is one line in ``conditions.yaml``, with a field of what ``source`` names. Facts of
the host are read by the agent (``machine.host``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

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


BROADCAST = "backend.broadcast_buffers"
"""With buffers, it changes what a rank evaluates with; without any, nothing (``differences``)."""
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


@cache
def conditions() -> Sequence[Condition]:
    """The whole table (``conditions.yaml``)."""
    rows = list[Condition]()
    for group in yaml.safe_load(read_text(Path(__file__).with_suffix(".yaml"))):
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
