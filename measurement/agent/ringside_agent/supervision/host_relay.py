"""Supervisors' connections.

The first one of an arm on its host is connected to the driver, for all ranks of the arm there.

The others connect to the first, over a socket in the kernel's abstract namespace whose name follows
from the comparison's key. So the driver has one connection for each host, and not one for each
rank. On a host without such sockets, each connects to the driver.

From the driver, and from the first to the others:

- a word (``stop``, ``continue``, ``trace``, ``kill``): each carries it out, and the first answers
  when all have; ``failed WORD RANK WHY`` where one could not
- ``counters``: the first answers with those of the host
- ``say`` and a message, which is for every rank

To the driver:

- ``joined RANK WORLD_SIZE PID CLOCK``: another rank has connected; the first one's own is in its
  greeting
- ``refused RANK WORLD_SIZE PID CLOCK``: a second process claims a connected rank, and its
  connection is closed
- ``gone RANK CLOCK``: a rank has ended, by this host's clock, or its supervisor has
- answers to words, and ``say`` with the messages of ranks, those of one host together

If its connection ends, a supervisor kills its rank and ends.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Sequence

from .frames import AT_ONCE, SAY, Frames, pack, pack_all
from .rank_supervisor import (
    COUNTERS,
    FAILED,
    GONE,
    GREETING_S,
    JOINED,
    REFUSED,
    STOP_TIMEOUT_S,
    ProcessTree,
    greet,
    is_parent,
    keep_alive,
    kill_rank,
    open_pidfd,
    prove,
    read_counters,
)

HOLD_S = 0.02
"""How long a message waits at most for those of the host's other ranks, so that the driver is woken
once."""
NO_PIDFD_S = 0.2
"""How often the rank is checked where the kernel does not report its end."""
FOLLOWER_S = STOP_TIMEOUT_S + 5
"""A follower that does not answer within this is reported, before the driver gives up on this
supervisor."""
LATEST = 2
"""Messages that a rank which connects late may still need: its job, and the command after it."""


def watch(driver: str, key_file: str, channel: str, *, who: Sequence[str]) -> None:
    """Obey the driver until it or the rank has ended.

    If this process gets a signal to end, it kills its rank first.

    ``channel`` is the descriptor of a socket to the rank; ``who``: arm, launch, start, rank, world
    size, host and pid.
    """
    _, _, _, rank, _, host, pid = who
    tree = ProcessTree(int(pid))
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_both(*_: object) -> None:
        kill_rank(tree)
        os._exit(1)

    for sent in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sent, end_both)
    # of the rank, if that is still the parent: then its pid was not reused
    ended = open_pidfd(tree.root)
    address, _, port = driver.rpartition(":")
    try:
        key = Path(key_file).read_text(encoding="utf-8")
        connection, listener = join((address.strip("[]"), int(port)), key, who)
    except OSError as error:
        kill_rank(tree)
        sys.exit(
            f"ringside: the supervisor of rank {rank} on {host} cannot reach the driver at"
            f" {driver}: {error}"
        )
    try:
        rank_channel = socket.socket(fileno=int(channel))
        Relay(
            connection,
            rank_channel=rank_channel,
            listener=listener,
            tree=tree,
            ended=ended,
            rank=int(rank),
        ).serve()
    except OSError:  # connection reset: the driver, or the host's first supervisor, has ended
        pass
    finally:
        kill_rank(tree)


def join(
    address: tuple[str, int], key: str, who: Sequence[str]
) -> tuple[socket.socket, socket.socket | None]:
    """Connect to the arm's first supervisor on this host; where this is the first one, to the
    driver.

    Returns:
        The connection, and the socket at which the others connect; None where they do not connect
        here.

    Raises:
        OSError: the driver cannot be reached.
    """
    arm, launch, start, rank, world_size, host, pid = who
    name = "\0ringside-" + prove(key, "meet", arm, launch, start, host)
    deadline = time.monotonic() + GREETING_S
    while time.monotonic() < deadline:
        meeting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            meeting.bind(name)
            meeting.listen(socket.SOMAXCONN)
        except OSError as error:
            meeting.close()
            if error.errno != errno.EADDRINUSE:
                break
        else:
            return _to_the_driver(address, key, who), meeting
        first = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):  # it does not listen yet, or no longer
            first.connect(name)
            if not _is_ours(first):
                first.close()
                break
            first.sendall(pack(f"{JOINED} {rank} {world_size} {pid} {time.time()}"))
            return first, None
        first.close()
        time.sleep(0.01)
    return _to_the_driver(address, key, who), None


def _to_the_driver(address: tuple[str, int], key: str, who: Sequence[str]) -> socket.socket:
    connection = greet(address, key, who)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(connection)
    return connection


def _is_ours(connection: socket.socket) -> bool:
    """Whether the other side's process belongs to this user."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    return bool(struct.unpack("3i", credentials)[1] == os.geteuid())


