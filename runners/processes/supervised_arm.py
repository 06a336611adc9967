"""The driver's state of an arm in one launch, from its supervisors' connections: ranks, messages,
answers to commands.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from dataclasses import dataclass, field

from measurement.agent.ringside_agent.supervision.frames import AT_ONCE, SAY, Frames, messages_in
from measurement.agent.ringside_agent.supervision.rank_supervisor import (
    FAILED,
    GONE,
    JOINED,
    REFUSED,
)

MIN_SHARE = 1 / 16
"""Share of an arm's hosts: if fewer have sent something, the driver waits for more, since waking
costs more than reading."""
GATHER_S = 0.002
"""How long it waits for more."""


@dataclass(kw_only=True)
class SupervisedRank:
    """One rank as its supervisor reported it."""

    rank: int
    world_size: int
    """As the process counts it, which may differ from the plan's."""
    host: str
    pid: int
    clock_behind_s: float
    """How far its host's clock was behind the driver's when it reported, including the time of the
    transfer."""
    is_gone: bool = False
    gone_at_s: float = math.inf
    """When its process ended, seconds since the epoch by its host's clock; infinite if its
    supervisor did not report it."""

    @classmethod
    def reported(cls, host: str, rank: str, world_size: str, pid: str, at_s: str) -> SupervisedRank:
        """Parse the report that its supervisor has just sent; ``at_s``: by its host's clock."""
        behind_s = time.time() - float(at_s)
        return cls(
            rank=int(rank),
            world_size=int(world_size),
            host=host,
            pid=int(pid),
            clock_behind_s=behind_s,
        )


@dataclass(kw_only=True, eq=False)
class HostConnection:
    """The connection to a host's first supervisor."""

    host: str
    connection: socket.socket
    ranks: list[SupervisedRank]
    """The arm's ranks on this host."""
    answers: list[str] = field(default_factory=list)
    """Lines that answer commands and were not taken yet."""
    is_closed: bool = False
    frames: Frames = field(default_factory=Frames, repr=False)

    def send(self, data: bytes, flags: int = 0) -> None:
        """Send bytes. A closed connection is noticed by the missing reply."""
        with contextlib.suppress(OSError):
            self.connection.sendall(data, flags)

    def take_answer(self, word: str) -> str | None:
        """Take the answer to a command and all before it; None if there is none yet."""
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
    """Processes with the number of a rank that had reported already, such as several that are each
    rank 0 of 1."""
    messages: dict[str, bytes] = field(default_factory=dict)
    """From ranks, by place, not taken yet, and still sealed."""
    latest: dict[str, bytes] = field(default_factory=dict)
    """The last messages to ranks, by place."""
    listening: select.epoll = field(default_factory=select.epoll)
    """Returns the hosts that have sent something."""

    @property
    def open_hosts(self) -> list[HostConnection]:
        """Those that are connected."""
        return [host for host in list(self.hosts.values()) if not host.is_closed]

    @property
    def gone(self) -> dict[int, float]:
        """The ended ranks in the order they ended, and when (``SupervisedRank.gone_at_s``)."""
        ended = [rank for rank in self.ranks.values() if rank.is_gone]
        ended.sort(key=lambda rank: rank.gone_at_s)
        return {rank.rank: rank.gone_at_s for rank in ended}

    def take_in(self, supervised: SupervisedRank) -> bool:
        """Add a rank; returns whether it is the first with its number."""
        is_first = self.ranks.setdefault(supervised.rank, supervised) is supervised
        if not is_first:
            self.refused.append(supervised)
        return is_first

    def hear_all(self, *, timeout_s: float) -> list[HostConnection]:
        """Wait until a host sends something and read it. Returns the hosts that did."""
        ready = self.listening.poll(max(0.0, timeout_s))
        if 0 < len(ready) < MIN_SHARE * len(self.hosts) and timeout_s > GATHER_S:
            time.sleep(GATHER_S)
            ready = self.listening.poll(0)
        spoke = [self.hosts[descriptor] for descriptor, _ in ready]
        for host in spoke:
            self._hear(host)
        return spoke

    def _hear(self, host: HostConnection) -> None:
        """Read what a host has sent: messages, answers, ranks that have connected or ended, or the
        end of the connection.
        """
        try:
            received = host.connection.recv(AT_ONCE, socket.MSG_DONTWAIT)
            frames = host.frames.add(received)
        except OSError:  # the kernel gave up, or it is not the supervisors' protocol
            received, frames = b"", []
        for line, message in frames:
            self._read(host, line, message)
        if not received:
            host.is_closed = True
            self.listening.unregister(host.connection)
            for supervised in host.ranks:
                supervised.is_gone = True

    def _read(self, host: HostConnection, line: str, message: bytes) -> None:
        verb, _, rest = line.partition(" ")
        if verb == SAY:
            self.messages.update(messages_in(line, message))
        elif verb == JOINED:
            supervised = SupervisedRank.reported(host.host, *rest.split())
            host.ranks += [supervised] if self.take_in(supervised) else []
        elif verb == REFUSED:
            self.refused.append(SupervisedRank.reported(host.host, *rest.split()))
        elif verb == GONE:
            rank, at_s = rest.split()
            for supervised in host.ranks:
                if supervised.rank == int(rank):
                    supervised.is_gone, supervised.gone_at_s = True, float(at_s)
        else:
            host.answers.append(line)
