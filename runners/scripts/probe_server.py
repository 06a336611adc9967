"""The driver's side of the probes' connections: commands to the ranks of scripts, and their replies.

It is a ``MessageStore``, so that a script's rank is talked to like any other. The other side is ``runners/probe``. Each message
carries an HMAC over who sends it, its number and its text.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import BinaryIO

from runners.probe.ringside_probe.channel import opened, sealed
from runners.processes.greeting_server import GreetingServer
from runners.protocol.messages import command_key, reply_key

LONGEST_REPLY = 1 << 28
"""Bytes of a line: a script of thousands of tensors reports each of them."""
COMMAND_KEY = re.compile(".+/command/([0-9]+)")
"""What ``command_key`` makes, with the command's number."""

ArmLaunch = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class ScriptRank:
    """A process that took itself for a rank, as it said when it connected."""

    arm: str
    launch: int
    start: int
    """How often the script was started before in this launch."""
    rank: int
    world_size: int
    """As the process counts it, which may be another than the plan has."""
    host: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class _Connection:
    """A rank and the way to it."""

    who: ScriptRank
    socket: socket.socket

    @property
    def words(self) -> tuple[str, ...]:
        """What each proof holds besides direction, number and text."""
        return (self.who.arm, str(self.who.launch), str(self.who.start), str(self.who.rank))


class ProbeServer:
    """Serves the probes of all scripts of a comparison. Threads receive; the driver's thread sends and waits."""

    def __init__(self, *, address: str, key: str) -> None:
        """``key``: of the comparison; who cannot prove to have it is let go."""
        self._key = key
        self._changed = threading.Condition()
        self._messages: dict[str, str] = {}
        self._commands: dict[ArmLaunch, tuple[int, str]] = {}
        """The latest of each arm. Every earlier one was answered by all ranks before it was sent."""
        self._starts: dict[ArmLaunch, int] = {}
        self._ranks: dict[ArmLaunch, dict[int, _Connection]] = {}
        self._refused: dict[ArmLaunch, list[ScriptRank]] = {}
        self._server = GreetingServer(address=address, key=key, name="ringside-probes", welcome=self._welcome)

    @property
    def address(self) -> str:
        """``host:port`` for the probes to connect to."""
        return self._server.address

    def ranks_of(self, arm: str, launch: int) -> dict[int, ScriptRank]:
        """The ranks of an arm that are connected, by rank."""
        with self._changed:
            return {rank: one.who for rank, one in sorted(self._ranks.get((arm, launch), {}).items())}

    def refused_of(self, arm: str, launch: int) -> list[ScriptRank]:
        """Processes that took themselves for a rank that was there already, such as several that are each rank 0 of 1."""
        with self._changed:
            return list(self._refused.get((arm, launch), []))

    def set(self, arm: str, launch: int, place: str, text: str) -> None:
        """Send a command to all ranks of an arm, and to those that connect later; they need no job."""
        found = COMMAND_KEY.fullmatch(place)
        if found is None:
            return
        number = int(found[1])
        with self._changed:
            self._commands[arm, launch] = (number, text)
            for one in self._ranks.get((arm, launch), {}).values():
                self._send(one, number, text)

    def take(self, arm: str, launch: int, places: Collection[str], timeout: timedelta) -> dict[str, bytes]:
        """Wait until there is a reply in any of these places; return what is there, by place. It is kept no longer."""
        with self._changed:
            self._changed.wait_for(lambda: any(place in self._messages for place in places), timeout.total_seconds())
            return {place: self._messages.pop(place).encode() for place in places if place in self._messages}

    def restart(self, arm: str, launch: int) -> int:
        """Forget the ranks of an arm, and its last command: its script is started anew.

        Returns:
            The number of the new start, which its probes must tell (``start`` in ``RINGSIDE_PROBE``).
        """
        self._forget(arm, launch)
        with self._changed:
            self._starts[arm, launch] = self._starts.get((arm, launch), 0) + 1
            return self._starts[arm, launch]

    def release(self, arm: str, launch: int) -> None:
        """Close an arm's connections and forget its messages."""
        self._forget(arm, launch)
        beginning = command_key(arm, launch, 0).removesuffix("command/0")
        with self._changed:
            for place in [place for place in self._messages if place.startswith(beginning)]:
                del self._messages[place]

    def close(self) -> None:
        """Close everything."""
        self._server.close()
        for arm, launch in list(self._ranks):
            self.release(arm, launch)

    def _forget(self, arm: str, launch: int) -> None:
        with self._changed:
            self._commands.pop((arm, launch), None)
            for one in self._ranks.pop((arm, launch), {}).values():
                with contextlib.suppress(OSError):
                    one.socket.shutdown(socket.SHUT_RDWR)  # its reader closes it

    def _welcome(self, connection: socket.socket, who: Sequence[str]) -> None:
        """Take in a rank and give it the command that waits for it; one of an earlier start, or a rank's second, is let go."""
        arm, launch, start, rank, host, pid, world_size, _clock = who
        told = ScriptRank(
            arm=arm, launch=int(launch), start=int(start), rank=int(rank), world_size=int(world_size), host=host, pid=int(pid)
        )
        one = _Connection(who=told, socket=connection)
        place = (told.arm, told.launch)
        with self._changed:
            if told.start != self._starts.get(place, 0):
                raise ConnectionError("it is of another start")
            if self._ranks.setdefault(place, {}).setdefault(told.rank, one) is not one:
                self._refused.setdefault(place, []).append(told)
                raise ConnectionError("there is such a rank")
            if place in self._commands:
                self._send(one, *self._commands[place])
        threading.Thread(target=self._receive, args=(one,), name=f"ringside-probe-{rank}", daemon=True).start()

    def _send(self, one: _Connection, number: int, text: str) -> None:
        with contextlib.suppress(OSError):  # it has gone: the reply that is waited for tells
            one.socket.sendall(sealed(self._key, "command", one.words, number, text))

    def _receive(self, one: _Connection) -> None:
        """Take a rank's replies until it goes, or sends what is not its own."""
        with one.socket, one.socket.makefile("rb") as lines, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            while self._take(one, lines):
                pass
        with self._changed:
            ranks = self._ranks.get((one.who.arm, one.who.launch), {})
            if ranks.get(one.who.rank) is one:
                del ranks[one.who.rank]

    def _take(self, one: _Connection, lines: BinaryIO) -> bool:
        found = opened(lines.readline(LONGEST_REPLY), self._key, "reply", one.words)
        if found is None:
            return False
        number, text = found
        with self._changed:
            if self._ranks.get((one.who.arm, one.who.launch), {}).get(one.who.rank) is not one:
                return False  # of a start that is over
            self._messages[reply_key(one.who.arm, one.who.launch, number, one.who.rank)] = text
            self._changed.notify_all()
        return True