class PeerSupervisor:
    """Another supervisor of the host, as the first one knows it."""

    def __init__(self) -> None:
        self.frames = Frames()
        self.rank: int | None = None
        """None until it has sent it."""
        self.is_gone = False

    @property
    def has_rank(self) -> bool:
        """Whether its rank is known, and has not ended."""
        return self.rank is not None and not self.is_gone


class Relay:
    """Passes messages between the driver, its own rank, and the host's other supervisors, which
    only the first one has.
    """

    def __init__(
        self,
        driver: socket.socket,
        *,
        rank_channel: socket.socket,
        listener: socket.socket | None,
        tree: ProcessTree,
        ended: int | None,
        rank: int,
    ) -> None:
        """``driver``, ``rank_channel``: connections to them; ``listener``: where others connect;
        ``ended``: the rank's pidfd.
        """
        self._driver, self._rank_channel, self._listener = driver, rank_channel, listener
        self._tree, self._ended, self._rank = tree, ended, rank
        self._from_driver, self._from_rank = Frames(), Frames()
        self._followers: dict[socket.socket, PeerSupervisor] = {}
        self._latest: deque[bytes] = deque(maxlen=LATEST)
        self._held: list[tuple[str, bytes]] = []
        self._held_until = math.inf
        self._words: deque[str] = deque()
        """From the driver, not carried out yet."""
        self._word: str | None = None
        """The word that is being carried out."""
        self._answers = b""
        """To earlier words, not sent yet."""
        self._awaited: set[socket.socket] = set()
        self._failure = ""
        self._late = math.inf
        """When the awaited followers are late."""
        self._hears_rank, self._is_gone = True, False

    def serve(self) -> None:
        """Serve until the driver closes, or all ranks of the host have ended.

        Raises:
            OSError: a connection broke.
        """
        while not self._is_gone or self._followers:
            ready, _, _ = select.select(self._sources(), [], [], self._patience_s())
            if self._driver in ready and not self._hear_driver():
                return
            if self._rank_channel in ready:
                self._hear_rank()
            if self._listener in ready:
                self._welcome()
            if not self._is_gone and not is_parent(self._tree.root):
                self._tell_own_end()
            for connection in [source for source in ready if source in self._followers]:
                self._hear_follower(connection)
            now = time.monotonic()
            if now > self._held_until:
                self._pass_held()
            if now > self._late:
                late = min(self._followers[connection].rank or 0 for connection in self._awaited)
                self._failure = f"{FAILED} {self._word} {late} its supervisor does not answer"
                self._awaited.clear()
                self._answer()
            self._do_next()

    def _sources(self) -> list[Any]:
        sources: list[Any] = [self._driver, *self._followers]
        if not self._is_gone:
            sources += [source for source in (self._ended, self._listener) if source is not None]
            sources += [self._rank_channel] if self._hears_rank else []
        return sources

    def _patience_s(self) -> float | None:
        until = min(self._held_until, self._late)
        if self._ended is None and not self._is_gone:
            until = min(until, time.monotonic() + NO_PIDFD_S)
        return None if until == math.inf else max(0.0, until - time.monotonic())

    def _hear_driver(self) -> bool:
        """Pass on or carry out what the driver sends; returns whether it is still connected."""
        received = self._driver.recv(AT_ONCE)
        for line, message in self._from_driver.add(received):
            if line.startswith(f"{SAY} "):
                frame = pack(line, message)
                self._latest.append(frame)
                if not self._is_gone:
                    _give(self._rank_channel, frame)
                for connection, follower in self._followers.items():
                    if follower.rank is not None:
                        _give(connection, frame)
            else:
                self._words.append(line)
        return bool(received)

    def _do_next(self) -> None:
        """Carry out the words one after another, each when all ranks have finished the one
        before.
        """
        while self._words and self._word is None:
            word = self._words.popleft()
            if word == COUNTERS:
                self._answers += pack(read_counters(self._rank))
            else:
                self._do(word)
        if self._answers and self._word is None:  # together, so that the driver is woken once
            self._driver.sendall(self._answers)
            self._answers = b""

    def _do(self, word: str) -> None:
        """Carry out the word, and have the followers do so; the answer is sent when all have."""
        self._word, self._failure, self._late = word, "", time.monotonic() + FOLLOWER_S
        self._awaited = {
            connection for connection, follower in self._followers.items() if follower.has_rank
        }
        for connection in self._awaited:
            _give(connection, pack(word))
        if not self._is_gone and is_parent(self._tree.root):
            why = self._tree.obey(word)
            self._failure = f"{FAILED} {word} {self._rank} {why}" if why else ""
        self._answer()

    def _answer(self) -> None:
        """Prepare the answer to the driver's word, if no follower is awaited."""
        if self._word is not None and not self._awaited:
            self._answers += pack(self._failure or self._word)
            self._word, self._late = None, math.inf

    def _hear_rank(self) -> None:
        """Take what the rank sends.

        Loader workers that it forked may keep its end open, so this does not show its end.
        """
        received = _receive(self._rank_channel)
        self._hears_rank = bool(received)
        for frame in self._from_rank.add(received):
            self._hold(frame)

    def _tell_own_end(self) -> None:
        """Tell the driver that the rank has ended, after all that it sent."""
        at_s = time.time()
        self._rank_channel.setblocking(False)
        while self._hears_rank:
            self._hear_rank()
        self._is_gone = True
        if self._listener is not None:
            self._listener.close()  # a supervisor that starts now is a first one
        self._pass_held()
        self._driver.sendall(pack(f"{GONE} {self._rank} {at_s}"))

    def _hold(self, frame: tuple[str, bytes]) -> None:
        """Keep a message until the host's other ranks have sent theirs, for a moment."""
        self._held.append(frame)
        self._held_until = min(self._held_until, time.monotonic() + HOLD_S)
        others = sum(follower.has_rank for follower in self._followers.values())
        if len(self._held) >= others + (not self._is_gone):
            self._pass_held()

    def _pass_held(self) -> None:
        if self._held:
            self._driver.sendall(pack_all(self._held))
        self._held, self._held_until = [], math.inf

    def _welcome(self) -> None:
        """Accept another supervisor of the same user; it sends its rank next."""
        assert self._listener is not None
        connection, _ = self._listener.accept()
        if _is_ours(connection):
            self._followers[connection] = PeerSupervisor()
        else:
            connection.close()

    def _hear_follower(self, connection: socket.socket) -> None:
        """Pass on what a follower sends, or that it has ended."""
        follower = self._followers[connection]
        received = _receive(connection)
        for line, message in follower.frames.add(received):
            verb, _, rest = line.partition(" ")
            if verb == SAY:
                self._hold((line, message))
            elif verb == JOINED:
                self._join(connection, int(rest.partition(" ")[0]), line)
            elif verb == GONE:
                follower.is_gone = True
                self._pass_held()
                self._driver.sendall(pack(line))
            elif line == self._word:
                self._awaited.discard(connection)
            elif line.startswith(f"{FAILED} {self._word} "):
                self._failure = self._failure or line
                self._awaited.discard(connection)
        if not received or follower.rank is None:
            self._lose(connection)
        self._answer()

    def _join(self, connection: socket.socket, rank: int, line: str) -> None:
        """A follower sends its rank.

        A second one for a rank is refused: its messages would no longer reach the first.
        """
        if rank == self._rank or any(
            follower.rank == rank for follower in self._followers.values()
        ):
            self._driver.sendall(pack(line.replace(JOINED, REFUSED, 1)))
            return
        self._followers[connection].rank = rank
        self._driver.sendall(pack(line))
        for frame in self._latest:
            _give(connection, frame)

    def _lose(self, connection: socket.socket) -> None:
        follower = self._followers.pop(connection)
        connection.close()
        self._awaited.discard(connection)
        if follower.has_rank:
            self._pass_held()
            self._driver.sendall(pack(f"{GONE} {follower.rank} {time.time()}"))


def _give(connection: socket.socket, frame: bytes) -> None:
    with contextlib.suppress(OSError):  # it has ended, which is seen when it is read from
        connection.sendall(frame)


def _receive(connection: socket.socket) -> bytes:
    """What has been received; empty where the other side has closed, or a nonblocking socket has
    nothing.
    """
    try:
        return connection.recv(AT_ONCE)
    except OSError:
        return b""
