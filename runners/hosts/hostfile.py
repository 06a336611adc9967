"""Hostfiles in the forms of Open MPI, Horovod and MPICH, and ``-H`` lists: which hosts take how
many ranks.

One host per line: ``host1``, ``host1:4``, ``host1 slots=4`` or ``host1 slots=4 max-slots=8``; ``#``
begins a comment, IPv6 addresses are in brackets (``[fe80::1]:4``). Open MPI's ``max-slots`` is
ignored: no host gets more ranks than slots. A host without a number takes one rank, as in MPICH and
in Open MPI's ``-H``; in its hostfiles Open MPI would give it one per core. Batch systems' files are
read, too: a name for each slot (PBS, LSF, OAR), or ``host1 4 all.q@host1 UNDEFINED`` (Grid Engine).
Slots of a host that is named again are added up, as in Open MPI. All else is refused with the
accepted forms, so no text that ssh or a shell could read as more than a name goes on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from measurement.errors import HostfileError, cut, quoted
from measurement.files import read_text
from runners.launchers.base import HostSlots

ACCEPTED = "'host1', 'host1:4', 'host1 slots=4', 'host1 slots=4 max-slots=8' or '[fe80::1]:4'"
_ENTRY = re.compile(
    r"""(?: (?P<name>\w[\w.-]*) | \[(?P<address>[0-9a-f:.]+(?:%\w[\w.-]*)?)\] )
    (?: (?: : | \s+slots\s*=\s* | \s+(?=\S+\s+\S+@) ) (?P<slots>[1-9][0-9]{0,3}) )?
    (?: \s+max[-_]slots\s*=\s*[0-9]+ | \s+\S+@\S+\s+\S+ )?""",
    re.VERBOSE | re.ASCII | re.IGNORECASE,
)


def read_hostfile(path: Path) -> tuple[HostSlots, ...]:
    """Read a hostfile.

    Raises:
        HostfileError: it cannot be read, or a line is not accepted; with file, line number and the
            text seen.
    """
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise HostfileError(
            f"hostfile '{path}' cannot be read: {error}; give a text file with one host per line,"
            " such as hostfiles/two-hosts, or -H host1:4"
        ) from error
    return parse_hostfile(text, source=f"hostfile '{path}'")


def parse_hostfile(text: str, *, source: str) -> tuple[HostSlots, ...]:
    """Read the hosts in a hostfile's text, in its order; at least one.

    ``source``: what a message calls it.

    Raises:
        HostfileError: a line is not accepted.
    """
    return _parse(text.splitlines(), where=f"{source} line", source=source)


def parse_hosts(text: str, *, source: str = "-H") -> tuple[HostSlots, ...]:
    """Read the hosts of a list such as ``host1:4,host2:4``; see ``parse_hostfile``."""
    return _parse(text.split(","), where=f"{source} host", source=source)


def _parse(entries: Iterable[str], *, where: str, source: str) -> tuple[HostSlots, ...]:
    slots = Counter[str]()
    for number, entry in enumerate(entries, start=1):
        text = entry.partition("#")[0].strip()
        parts = _ENTRY.fullmatch(text)
        if parts:
            slots[parts["name"] or parts["address"]] += int(parts["slots"] or 1)
        elif text:
            raise HostfileError(
                f"{where} {number}: {quoted(text)} names no host; accepted: {ACCEPTED}, with at"
                " least one slot (a user belongs into ~/.ssh/config)"
            )
    if not slots:
        raise HostfileError(f"{source} names no host; write one per line, such as 'host1 slots=4'")
    return tuple(HostSlots(host=host, slots=count) for host, count in slots.items())


def place_ranks(hosts: Sequence[HostSlots], world_size: int) -> dict[str, range]:
    """Place the ranks: each host's slots are filled before the next host's, as every launcher does
    by default.

    Returns:
        The ranks of each host, in the hosts' order; an empty range if none are left.

    Raises:
        HostfileError: there are fewer slots than ranks.
    """
    total = sum(entry.slots for entry in hosts)
    if not 1 <= world_size <= total:
        listed = cut(", ".join(map(str, hosts)))
        raise HostfileError(
            f"{world_size} ranks do not fit into {total} slots ({listed}); give the hosts more"
            " slots, name more hosts, or start fewer ranks, at least one"
        )
    placed, first = {}, 0
    for entry in hosts:
        placed[entry.host] = range(first, min(first + entry.slots, world_size))
        first = placed[entry.host].stop
    return placed
