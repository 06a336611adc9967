"""What the driver knows of an arm in one launch by its supervisors' connections: ranks, their messages, answers to words."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from dataclasses import dataclass, field

from measurement.agent.ringside_agent.supervision.frames import AT_ONCE, SAY, Frames, messages_in
from measurement.agent.ringside_agent.supervision.rank_supervisor import FAILED, GONE, JOINED, REFUSED

MIN_SHARE = 1 / 16
"""Share of an arm's hosts: where fewer have said something, the driver waits for more. To wake costs it more than to read."""
GATHER_S = 0.002
"""How long it waits for them."""


@dataclass(kw_only=True)
class SupervisedRank:
    """One rank as its supervisor knows it."""

    rank: int
    world_size: int
    """As the process counts it, which may be another than the plan has."""
    host: str
    pid: int
    clock_behind_s: float
    """What the driver's clock showed more than its host's when it reported, the time that took included."""
    is_gone: bool = False
    gone_at_s: float = math.inf
    """When its process ended, seconds since the epoch by its host's clock; infinite if its supervisor did not report it."""

    @classmethod
    def reported(cls, host: str, rank: str, world_size: str, pid: str, at_s: str) -> SupervisedRank:
        """By what its supervisor has said just now, with its host's clock."""
        behind_s = time.time() - float(at_s)
        return cls(rank=int(rank), world_size=int(world_size), host=host, pid=int(pid), clock_behind_s=behind_s)


@dataclass(kw_only=True, eq=False)
class HostConnection:
    """The connection to a host's first supervisor."""

    host: str
    connection: socket.socket
    ranks: list[SupervisedRank]
    """The arm's ranks that it speaks for."""
    answers: list[str] = field(default_factory=list)
    """Lines that answer words, and were not taken yet."""
    is_closed: bool = False
    frames: Frames = field(default_factory=Frames, repr=False)

    def send(self, data: bytes, flags: int = 0) -> None:
        """Send bytes; where it has closed, the reply that is waited for tells."""
        with contextlib.suppress(OSError):
            self.connection.sendall(data, flags)

    def take_answer(self, word: str) -> str | None:
        """Take the answer to a word, and all before it; None if there is none yet."""
        for number, line in enumerate(self.answers):
            if line == word or line.startswith((f"{word} ", f"{FAILED} {word} ")):
                del self.answers[: number + 1]
                return line
        return None


@dataclass(eq=False)
class SupervisedArm:
    """One arm in one launch."""

    hosts: dict[int, HostConnection] = field(default_factory=dict)
    """By the descriptor of the connection."""
    ranks: dict[int, SupervisedRank] = field(default_factory=dict)
    """All that have reported, by rank."""
    refused: list[SupervisedRank] = field(default_factory=list)
    """Processes that took themselves for a rank that was there already, such as several that are each rank 0 of 1."""
    messages: dict[str, bytes] = field(default_factory=dict)
    """From ranks, by their place, not taken yet, and still sealed."""
    latest: dict[str, bytes] = field(default_factory=dict)
    """The last ones to ranks, by their place."""
    listening: select.epoll = field(default_factory=select.epoll)
    """Tells which hosts have said something, however many there are."""

    @property
    def open_hosts(self) -> list[HostConnection]:
        """Those that are connected."""
        return [host for host in list(self.hosts.values()) if not host.is_closed]

    def take_in(self, one: SupervisedRank) -> bool:
        """Note a rank; returns whether it is the first of its number."""
        is_first = self.ranks.setdefault(one.rank, one) is one
        if not is_first:
            self.refused.append(one)
        return is_first

    def hear_all(self, *, timeout_s: float) -> list[HostConnection]:
        """Take in what the hosts have said, and wait until one says something. Returns those that did."""
        ready = self.listening.poll(max(0.0, timeout_s))
        if 0 < len(ready) < MIN_SHARE * len(self.hosts) and timeout_s > GATHER_S:
            time.sleep(GATHER_S)
            ready = self.listening.poll(0)
        spoke = [self.hosts[descriptor] for descriptor, _ in ready]
        for host in spoke:
            self._hear(host)
        return spoke

    def _hear(self, host: HostConnection) -> None:
        """Take in what a host has said: messages, answers, ranks that have come or gone, or the end of the connection."""
        try:
            received = host.connection.recv(AT_ONCE, socket.MSG_DONTWAIT)
            frames = host.frames.add(received)
        except OSError:  # the kernel gave it up, or it does not speak as supervisors do
            received, frames = b"", []
        for line, message in frames:
            self._read(host, line, message)
        if not received:
            host.is_closed = True
            self.listening.unregister(host.connection)
            for one in host.ranks:
                one.is_gone = True

    def _read(self, host: HostConnection, line: str, message: bytes) -> None:
        verb, _, rest = line.partition(" ")
        if verb == SAY:
            self.messages.update(messages_in(line, message))
        elif verb == JOINED:
            one = SupervisedRank.reported(host.host, *rest.split())
            host.ranks += [one] if self.take_in(one) else []
        elif verb == REFUSED:
            self.refused.append(SupervisedRank.reported(host.host, *rest.split()))
        elif verb == GONE:
            rank, at_s = rest.split()
            for one in host.ranks:
                if one.rank == int(rank):
                    one.is_gone, one.gone_at_s = True, float(at_s)
        else:
            host.answers.append(line)
