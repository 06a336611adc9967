"""Hostfiles in the forms of Open MPI, Horovod and MPICH, and ``-H`` lists: which hosts take how
many ranks.

One host per line: ``host1``, ``host1:4``, ``host1 slots=4`` or ``host1 slots=4 max-slots=8``; ``#``
begins a comment, IPv6 addresses are in brackets (``[fe80::1]:4``). Open MPI's ``max-slots`` is
ignored: no host gets more ranks than slots. A host without a number takes one rank, as in MPICH and
in Open MPI's ``-H``; in its hostfiles Open MPI would give it one per core. Batch systems' files are
read, too: a name for each slot (PBS, LSF, OAR), or ``host1 4 all.q@host1 UNDEFINED`` (Grid Engine).
Slots of a host that is named again are added up, as in Open MPI. All else is refused with the
accepted forms, as is what launchers read differently: a number given twice, a user.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from measurement.errors import HostfileError, printable
from measurement.files import read_text
from runners.launchers.base import HostSlots

MAX_SLOTS = 4096
"""More ranks than any host takes; a larger number is a typo."""
ACCEPTED = "'host1', 'host1:4', 'host1 slots=4', 'host1 slots=4 max-slots=8' or '[fe80::1]:4'"
ACCEPTED_LIST = "'host1:4,host2:4', 'host1' or '[fe80::1]:4'"

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_NAME = rf"{_LABEL}(?:\.{_LABEL})*"
_ADDRESS = r"(?P<address>[^\[\]%]*)(?P<scope>%[A-Za-z0-9][A-Za-z0-9_.-]{0,14})?"
_ENTRY = re.compile(rf"(?:\[{_ADDRESS}\]|(?P<name>{_NAME}))(?::(?P<slots>[0-9]{{1,9}}))?")
_OPTION = re.compile(r"(?:slots=(?P<slots>[0-9]{1,9})|max[-_]slots=[0-9]{1,9})")
_SGE = re.compile(r"(\S+)\s+(\d+)\s+[^\s=]+@\S+\s+\S+")
_SHOWN = 60


def read_hostfile(path: Path) -> tuple[HostSlots, ...]:
    """Read a hostfile.

    Raises:
        HostfileError: it cannot be read, or a line is not accepted; with file, line number and the
            text seen.
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise HostfileError(
            f"hostfile '{path}' does not exist; give a file such as hostfiles/two-hosts, or -H"
            " host1:4"
        ) from None
    except (OSError, ValueError) as error:
        raise HostfileError(
            f"hostfile '{path}' cannot be read: {error}; a text file is expected, one host per line"
        ) from error
    return parse_hostfile(text, source=f"hostfile '{path}'")


def parse_hostfile(text: str, *, source: str) -> tuple[HostSlots, ...]:
    """Read the hosts in a hostfile's text, in its order; at least one.

    ``source``: what a message calls it.

    Raises:
        HostfileError: a line is not accepted.
    """
    hosts: dict[str, HostSlots] = {}
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        words = _SGE.sub(
            r"\1 slots=\2", re.sub(r"\s*=\s*", "=", line.partition("#")[0]).strip()
        ).split()
        if words:
            _add(
                hosts,
                words,
                f"{source} line {number}: {_shortened(line.strip())!r}",
                accepted=ACCEPTED,
            )
    return _at_least_one(hosts, source)


def parse_hosts(text: str, *, source: str = "-H") -> tuple[HostSlots, ...]:
    """Read the hosts of a list such as ``host1:4,host2:4``; see ``parse_hostfile``."""
    hosts: dict[str, HostSlots] = {}
    for number, entry in enumerate(text.split(","), start=1):
        _add(
            hosts,
            [entry.strip()],
            f"{source} host {number}: {_shortened(entry.strip())!r}",
            accepted=ACCEPTED_LIST,
        )
    return _at_least_one(hosts, source)


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
        listed = ", ".join(map(str, hosts))
        remedy = (
            "give the hosts more slots, name more hosts, or start fewer ranks"
            if world_size > total
            else "start at least one"
        )
        raise HostfileError(
            f"{world_size} ranks do not fit into {total} slots ({_shortened(listed)}); {remedy}"
        )
    placed, first = {}, 0
    for entry in hosts:
        placed[entry.host] = range(first, min(first + entry.slots, world_size))
        first = placed[entry.host].stop
    return placed


def _add(hosts: dict[str, HostSlots], words: Sequence[str], seen: str, *, accepted: str) -> None:
    """Add a host; slots of a host that is named again are added up."""
    try:
        entry = _host(*words)
        before = hosts.get(entry.host.casefold(), replace(entry, slots=0))
        if not 1 <= entry.slots <= MAX_SLOTS - before.slots:
            raise ValueError(entry.slots)
    except ValueError:
        raise HostfileError(
            f"{seen} names no host; accepted: {accepted}, with 1 to {MAX_SLOTS} slots in all (a"
            " user belongs into ~/.ssh/config)"
        ) from None
    hosts[entry.host.casefold()] = replace(before, slots=before.slots + entry.slots)


def _host(entry: str, *options: str) -> HostSlots:
    """One host with its slots; ``ValueError`` for text that ssh could read as an option, or a shell
    as several words.
    """
    parts, parsed_options = (
        _ENTRY.fullmatch(entry),
        [_OPTION.fullmatch(option) for option in options],
    )
    if parts is None or None in parsed_options:
        raise ValueError(entry)
    numbers = [match["slots"] for match in (parts, *parsed_options) if match and match["slots"]]
    if len(numbers) > 1:
        raise ValueError(entry)
    return HostSlots(host=_address(parts), slots=int(*numbers) if numbers else 1)


def _address(parts: re.Match[str]) -> str:
    """The name or IPv4 address as it is, an IPv6 address in its shortest form, with its interface
    (fe80::1%eth0).
    """
    name = parts["name"]
    if name is None:
        return ipaddress.IPv6Address(parts["address"]).compressed + (parts["scope"] or "")
    if len(name) > 253:
        raise ValueError(name)
    return str(ipaddress.IPv4Address(name)) if re.fullmatch("[0-9.]+", name) else name


def _at_least_one(hosts: dict[str, HostSlots], source: str) -> tuple[HostSlots, ...]:
    if not hosts:
        raise HostfileError(f"{source} names no host; write one per line, such as 'host1 slots=4'")
    return tuple(hosts.values())


def _shortened(text: str) -> str:
    """The text on one line, cut if it is long."""
    flat = " ".join(printable(text[: 2 * _SHOWN]).split())
    return flat if len(text) <= _SHOWN else f"{flat[:_SHOWN]}…"
