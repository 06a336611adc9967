"""What NCCL chose, by its own log of the traced launch: its network, how ranks are connected, algorithms by message size.

The lines are NCCL's (2.18 to 2.30, src/init.cc, src/transport, src/enqueue.cc). Older releases number algorithms and protocols.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from measurement.records.trace import NcclChoices, NcclCollective

VARIABLES = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING", "NCCL_DEBUG_FILE": ""}
"""Have it say so on stdout, which a rank's log takes."""
VERSION = re.compile(r"NCCL version (\S+)")
NETWORK = re.compile(r"NCCL INFO Using network (.+)")
CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels")
CONNECTION = re.compile(r"NCCL INFO Channel .* via (\S+)")
COLLECTIVE = re.compile(r"NCCL INFO (?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+)")
DEVICE = re.compile(r"/\d+(\(\d+\))?(?=/|$)")
"""The number of a network card, and the rank that sends for this one."""
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
MAX_COLLECTIVES = 8
"""The largest messages are kept."""


def read_log(path: Path) -> NcclChoices | None:
    """What a rank's log says, once all that libraries have printed is in it; None: nothing of NCCL's."""
    ctypes.CDLL(None).fflush(None)
    return choices_of(path.read_text(encoding="utf-8", errors="replace").splitlines())


def choices_of(lines: Iterable[str]) -> NcclChoices | None:
    """What the lines of one rank say; None: nothing."""
    last: dict[str, str] = {}
    connections: dict[str, None] = {}
    collectives: dict[tuple[str | None, int, str, str], None] = {}
    for line in lines:
        for name, pattern in {"version": VERSION, "network": NETWORK, "channels": CHANNELS}.items():
            if found := pattern.search(line):
                last[name] = found[1].strip()
        if found := CONNECTION.search(line):
            connections[DEVICE.sub("", found[1])] = None
        if found := COLLECTIVE.search(line):
            collectives[found[1], int(found[2]), _named(found[3], ALGORITHMS), _named(found[4], PROTOCOLS)] = None
    if not (last or connections or collectives):
        return None
    largest = sorted(collectives, key=lambda one: one[1], reverse=True)[:MAX_COLLECTIVES]
    return NcclChoices(
        version=last.get("version"),
        network=last.get("network"),
        channels=int(last["channels"]) if "channels" in last else None,
        connections=sorted(connections),
        collectives=[
            NcclCollective(operation=operation, num_bytes=size, algorithm=algorithm, protocol=protocol)
            for operation, size, algorithm, protocol in largest
        ],
    )


def of_all_ranks(ranks: Sequence[NcclChoices | None]) -> NcclChoices | None:
    """An arm's: all connections, and what else the first rank says that says it. NCCL tells algorithms on rank 0 alone."""
    known = [one for one in ranks if one is not None]
    if not known:
        return None
    first = {
        name: next((value for one in known if (value := getattr(one, name))), None) for name in ("version", "network", "channels")
    }
    connections = sorted({name for one in known for name in one.connections})
    return NcclChoices(
        **first, connections=connections, collectives=next((one.collectives for one in known if one.collectives), [])
    )


def _named(word: str, names: Sequence[str]) -> str:
    return names[int(word)] if word.isdecimal() and int(word) < len(names) else word.upper()
