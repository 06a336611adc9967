"""Hostfiles: which hosts take how many ranks, in the forms of Open MPI, Horovod and MPICH, and ``-H`` lists.

One host per line: ``host1``, ``host1:4``, ``host1 slots=4`` or ``host1 slots=4 max-slots=8``; ``#`` begins a comment, IPv6
addresses stand in brackets (``[fe80::1]:4``). A host without a number takes one rank, as in MPICH and in Open MPI's ``-H``; in
its hostfiles Open MPI would give it one per core. Batch systems' files are read, too: a name for each slot (PBS, LSF, OAR), or
``host1 4 all.q@host1 UNDEFINED`` (Grid Engine). Slots of a host that is named again are added up, as Open MPI does. What launchers
read differently is refused: a number given twice, a user.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from measurement.errors import HostfileError, printable
from measurement.files import read_text
from runners.launchers.base import HostSlots

MAX_SLOTS = 4096
"""More ranks than any host takes; a larger number is a typing error."""
ACCEPTED = "'host1', 'host1:4', 'host1 slots=4', 'host1 slots=4 max-slots=8' or '[fe80::1]:4'"
ACCEPTED_LIST = "'host1:4,host2:4', 'host1' or '[fe80::1]:4'"
KEYS = {"slots": "slots", "max-slots": "max-slots", "max_slots": "max-slots"}

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_ENTRY = re.compile(r"(?:\[(?P<bracketed>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(?::(?P<slots>[^:]*))?")
_SCOPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_SGE = re.compile(r"(\S+)\s+(\d+)\s+[^\s=]+@\S+\s+\S+")
_SHOWN = 60


def read_hostfile(path: Path) -> tuple[HostSlots, ...]:
    """Read a hostfile.

    Raises:
        HostfileError: it cannot be read, or a line of it is not accepted; file, line number and the text seen are told.
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise HostfileError(f"hostfile '{path}' does not exist; give a file such as hostfiles/two-hosts, or -H host1:4") from None
    except (OSError, ValueError) as error:
        raise HostfileError(f"hostfile '{path}' cannot be read: {error}; a text file is expected, one host per line") from error
    return parse_hostfile(text, source=f"hostfile '{path}'")


def parse_hostfile(text: str, *, source: str) -> tuple[HostSlots, ...]:
    """Read the hosts in a hostfile's text, in its order; at least one. ``source``: what a message calls it.

    Raises:
        HostfileError: a line is not accepted.
    """
    hosts: dict[str, HostSlots] = {}
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        entry, *options = _SGE.sub(r"\1 slots=\2", re.sub(r"\s*=\s*", "=", line.partition("#")[0]).strip()).split() or [""]
        if entry or options:
            where = _Place(f"{source} line {number}", seen=line.strip(), accepted=ACCEPTED)
            _add(hosts, _host(entry, options, where), where)
    return _at_least_one(hosts, source)


def parse_hosts(text: str, *, source: str = "-H") -> tuple[HostSlots, ...]:
    """Read the hosts of a list such as ``host1:4,host2:4``; see ``parse_hostfile``."""
    hosts: dict[str, HostSlots] = {}
    for number, entry in enumerate(text.split(","), start=1):
        where = _Place(f"{source} host {number}", seen=entry.strip(), accepted=ACCEPTED_LIST)
        _add(hosts, _host(entry.strip(), [], where), where)
    return _at_least_one(hosts, source)


def place_ranks(hosts: Sequence[HostSlots], world_size: int) -> dict[str, range]:
    """Place the ranks: each host's slots are filled before the next host's, as every launcher does by default.

    Returns:
        The ranks of each host, in the hosts' order; an empty range where none are left for it.

    Raises:
        HostfileError: there are fewer slots than ranks.
    """
    total = sum(entry.slots for entry in hosts)
    if not 1 <= world_size <= total:
        listed = ", ".join(map(str, hosts))
        remedy = "give the hosts more slots, name more hosts, or start fewer ranks" if world_size > total else "start at least one"
        raise HostfileError(f"{world_size} ranks do not fit into {total} slots ({_shortened(listed)}); {remedy}")
    placed, first = {}, 0
    for entry in hosts:
        placed[entry.host] = range(first, min(first + entry.slots, world_size))
        first = placed[entry.host].stop
    return placed


