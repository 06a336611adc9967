"""Reads NCCL's log of the traced launch: its network, how ranks are connected, algorithms by
message size.

The lines are NCCL's (2.18 to 2.30, src/init.cc, src/transport, src/enqueue.cc). Older releases
number algorithms and protocols.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from measurement.records.trace import NcclChoices, NcclCollective

NCCL_LOG_VARIABLES = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
    "NCCL_DEBUG_FILE": "",
}
"""Make NCCL write its choices to stdout, which goes into the rank's log."""
VERSION = re.compile(r"NCCL version (\S+)")
NETWORK = re.compile(r"NCCL INFO Using network (.+)")
CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels")
CONNECTION = re.compile(r"NCCL INFO Channel .* via (\S+)")
COLLECTIVE = re.compile(r"NCCL INFO (?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+)")
DEVICE = re.compile(r"/\d+(\(\d+\))?(?=/|$)")
"""The number of a network card, and the rank that sends on behalf of this one."""
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
MAX_COLLECTIVES = 8
"""The largest messages are kept."""


def read_log(path: Path) -> NcclChoices | None:
    """Read a rank's log, after flushing what libraries have printed; None if it has no lines of
    NCCL.
    """
    ctypes.CDLL(None).fflush(None)
    return choices_of(path.read_text(encoding="utf-8", errors="replace").splitlines())


def choices_of(lines: Iterable[str]) -> NcclChoices | None:
    """Read the lines of one rank; None if none are NCCL's."""
    last: dict[str, str] = {}
    connections: dict[str, None] = {}
    collectives: dict[tuple[str | None, int, str, str], None] = {}
    for line in lines:
        for name, pattern in {"version": VERSION, "network": NETWORK, "channels": CHANNELS}.items():
            if match := pattern.search(line):
                last[name] = match[1].strip()
        if match := CONNECTION.search(line):
            connections[DEVICE.sub("", match[1])] = None
        if match := COLLECTIVE.search(line):
            collectives[
                match[1], int(match[2]), _named(match[3], ALGORITHMS), _named(match[4], PROTOCOLS)
            ] = None
    if not (last or connections or collectives):
        return None
    largest = sorted(collectives, key=lambda collective: collective[1], reverse=True)[
        :MAX_COLLECTIVES
    ]
    return NcclChoices(
        version=last.get("version"),
        network=last.get("network"),
        channels=int(last["channels"]) if "channels" in last else None,
        connections=sorted(connections),
        collectives=[
            NcclCollective(
                operation=operation, num_bytes=size, algorithm=algorithm, protocol=protocol
            )
            for operation, size, algorithm, protocol in largest
        ],
    )


def merge_ranks(ranks: Sequence[NcclChoices | None]) -> NcclChoices | None:
    """Merge an arm's ranks: all connections, and other fields from the first rank that has them.

    Only rank 0 has algorithms.
    """
    choices = [rank for rank in ranks if rank is not None]
    if not choices:
        return None
    fields = ("version", "network", "channels", "collectives")
    first = {
        name: value
        for rank in reversed(choices)
        for name in fields
        if (value := getattr(rank, name))
    }
    return NcclChoices(
        **first, connections=sorted({name for rank in choices for name in rank.connections})
    )


def _named(word: str, names: Sequence[str]) -> str:
    return names[int(word)] if word.isdecimal() and int(word) < len(names) else word.upper()
