"""The driver's side of the supervisors' connections: stops, continues and kills ranks on any host, and hears when they end."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from measurement.errors import LaunchError
from measurement.records.host_use import HostCounters
from runners.probe.ringside_probe.rank_supervisor import COUNTERS, FAILED, GONE, STOP_TIMEOUT_S
from runners.processes.greeting_server import GreetingServer

ACKNOWLEDGE_TIMEOUT_S = STOP_TIMEOUT_S + 10
ANSWER_BYTES = 16384
"""Taken at once: the counters of a host with a hundred cores are whole in it."""


@dataclass(kw_only=True)
class SupervisedRank:
    """One rank as its supervisor knows it."""

    rank: int
    host: str
    pid: int
    connection: socket.socket
    clock_behind_s: float
    """What the driver's clock showed more than its host's when it reported, the time that took included."""
    is_gone: bool = False
    gone_at_s: float = math.inf
    """When its process ended, seconds since the epoch by its host's clock; infinite if its supervisor did not report it."""
    pending: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a supervisor answered to a word."""

    rank: SupervisedRank
    failed: bool
    """The word could not be obeyed; ``text`` says why."""
    text: str


class SupervisorServer:
    """Serves the supervisors of all ranks of a comparison. A thread accepts connections; the driver's thread talks to them."""

    def __init__(self, *, address: str, key: str) -> None:
        """``key``: of the comparison; who cannot prove to have it is let go."""
        self._ranks: dict[tuple[str, int], dict[int, SupervisedRank]] = {}
        self._lock = threading.Lock()
        self._server = GreetingServer(address=address, key=key, name="ringside-supervisors", welcome=self._welcome)

    @property
    def address(self) -> str:
        """``host:port`` for the supervisors to connect to."""
        return self._server.address

    def of(self, arm: str, launch: int) -> dict[int, SupervisedRank]:
        """Return the ranks of an arm whose supervisors have connected, by rank."""
        with self._lock:
            return dict(self._ranks.get((arm, launch), {}))

    def tell(self, arm: str, launch: int, word: str) -> None:
        """Send a word to every supervisor of an arm and wait until each has done it.

        Raises:
            LaunchError: a supervisor does not answer in time, or says that it could not.
        """
        answers = self._ask([one for one in self.of(arm, launch).values() if not one.is_gone], word)
        failed = next((one for one in answers if one.failed), None)
        if failed is not None:
            raise LaunchError(f"rank {failed.rank.rank} on {failed.rank.host}: {failed.text}")

    def counters(self, arm: str, launch: int) -> dict[str, HostCounters]:
        """The counters of every host of an arm, by host; those are left out that cannot be read.

        Raises:
            LaunchError: a supervisor does not answer in time.
        """
        one_each: dict[str, SupervisedRank] = {}
        for _, one in sorted(self.of(arm, launch).items()):
            if not one.is_gone:
                one_each.setdefault(one.host, one)
        found = {}
        for answer in self._ask(list(one_each.values()), COUNTERS):
            if not answer.failed:
                with contextlib.suppress(ValidationError):
                    found[answer.rank.host] = HostCounters.model_validate_json(answer.text)
        return found

    def _ask(self, ranks: Sequence[SupervisedRank], word: str) -> list[Answer]:
        """Send a word to these supervisors and wait for the answers of those whose ranks do not end meanwhile.

        Raises:
            LaunchError: one does not answer in time.
        """
        line = f"{word}\n".encode()
        for one in ranks:
            with contextlib.suppress(OSError):  # it has closed: the answer that is waited for tells
                one.connection.send(line, socket.MSG_DONTWAIT)
        answers = [self._await_answer(one, word) for one in ranks]
        return [answer for answer in answers if answer is not None]

    def gone(self, arm: str, launch: int) -> dict[int, float]:
        """Return the ended ranks of an arm in the order they ended, and when (``SupervisedRank.gone_at_s``). Does not wait."""
        ranks = self.of(arm, launch).values()
        for one in _that_spoke([one for one in ranks if not one.is_gone]):
            with contextlib.suppress(BlockingIOError):
                while not one.is_gone:
                    _hear(one, timeout_s=0)
        return {one.rank: one.gone_at_s for one in sorted(ranks, key=lambda one: one.gone_at_s) if one.is_gone}

    def driver_time(self, arm: str, launch: int, rank: int, at_s: float) -> float:
        """Convert a time of a rank's host to the driver's clock, seconds since the epoch, by its quickest report."""
        ranks = self.of(arm, launch)
        if rank not in ranks:
            return at_s
        return at_s + min(one.clock_behind_s for one in ranks.values() if one.host == ranks[rank].host)

    def release(self, arm: str, launch: int) -> None:
        """Close an arm's connections; supervisors then kill ranks that still run."""
        with self._lock:
            ranks = self._ranks.pop((arm, launch), {})
        for one in ranks.values():
            one.connection.close()

    def close(self) -> None:
        """Close everything."""
        self._server.close()
        for arm, launch in list(self._ranks):
            self.release(arm, launch)

    def _welcome(self, connection: socket.socket, who: Sequence[str]) -> None:
        """Take in a rank's supervisor; its second is let go."""
        arm, launch, rank, host, pid, at_s = who
        behind_s = time.time() - float(at_s)
        one = SupervisedRank(rank=int(rank), host=host, pid=int(pid), connection=connection, clock_behind_s=behind_s)
        with self._lock:
            known = self._ranks.setdefault((arm, int(launch)), {}).setdefault(one.rank, one)
        if known is not one:
            raise ConnectionError("its rank has a supervisor")

    @staticmethod
    def _await_answer(one: SupervisedRank, word: str) -> Answer | None:
        """None if its rank ends."""
        deadline = time.monotonic() + ACKNOWLEDGE_TIMEOUT_S
        while not one.is_gone and (answer := _take_answer(one, word)) is None:
            try:
                _hear(one, timeout_s=max(0.01, deadline - time.monotonic()))
            except TimeoutError:
                raise LaunchError(f"rank {one.rank} on {one.host} was not told to {word}: its supervisor does not answer") from None
        return None if one.is_gone else answer


