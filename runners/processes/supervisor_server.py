"""The driver's side of the supervisors' connections: messages to and from ranks, and words that stop, continue and kill them.

There is one connection for each host of an arm, by its first supervisor (``host_relay`` has the other side).
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from pydantic import ValidationError

from measurement.errors import LaunchError
from measurement.records.host_use import HostCounters
from runners.probe.ringside_probe.channel import seal, unseal
from runners.probe.ringside_probe.supervision.frames import AT_ONCE, SAY, Frames, messages_in, pack, say
from runners.probe.ringside_probe.supervision.host_relay import FOLLOWER_S, LATEST
from runners.probe.ringside_probe.supervision.rank_supervisor import COUNTERS, FAILED, GONE, JOINED, REFUSED
from runners.processes.greeting_server import GreetingServer

ACKNOWLEDGE_TIMEOUT_S = FOLLOWER_S + 5
FEW = 1 / 16
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


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a host answered to a word."""

    host: HostConnection
    text: str


class SupervisorServer:
    """Serves the supervisors of all ranks of a comparison. A thread accepts connections; the driver's thread talks to them."""

    def __init__(self, *, address: str, key: str) -> None:
        """``key``: of the comparison; who cannot prove to have it is let go."""
        self._key = key
        self._arms: dict[tuple[str, int], SupervisedArm] = {}
        self._starts: dict[tuple[str, int], int] = {}
        """How often an arm was started anew in a launch; none: never."""
        self._lock = threading.Lock()
        """Held while an arm gets a host or a message to hand on, so that no host misses one."""
        self._server = GreetingServer(address=address, key=key, name="ringside-supervisors", welcome=self._welcome)

    @property
    def address(self) -> str:
        """``host:port`` for the supervisors to connect to."""
        return self._server.address

    def of(self, arm: str, launch: int) -> dict[int, SupervisedRank]:
        """Return the ranks of an arm whose supervisors have connected, by rank. Does not wait."""
        known = self._arm(arm, launch)
        _hear_all(known, timeout_s=0)
        return dict(known.ranks)

    def refused(self, arm: str, launch: int) -> list[SupervisedRank]:
        """Return the processes that took themselves for a rank that was there already. Does not wait."""
        known = self._arm(arm, launch)
        _hear_all(known, timeout_s=0)
        return list(known.refused)

    def set(self, arm: str, launch: int, place: str, text: str) -> None:
        """Send a message to every rank of an arm, and to those that come later."""
        with self._lock:
            known = self._arms.setdefault((arm, launch), SupervisedArm())
            known.latest[place] = sealed = seal(self._key, place, text)
            while len(known.latest) > LATEST:
                del known.latest[next(iter(known.latest))]
            for host in known.open_hosts:
                with contextlib.suppress(OSError):  # it has closed: the reply that is waited for tells
                    host.connection.sendall(say(place, sealed))

    def take(self, arm: str, launch: int, places: Collection[str], timeout: timedelta) -> dict[str, bytes]:
        """Wait until there is a message of ranks in any of these places; return what is there, by place. It is kept no longer.

        Raises:
            LaunchError: somebody else has written one.
        """
        known, deadline = self._arm(arm, launch), time.monotonic() + timeout.total_seconds()
        while not (found := {place: known.messages.pop(place) for place in list(known.messages) if place in places}):
            left_s = deadline - time.monotonic()
            if not _hear_all(known, timeout_s=left_s) and left_s <= 0:  # without patience, too, what has come is heard
                break
        try:
            return {place: unseal(self._key, place, sealed) for place, sealed in found.items()}
        except ConnectionError as error:
            raise LaunchError(
                f"{error}: somebody else on the network reaches its connections; "
                "close the driver's ports to others (docs/security.md)"
            ) from error

    def tell(self, arm: str, launch: int, *words: str) -> dict[str, HostCounters]:
        """Send words to every supervisor of an arm and wait until each has done them, in their order.

        Returns:
            The counters of every host, where ``counters`` is among them; those are left out that cannot be read.

        Raises:
            LaunchError: a supervisor does not answer in time, or says that it could not.
        """
        counters: dict[str, HostCounters] = {}
        for answer in self._ask(arm, launch, words):
            if answer.text.startswith(COUNTERS):
                with contextlib.suppress(ValidationError):
                    counters.setdefault(answer.host.host, HostCounters.model_validate_json(answer.text.removeprefix(COUNTERS)))
            elif answer.text.startswith(FAILED) and not answer.text.startswith(f"{FAILED} {COUNTERS}"):
                rank, _, why = answer.text.removeprefix(f"{FAILED} ").partition(" ")[2].partition(" ")
                raise LaunchError(f"rank {rank} on {answer.host.host}: {why}")
        return counters

    def gone(self, arm: str, launch: int) -> dict[int, float]:
        """Return the ended ranks of an arm in the order they ended, and when (``SupervisedRank.gone_at_s``). Does not wait."""
        ranks = self.of(arm, launch).values()
        return {one.rank: one.gone_at_s for one in sorted(ranks, key=lambda one: one.gone_at_s) if one.is_gone}

    def driver_time(self, arm: str, launch: int, rank: int, at_s: float) -> float:
        """Convert a time of a rank's host to the driver's clock, seconds since the epoch, by its quickest report."""
        ranks = self.of(arm, launch)
        if rank not in ranks:
            return at_s
        return at_s + min(one.clock_behind_s for one in ranks.values() if one.host == ranks[rank].host)

    def release(self, arm: str, launch: int) -> None:
        """Close an arm's connections and forget its messages; supervisors then kill ranks that still run."""
        with self._lock:
            known = self._arms.pop((arm, launch), None)
        for host in known.hosts.values() if known else ():
            host.connection.close()

    def restart(self, arm: str, launch: int, start: int) -> None:
        """Forget an arm, which is started anew for the ``start``-th time: supervisors of another start are let go."""
        with self._lock:
            self._starts[arm, launch] = start
        self.release(arm, launch)

    def close(self) -> None:
        """Close everything."""
        self._server.close()
        for arm, launch in list(self._arms):
            self.release(arm, launch)

    def _arm(self, arm: str, launch: int) -> SupervisedArm:
        """What is known of an arm: nothing, before it starts and once it was released."""
        with self._lock:
            return self._arms.get((arm, launch)) or SupervisedArm()

    def _welcome(self, connection: socket.socket, who: Sequence[str]) -> None:
        """Take in a host's first supervisor, and give it what waits for its ranks; a rank's second is let go."""
        arm, launch, start, rank, world_size, host, pid, at_s = who
        one = _supervised(host, rank, world_size, pid, at_s)
        with self._lock:
            if int(start) != self._starts.get((arm, int(launch)), 0):
                raise ConnectionError("it is of another start")
            known = self._arms.setdefault((arm, int(launch)), SupervisedArm())
            if known.ranks.setdefault(one.rank, one) is not one:
                known.refused.append(one)
                raise ConnectionError("its rank has a supervisor")
            for place, sealed in known.latest.items():
                connection.sendall(say(place, sealed))
            known.hosts[connection.fileno()] = HostConnection(host=host, connection=connection, ranks=[one])
            known.listening.register(connection, select.EPOLLIN)

    def _ask(self, arm: str, launch: int, words: Sequence[str]) -> list[Answer]:
        """Send words to all hosts of an arm and wait for the answers of those that do not go meanwhile.

        Raises:
            LaunchError: one does not answer in time.
        """
        known, deadline = self._arm(arm, launch), time.monotonic() + ACKNOWLEDGE_TIMEOUT_S
        hosts, said = known.open_hosts, b"".join(map(pack, words))
        for host in hosts:
            with contextlib.suppress(OSError):  # it has closed: the answer that is waited for tells
                host.connection.send(said, socket.MSG_DONTWAIT)
        answers: list[Answer] = []
        spoke, missing = hosts, {host: list(words) for host in hosts}
        while missing:
            for host in spoke:
                left = missing.get(host, [])
                while left and (text := _take_answer(host, left[0])) is not None:
                    answers.append(Answer(host=host, text=text))
                    del left[0]
                if host in missing and (not left or host.is_closed):
                    del missing[host]
            left_s = deadline - time.monotonic()
            if missing and left_s < 0:
                rank, name, word = min((host.ranks[0].rank, host.host, left[0]) for host, left in missing.items())
                raise LaunchError(f"rank {rank} on {name} was not told to {word}: its supervisor does not answer")
            spoke = _hear_all(known, timeout_s=left_s) if missing else []
        return answers


