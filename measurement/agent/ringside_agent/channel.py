"""A rank's connection to the driver: commands and replies, which its supervisor passes on, each
signed.

A rank does what a message says, and a message passes through supervisors and over networks. So each
carries an HMAC of its place and its text, by the comparison's key. A place is used once, so that no
message can be replayed as another.
"""

from __future__ import annotations

import hmac
import select
import socket
import sys
import time

from .place import World
from .settings import Settings
from .supervision import rank_supervisor
from .supervision.frames import AT_ONCE, SAY, Frames, messages_in, say

PROOF_BYTES = 32


def command_key(arm: str, launch: int, number: int) -> str:
    """Place of an arm's ``number``-th command."""
    return f"{launch}/{arm}/command/{number}"


def reply_key(arm: str, launch: int, number: int, rank: int) -> str:
    """Place of a rank's reply to that command."""
    return f"{launch}/{arm}/reply/{number}/{rank}"


def job_key(arm: str, launch: int) -> str:
    """Place of the arm's job."""
    return f"{launch}/{arm}/job"


def seal(key: str, place: str, text: str) -> bytes:
    """The bytes of a message: its proof and its text."""
    written = text.encode()
    return _proof(key, place, written) + written


def unseal(key: str, place: str, sealed: bytes) -> bytes:
    """The text of a message; raises a ``ConnectionError`` where its HMAC is wrong."""
    proof, text = sealed[:PROOF_BYTES], sealed[PROOF_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, place, text)):
        raise ConnectionError(f"the message '{place}' is not signed with this comparison's key")
    return text


def _proof(key: str, place: str, text: bytes) -> bytes:
    return hmac.new(key.encode(), place.encode() + b"\0" + text, "sha256").digest()


class Channel:
    """Receives commands and sends replies."""

    def __init__(
        self, connection: socket.socket, *, key: str, arm: str, launch: int, rank: int
    ) -> None:
        """``connection``: to the supervisor, see ``rank_supervisor.start``."""
        connection.settimeout(None)  # a script may have set another default
        self.outstanding: int | None = None
        """Number of the command that has no reply yet."""
        self._connection, self._key, self._arm, self._launch, self._rank = (
            connection,
            key,
            arm,
            launch,
            rank,
        )
        self._frames = Frames()
        self._read: dict[str, bytes] = {}
        """Messages received before they were asked for, by place."""

    def job(self) -> bytes:
        """Wait for the arm's job.

        Raises:
            ConnectionError: its HMAC is wrong, or the supervisor has ended.
        """
        place = job_key(self._arm, self._launch)
        while place not in self._read:
            self._listen(None)
        return unseal(self._key, place, self._read.pop(place))

    def receive(self, *, timeout_s: float | None = None) -> bytes:
        """Wait for the next command.

        Raises:
            ConnectionError: its HMAC is wrong, or the supervisor has ended.
            TimeoutError: none came in time.
        """
        beginning = command_key(self._arm, self._launch, 0)[:-1]
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (commands := [place for place in self._read if place.startswith(beginning)]):
            self._listen(None if deadline is None else deadline - time.monotonic())
        text = unseal(self._key, commands[0], self._read.pop(commands[0]))
        self.outstanding = int(commands[0][len(beginning) :])
        return text

    def reply(self, text: str) -> None:
        """Answer the last command.

        A second answer is not sent. Raises an ``OSError`` where the connection is lost.
        """
        if self.outstanding is not None:
            place = reply_key(self._arm, self._launch, self.outstanding, self._rank)
            self.outstanding = None
            self._connection.sendall(say(place, seal(self._key, place, text)))

    def close(self) -> None:
        """Close this process's end."""
        self._connection.close()

    def _listen(self, timeout_s: float | None) -> None:
        if (
            timeout_s is not None
            and not select.select([self._connection], [], [], max(0.0, timeout_s))[0]
        ):
            raise TimeoutError("no command came")
        received = self._connection.recv(AT_ONCE)
        if not received:
            raise ConnectionError("the supervisor of this rank has ended")
        for line, message in self._frames.add(received):
            if line.startswith(SAY):
                self._read.update(messages_in(line, message))


def join(settings: Settings, place: World, *, python: str = sys.executable) -> Channel:
    """Start this rank's supervisor, which connects to the driver; returns the channel.

    ``python`` runs the supervisor.
    """
    connection = rank_supervisor.start(
        settings.driver,
        settings.key_file,
        settings.arm,
        settings.launch,
        place.rank,
        world_size=place.world_size,
        start=settings.start,
        python=python,
    )
    with open(settings.key_file, encoding="utf-8") as file:
        return Channel(
            connection, key=file.read(), arm=settings.arm, launch=settings.launch, rank=place.rank
        )