class _Place:
    """The line or entry that is being read, for messages."""

    def __init__(self, where: str, *, seen: str, accepted: str) -> None:
        self.where, self.seen, self.accepted = where, seen, accepted

    def refuse(self, why: str) -> NoReturn:
        raise HostfileError(f"{self.where}: {_shortened(self.seen)!r}: {why}; accepted: {self.accepted}")


def _host(entry: str, options: Sequence[str], where: _Place) -> HostSlots:
    """One host with its numbers."""
    parts = _ENTRY.fullmatch(entry)
    if parts is None:
        where.refuse(_no_host(entry))
    given = {"slots": _number("slots", parts["slots"], where)} if parts["slots"] is not None else {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or key not in KEYS:
            where.refuse(_unknown_option(key))
        if KEYS[key] in given:
            where.refuse(f"the number of {KEYS[key]} is given twice")
        given[KEYS[key]] = _number(KEYS[key], value, where)
    host = _address(parts["bracketed"], where) if parts["bracketed"] is not None else _name(parts["name"], where)
    slots, max_slots = given.get("slots", 1), given.get("max-slots")
    if max_slots is not None and max_slots < slots:
        where.refuse(f"max-slots={max_slots} is less than slots={slots}")
    return HostSlots(host=host, slots=slots, max_slots=max_slots)


def _no_host(entry: str) -> str:
    if "," in entry:
        return "one host stands on a line (a list is for -H)"
    return "an IPv6 address stands in brackets" if re.fullmatch(r"[0-9A-Fa-f:.]+(%.*)?", entry) else "this is no host"


def _unknown_option(key: str) -> str:
    if key in ("user", "username"):
        return "a user belongs into ~/.ssh/config (Host, User), where all launchers find it"
    return f"{_shortened(key)!r} is not known, only slots=N and max-slots=N are"


def _number(key: str, text: str, where: _Place) -> int:
    number = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None
    if number is None or not 1 <= number <= MAX_SLOTS:
        advice = " (to leave a host out, write # before it)" if number == 0 else ""
        where.refuse(f"{key}={_shortened(text)} is no whole number from 1 to {MAX_SLOTS}{advice}")
    return number


def _name(text: str, where: _Place) -> str:
    """A host name or IPv4 address: nothing that ssh could take for an option, or a shell for more than one word."""
    if "@" in text:
        where.refuse("a user belongs into ~/.ssh/config (Host, User), where all launchers find it")
    if "/" in text:
        where.refuse("a file of hosts goes under hostfile")
    if not _NAME.fullmatch(text) or len(text) > 253:
        where.refuse("a host name holds letters, digits, '-', '_' and '.', and begins and ends with a letter or digit")
    if re.fullmatch(r"[0-9.]+", text):
        try:
            ipaddress.IPv4Address(text)
        except ValueError:
            where.refuse("an IPv4 address is four numbers from 0 to 255")
    return text


def _address(text: str, where: _Place) -> str:
    """An IPv6 address in its shortest form, with its interface if it has one (fe80::1%eth0)."""
    address, percent, scope = text.partition("%")
    try:
        shortest = ipaddress.IPv6Address(address).compressed
    except ValueError:
        where.refuse("only an IPv6 address stands in brackets")
    if percent and not _SCOPE.fullmatch(scope):
        where.refuse("after % comes the name of a network interface")
    return shortest + percent + scope


def _add(hosts: dict[str, HostSlots], entry: HostSlots, where: _Place) -> None:
    """Take a host in; one that is named again with the slots of both."""
    before = hosts.setdefault(entry.host.casefold(), entry)
    if before is entry:
        return
    slots = before.slots + entry.slots
    if slots > MAX_SLOTS:
        where.refuse(f"with those before it has {slots} slots, and {MAX_SLOTS} are the most")
    limited = None not in (before.max_slots, entry.max_slots)
    most = (before.max_slots or 0) + (entry.max_slots or 0) if limited else None
    hosts[entry.host.casefold()] = replace(before, slots=slots, max_slots=most, lines=before.lines + 1)


def _at_least_one(hosts: dict[str, HostSlots], source: str) -> tuple[HostSlots, ...]:
    if not hosts:
        raise HostfileError(f"{source} names no host; write one per line, such as 'host1 slots=4'")
    return tuple(hosts.values())


def _shortened(text: str) -> str:
    """On one line; of a long text the beginning."""
    flat = " ".join(printable(text[: 2 * _SHOWN]).split())
    return flat if len(text) <= _SHOWN else f"{flat[:_SHOWN]}…"