def _hear_all(known: SupervisedArm, *, timeout_s: float) -> list[HostConnection]:
    """Take in what the hosts of an arm have said, and wait until one says something. Returns those that did."""
    ready = known.listening.poll(max(0.0, timeout_s))
    if 0 < len(ready) < FEW * len(known.hosts) and timeout_s > GATHER_S:
        time.sleep(GATHER_S)
        ready = known.listening.poll(0)
    spoke = [known.hosts[descriptor] for descriptor, _ in ready]
    for host in spoke:
        _hear(host, known)
    return spoke


def _hear(host: HostConnection, known: SupervisedArm) -> None:
    """Take in what a host has said: messages, answers, ranks that have come or gone, or the end of the connection."""
    try:
        received = host.connection.recv(AT_ONCE, socket.MSG_DONTWAIT)
        frames = host.frames.add(received)
    except OSError:  # the kernel gave it up, or it does not speak as supervisors do
        received, frames = b"", []
    for line, message in frames:
        _take_in(host, known, line, message)
    if not received:
        host.is_closed = True
        known.listening.unregister(host.connection)
        for one in host.ranks:
            one.is_gone = True


def _take_in(host: HostConnection, known: SupervisedArm, line: str, message: bytes) -> None:
    verb, _, rest = line.partition(" ")
    if verb == SAY:
        known.messages.update(messages_in(line, message))
    elif verb == JOINED:
        one = _supervised(host.host, *rest.split())
        if known.ranks.setdefault(one.rank, one) is one:
            host.ranks.append(one)
        else:
            known.refused.append(one)
    elif verb == REFUSED:
        known.refused.append(_supervised(host.host, *rest.split()))
    elif verb == GONE:
        rank, at_s = rest.split()
        for one in host.ranks:
            if one.rank == int(rank):
                one.is_gone, one.gone_at_s = True, float(at_s)
    else:
        host.answers.append(line)


def _supervised(host: str, rank: str, world_size: str, pid: str, at_s: str) -> SupervisedRank:
    behind_s = time.time() - float(at_s)
    return SupervisedRank(rank=int(rank), world_size=int(world_size), host=host, pid=int(pid), clock_behind_s=behind_s)


def _take_answer(host: HostConnection, word: str) -> str | None:
    """Take the answer to a word, and all before it; None if there is none yet."""
    for number, line in enumerate(host.answers):
        if line == word or line.startswith((f"{word} ", f"{FAILED} {word} ")):
            del host.answers[: number + 1]
            return line
    return None
