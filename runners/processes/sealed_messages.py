"""Messages between driver and ranks. Each proves that the comparison's own wrote it.

A rank imports what its job names, and a message passes through supervisors and over networks. So each carries an HMAC of its place
and its text, by the comparison's key. A place is used once, so that no message can stand for another.
"""

from __future__ import annotations

import hmac
import socket

from measurement.errors import LaunchError
from runners.probe.ringside_probe.supervision.frames import AT_ONCE, SAY, Frames, messages_in, say

PROOF_BYTES = 32


def seal(key: str, place: str, text: str) -> bytes:
    """The bytes of a message: its proof and its text."""
    written = text.encode()
    return _proof(key, place, written) + written


def unseal(key: str, place: str, sealed: bytes) -> bytes:
    """The text of a message; raises a ``LaunchError`` where somebody else has written it."""
    proof, text = sealed[:PROOF_BYTES], sealed[PROOF_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, place, text)):
        raise LaunchError(
            f"the message '{place}' was not written by this comparison: somebody else on the network reaches its connections; "
            "close the driver's ports to others (docs/security.md)"
        )
    return text


def _proof(key: str, place: str, text: bytes) -> bytes:
    return hmac.digest(key.encode(), place.encode() + b"\0" + text, "sha256")


class RankMessages:
    """A rank's messages from and to the driver, which its supervisor hands on."""

    def __init__(self, channel: socket.socket, *, key: str) -> None:
        """``channel``: to the supervisor, see ``rank_supervisor.start``."""
        self._channel, self._key = channel, key
        self._frames = Frames()
        self._read: dict[str, bytes] = {}
        """What came before it was asked for."""

    def get(self, place: str) -> bytes:
        """Wait for the message of a place. Raises a ``LaunchError`` where somebody else has written it, or none can come."""
        while place not in self._read:
            received = self._channel.recv(AT_ONCE)
            if not received:
                raise LaunchError("the supervisor of this rank has ended")
            for line, message in self._frames.add(received):
                if line.startswith(SAY):
                    self._read.update(messages_in(line, message))
        return unseal(self._key, place, self._read.pop(place))

    def set(self, place: str, text: str) -> None:
        """Send a message to the driver. Raises an ``OSError`` where the way is cut."""
        self._channel.sendall(say(place, seal(self._key, place, text)))