def _that_spoke(ranks: Sequence[SupervisedRank]) -> list[SupervisedRank]:
    """Those of whom something can be received, by one question to the kernel. Does not wait."""
    waiting, known = select.poll(), {one.connection.fileno(): one for one in ranks}
    for descriptor in known:
        waiting.register(descriptor, select.POLLIN)
    return [known[descriptor] for descriptor, _ in waiting.poll(0)]


def _take_answer(one: SupervisedRank, word: str) -> Answer | None:
    """Take the answer to a word, and all before it, from what a supervisor said; None if there is none yet."""
    if one.pending == f"{word}\n".encode():  # as a thousand ranks say at each stop
        one.pending = b""
        return Answer(rank=one, failed=False, text="")
    for line in one.pending.split(b"\n")[:-1]:
        text = line.decode()
        failed = text.startswith(f"{FAILED} {word} ")
        if failed or text == word or text.startswith(f"{word} "):
            one.pending = one.pending.partition(line + b"\n")[2]
            return Answer(rank=one, failed=failed, text=text.removeprefix(f"{FAILED} ").removeprefix(word).strip())
    return None


def _hear(one: SupervisedRank, *, timeout_s: float) -> None:
    """Receive what its supervisor sent: words, or the end of the connection.

    Raises:
        TimeoutError: nothing has come in time.
        BlockingIOError: nothing is there, and ``timeout_s`` is 0.
    """
    try:
        data = _receive(one.connection, timeout_s=timeout_s)
    except OSError as error:
        if isinstance(error, BlockingIOError) or error.errno is None:  # not yet; the kernel's own time-out, ETIMEDOUT, is the end
            raise
        data = b""
    one.pending += data
    if not data:
        one.is_gone = True
        for line in one.pending.decode(errors="replace").split("\n")[:-1]:
            if line.startswith(f"{GONE} "):
                one.gone_at_s = float(line.removeprefix(GONE))


def _receive(connection: socket.socket, *, timeout_s: float) -> bytes:
    """What is there, or comes in time. Most ranks have answered while the first was waited for."""
    try:
        return connection.recv(ANSWER_BYTES, socket.MSG_DONTWAIT)
    except BlockingIOError:
        if not timeout_s:
            raise
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    if not waiting.poll(1000 * timeout_s):
        raise TimeoutError
    return connection.recv(ANSWER_BYTES, socket.MSG_DONTWAIT)
