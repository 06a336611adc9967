"""Ports of its own for each start of a command, in place of those that its text names or that it
asked for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from runners.hosts.placement import Placement

DEFAULTS = (29400, 29500)
"""Where torchrun's ranks meet by default."""
NUM_SPARE_PORTS = 16
"""Ports for stores that no text names."""
PORT_PATTERN = re.compile(
    r"(?:(?:master|main[_-]process)[_-]port|rdzv[_-]endpoint|tcp://)\W{0,6}(?:[^\s'\"]*:)?(\d{2,5})\b",
    re.IGNORECASE,
)
"""``MASTER_PORT=1234``, ``os.environ["MASTER_PORT"] = "1234"``, ``--rdzv-endpoint host:1234``,
``tcp://host:1234``."""


def named_ports(texts: Iterable[str]) -> set[int]:
    """The ports that a command, its scripts and its variables name for ranks to meet at. Pure."""
    return {int(port) for text in texts for port in PORT_PATTERN.findall(text)}


def num_ports_needed(requested: Collection[int]) -> int:
    """How many free ports ``meeting_settings`` takes."""
    return 2 * len(requested) + NUM_SPARE_PORTS if requested else 0


def meeting_settings(
    requested: Collection[int], free: Iterable[int], placement: Placement
) -> dict[str, Any]:
    """The agent's settings by which the processes of a start meet: a free port for each port they
    may ask for. Pure.
    """
    usable = [port for port in free if port not in requested]
    ports = dict(zip(sorted(requested), usable, strict=False))
    if placement.is_local:
        return {"ports": ports, "spare_ports": usable[len(ports) :][:NUM_SPARE_PORTS]}
    return {"ports": ports, "hosts": [entry.host for entry in placement.hosts]}
