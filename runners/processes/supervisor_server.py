"""The driver's side of the supervisors' connections: messages to and from ranks, and commands that
stop, continue and kill them; and what it knows of an arm in one launch by them.

Each host of an arm has one connection, from its first supervisor (``host_relay`` is the other
side). Each begins with a greeting, which proves that it belongs to the comparison; see
``rank_supervisor.greet``.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import secrets
import select
import socket
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from pydantic import ValidationError

from measurement.addresses import listen, with_port
from measurement.agent.ringside_agent.supervision.frames import (
    AT_ONCE,
    SAY,
    Frames,
    messages_in,
    pack,
    say,
    seal,
    unseal,
)
from measurement.agent.ringside_agent.supervision.host_relay import FOLLOWER_S, LATEST
from measurement.agent.ringside_agent.supervision.rank_supervisor import (
    COUNTERS,
    FAILED,
    GONE,
    JOINED,
    REFUSED,
    keep_alive,
    prove,
    receive_line,
)
from measurement.errors import LaunchError
from measurement.records.block import HostCounters

ACKNOWLEDGE_TIMEOUT_S = FOLLOWER_S + 5
GREETING_TIMEOUT_S = 5.0
MAX_GREETINGS = 128
"""Connections without a greeting yet. At the limit others are closed and retry."""
REFUSED_S = 5.0
"""How long a refused connection counts among them."""
FULL_S = 0.05
"""How long the driver accepts no connection at the limit. Both keep a flood of connections from
using a measured core."""
MIN_SHARE = 1 / 16
"""Share of an arm's hosts: if fewer have sent something, the driver waits for more, since waking
costs more than reading."""
GATHER_S = 0.002
"""How long it waits for more."""


class SupervisorServer:
    """Serves the supervisors of all ranks of a comparison.

    A thread accepts connections; the driver's thread talks to them.
    """

    def __init__(self, *, address: str, key: str) -> None:
        """``key``: of the comparison; unauthenticated connections are closed."""
        self._key = key
        self._arms: dict[tuple[str, int], SupervisedArm] = {}
        self._starts: dict[tuple[str, int], int] = {}
        """How often an arm was restarted in a launch; missing: never."""
        self._lock = threading.Lock()
        """Held while an arm gets a host or a message to send, so that no host misses one."""
        self._address = address
        self._greetings = threading.BoundedSemaphore(MAX_GREETINGS)
        self._server = listen(address)
        threading.Thread(target=self._accept, name="ringside-supervisors", daemon=True).start()

    @property
    def address(self) -> str:
        """``host:port`` for the supervisors to connect to."""
        return with_port(self._address, self._server.getsockname()[1])

    def heard(self, arm: str, launch: int) -> SupervisedArm:
        """Return what the supervisors of an arm have reported so far. Does not wait."""
        supervised_arm = self._arm(arm, launch)
        supervised_arm.hear_all(timeout_s=0)
        ranks = dict(supervised_arm.ranks)  # others may connect meanwhile
        return replace(supervised_arm, ranks=ranks, refused=list(supervised_arm.refused))

    def set(self, arm: str, launch: int, place: str, text: str) -> None:
        """Send a message to every rank of an arm, also to those that connect later."""
        with self._lock:
            supervised_arm = self._arms.setdefault((arm, launch), SupervisedArm())
            supervised_arm.latest[place] = sealed = seal(self._key, place, text)
            while len(supervised_arm.latest) > LATEST:
                del supervised_arm.latest[next(iter(supervised_arm.latest))]
            for host in supervised_arm.open_hosts:
                host.send(say(place, sealed))

    def take(
        self, arm: str, launch: int, places: Collection[str], timeout: timedelta
    ) -> dict[str, bytes]:
        """Wait for a message from ranks in any of these places; return all there are, by place, and
        forget them.

        What other arms send is read, too, to be taken later. Call it every few seconds: the kernel
        ends a connection that is full and not read for ``LOST_AFTER_S``.

        Raises:
            LaunchError: a message is not from a rank of the comparison.
        """
        supervised_arm, deadline = (
            self._arm(arm, launch),
            time.monotonic() + timeout.total_seconds(),
        )
        with self._lock:
            others = [other for other in self._arms.values() if other is not supervised_arm]
        for other in others:
            other.hear_all(timeout_s=0)
        while not (
            sealed_texts := {
                place: supervised_arm.messages.pop(place)
                for place in list(supervised_arm.messages)
                if place in places
            }
        ):
            left_s = deadline - time.monotonic()
            # with no timeout, too, what has arrived is read
            if not supervised_arm.hear_all(timeout_s=left_s) and left_s <= 0:
                break
        try:
            return {
                place: unseal(self._key, place, sealed) for place, sealed in sealed_texts.items()
            }
        except ConnectionError as error:
            raise LaunchError(
                f"{error}: another process on the network writes to its connections; "
                "close the driver's ports to others (docs/security.md)"
            ) from error

    def tell(self, arm: str, launch: int, *words: str) -> dict[str, HostCounters]:
        """Send commands to every supervisor of an arm and wait until each has carried them out, in
        order.

        Returns:
            The counters of every host, if ``counters`` is among them, without those that cannot be
            read.

        Raises:
            LaunchError: a supervisor does not answer in time, or reports a failure.
        """
        counters: dict[str, HostCounters] = {}
        for host, answer in self._ask(arm, launch, words):
            if answer.startswith(COUNTERS):
                with contextlib.suppress(ValidationError):
                    counters.setdefault(
                        host, HostCounters.model_validate_json(answer.removeprefix(COUNTERS))
                    )
            elif answer.startswith(FAILED) and not answer.startswith(f"{FAILED} {COUNTERS}"):
                rank, _, why = answer.removeprefix(f"{FAILED} ").partition(" ")[2].partition(" ")
                raise LaunchError(f"rank {rank} on {host}: {why}")
        return counters

    def driver_time(self, arm: str, launch: int, rank: int, at_s: float) -> float:
        """Convert a time of a rank's host, seconds since the epoch, to the driver's clock, by the
        host's fastest report.
        """
        ranks = self.heard(arm, launch).ranks
        if rank not in ranks:
            return at_s
        return at_s + min(
            supervised.clock_behind_s
            for supervised in ranks.values()
            if supervised.host == ranks[rank].host
        )

    def release(self, arm: str, launch: int) -> None:
        """Close an arm's connections and forget its messages.

        Supervisors then kill ranks that still run.
        """
        with self._lock:
            supervised_arm = self._arms.pop((arm, launch), None)
        for host in supervised_arm.hosts.values() if supervised_arm else ():
            host.connection.close()

    def restart(self, arm: str, launch: int, start: int) -> None:
        """Forget an arm that is restarted for the ``start``-th time: connections of other starts
        are closed.
        """
        with self._lock:
            self._starts[arm, launch] = start
        self.release(arm, launch)

    def close(self) -> None:
        """Close everything."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for arm, launch in list(self._arms):
            self.release(arm, launch)

    def _arm(self, arm: str, launch: int) -> SupervisedArm:
        """The state of an arm; empty before it starts and after it was released."""
        with self._lock:
            return self._arms.get((arm, launch)) or SupervisedArm()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            if self._greetings.acquire(blocking=False):
                threading.Thread(target=self._greet, args=(connection,), daemon=True).start()
            else:
                connection.close()
                time.sleep(FULL_S)

    def _greet(self, connection: socket.socket) -> None:
        """Read the greeting; close connections without the key, of another start, or that are too
        slow.
        """
        closing = threading.Timer(GREETING_TIMEOUT_S, _shut, [connection])
        closing.start()
        try:
            challenge = secrets.token_hex(16)
            connection.sendall(f"{challenge}\n".encode())
            *who, proof = receive_line(connection, max_bytes=1024).split()
            if not hmac.compare_digest(proof.encode(), prove(self._key, challenge, *who).encode()):
                raise ConnectionError("it does not have the key")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(connection)
            self._welcome(connection, who)
        except (OSError, ValueError):
            connection.close()
            time.sleep(REFUSED_S)
        finally:
            closing.cancel()
            self._greetings.release()

    def _welcome(self, connection: socket.socket, who: Sequence[str]) -> None:
        """Accept a host's first supervisor and send it its ranks' latest messages; refuse a second
        one of a rank.
        """
        arm, launch, start, rank, world_size, host, pid, at_s = who
        supervised_rank = SupervisedRank.reported(host, rank, world_size, pid, at_s)
        with self._lock:
            if int(start) != self._starts.get((arm, int(launch)), 0):
                raise ConnectionError("it is of another start")
            supervised_arm = self._arms.setdefault((arm, int(launch)), SupervisedArm())
            if not supervised_arm.take_in(supervised_rank):
                raise ConnectionError("its rank has a supervisor")
            for place, sealed in supervised_arm.latest.items():
                connection.sendall(say(place, sealed))
            supervised_arm.hosts[connection.fileno()] = HostConnection(
                host=host, connection=connection, ranks=[supervised_rank]
            )
            supervised_arm.listening.register(connection, select.EPOLLIN)

    def _ask(self, arm: str, launch: int, words: Sequence[str]) -> list[tuple[str, str]]:
        """Send commands to all hosts of an arm; returns pairs of host and answer, without hosts
        that disconnect meanwhile.

        Raises:
            LaunchError: a host does not answer in time.
        """
        supervised_arm, deadline = self._arm(arm, launch), time.monotonic() + ACKNOWLEDGE_TIMEOUT_S
        hosts, packed = supervised_arm.open_hosts, b"".join(map(pack, words))
        for host in hosts:
            host.send(packed, socket.MSG_DONTWAIT)
        answers: list[tuple[str, str]] = []
        spoke, missing = hosts, {host: list(words) for host in hosts}
        while missing:
            for host in spoke:
                left = missing.get(host, [])
                while left and (text := host.take_answer(left[0])) is not None:
                    answers.append((host.host, text))
                    del left[0]
                if host in missing and (not left or host.is_closed):
                    del missing[host]
            left_s = deadline - time.monotonic()
            if missing and left_s < 0:
                rank, name, word = min(
                    (host.ranks[0].rank, host.host, left[0]) for host, left in missing.items()
                )
                raise LaunchError(
                    f"rank {rank} on {name} did not acknowledge '{word}': its supervisor does not"
                    " answer"
                )
            spoke = supervised_arm.hear_all(timeout_s=left_s) if missing else []
        return answers


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
        return cls(
            rank=int(rank),
            world_size=int(world_size),
            host=host,
            pid=int(pid),
            clock_behind_s=time.time() - float(at_s),
        )


def _shut(connection: socket.socket) -> None:
    """End all waiting for data from this connection."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
