"""The driver's settings for the agent: one environment variable, without secrets."""

from __future__ import annotations

import base64
import json
import os
from typing import Any, Mapping, NamedTuple, Sequence

VARIABLE = "RINGSIDE_AGENT"
RANK_VARIABLE = "RINGSIDE_AGENT_RANK"
"""Set in a rank to its process id, so that the agent does nothing in what it starts."""

COMPARED_STEPS = 5
"""First steps of each script, untimed, in which its settings, gradients and parameters are read."""


class Settings(NamedTuple):
    """As the driver wrote them."""

    driver: str
    key_file: str
    arm: str
    launch: int
    start: int = 0
    python: str = ""
    samples_per_step: int | None = None
    iteration_ends: str | int | None = None
    untimed: str = "nothing"
    state_file: str | None = None
    state: str | None = None
    rank_variables: Sequence[Sequence[str | None]] = ()
    """Rank variables of each launcher, see ``place.VariableNames``."""
    recorded: Sequence[str] = ()
    """Beginnings of variables that ranks report."""
    left_out: Sequence[str] = ()
    """Those of ``recorded`` that differ from rank to rank anyway."""
    secret: str = ""
    """What the names of secrets look like, as a regular expression."""
    store: str = ""
    """For a rank of ours: ``host:port`` of the store at which process groups meet. Empty: it is a
    script's."""
    launcher: str = ""
    """That started it; its class knows the variables to read."""
    log_folder: str | None = None
    """None: this host's own (``runners.processes.remote_results``), where timings are kept, too."""
    threads: int = 1
    sandbox: str = ""
    """Folder of this start, in which a script's own files appear; empty: it has none."""
    trackers: Sequence[str] = ()
    """Modules of experiment trackers that variables keep offline."""
    ports: Mapping[str, int] = {}
    """By a port that a script asks for: the port that this start uses instead."""
    spare_ports: Sequence[int] = ()
    """Ports for stores whose ports are not in ``ports``; none where it runs on several hosts."""
    hosts: Sequence[str] = ()
    """On which it runs; none where it is this machine alone."""
    cpu: bool = False
    """Give the CPU to whatever asks torch for CUDA, see ``machine.cpus_for_gpus``."""
    impose: Mapping[str, Any] = {}
    """Settings that replace the script's own, see ``imposing``."""
    perturbs: bool = False
    """Change parameters in their last place after the first compared step, see
    ``reading.first_steps.perturb``: the control shows how far rounding grows."""


def read(*, in_children: bool = False) -> Settings | None:
    """The settings; None where there are none, and in a process that a rank started, unless
    ``in_children``.

    Raises:
        ValueError: they cannot be read.
        TypeError: one is missing.
    """
    text = os.environ.get(VARIABLE)
    is_child = os.environ.get(RANK_VARIABLE, str(os.getpid())) != str(os.getpid())
    if not text or (is_child and not in_children):
        return None
    return decode(text)


def encode(settings: Settings) -> str:
    """Encode the settings that differ from their defaults as one word without special characters of
    a shell.
    """
    changed = {
        name: value
        for name, value in settings._asdict().items()
        if value != Settings._field_defaults.get(name)
    }
    return base64.urlsafe_b64encode(json.dumps(changed).encode()).decode()


def decode(text: str) -> Settings:
    """Decode the variable's text; unknown names are left out."""
    values: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text.encode()))
    return Settings(**{name: value for name, value in values.items() if name in Settings._fields})
