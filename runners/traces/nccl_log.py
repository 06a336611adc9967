"""Reads NCCL's log of the traced launch: its network, how ranks are connected, algorithms by
message size.

The lines are NCCL's (2.28 to 2.30, src/init.cc, src/transport, src/enqueue.cc).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path

from measurement.records.record import NcclChoices, NcclCollective

NCCL_LOG_VARIABLES = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
    "NCCL_DEBUG_FILE": "",
}
"""Make NCCL write its choices to stdout, which goes into the rank's log."""
PATTERNS = {
    "version": re.compile(r"NCCL version (\S+)"),
    "network": re.compile(r"NCCL INFO Using network (.+)"),
    "channels": re.compile(r"NCCL INFO (\d+) coll channels"),
    "connection": re.compile(r"NCCL INFO Channel .* via (\S+)"),
    "collective": re.compile(r"NCCL INFO (\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)"),
}
DEVICE = re.compile(r"/\d+(\(\d+\))?(?=/|$)")
"""The number of a network card, and the rank that sends on behalf of this one."""
MAX_COLLECTIVES = 8
"""The largest messages are kept."""


def read_log(path: Path) -> NcclChoices | None:
    """Read a rank's log, after flushing what libraries have printed; None if it has no lines of
    NCCL.
    """
    ctypes.CDLL(None).fflush(None)
    return choices_of(path.read_text(encoding="utf-8", errors="replace").splitlines())


def choices_of(lines: Sequence[str]) -> NcclChoices | None:
    """Read the lines of one rank; None if none are NCCL's."""
    found = {
        name: dict.fromkeys(match.groups() for match in map(pattern.search, lines) if match)
        for name, pattern in PATTERNS.items()
    }
    if not any(found.values()):
        return None
    collectives = [
        NcclCollective(operation=operation, num_bytes=size, algorithm=algorithm, protocol=protocol)
        for operation, size, algorithm, protocol in found["collective"]
    ]
    collectives.sort(key=lambda collective: collective.num_bytes, reverse=True)
    last = {
        name: value.strip()
        for name in ("version", "network", "channels")
        for (value,) in found[name]
    }
    return NcclChoices.model_validate(
        {
            **last,
            "connections": sorted({DEVICE.sub("", name) for (name,) in found["connection"]}),
            "collectives": collectives[:MAX_COLLECTIVES],
        }
    )


def merge_ranks(ranks: Sequence[NcclChoices | None]) -> NcclChoices | None:
    """Rank 0's choices, with the connections of all: the others print no version and no
    algorithms.
    """
    first = ranks[0]
    if first is None:
        return None
    connections = {name for rank in ranks if rank is not None for name in rank.connections}
    return first.model_copy(update={"connections": sorted(connections)})
