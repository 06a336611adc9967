"""The protocol of driver, supervisors and ranks: lines, some of which are followed by the bytes of
a message, and messages, each signed.

``say PLACE LENGTH`` is followed by a message of so many bytes, for or from a rank. With more places
and lengths, it is followed by as many messages. All other lines have no message.

A rank does what a message says, and a message passes through supervisors and over networks. So each
carries an HMAC of its place and its text, by the comparison's key. A place is used once, so that no
message can be replayed as another.
"""

from __future__ import annotations

import hmac
from typing import Iterator, Sequence

SAY = "say"
AT_ONCE = 1 << 18
"""Bytes that are received at once, on every side."""
MAX_MESSAGE = 1 << 30
MAX_LINE = 1 << 20
"""Bytes: the counters of a host with many cores are one line."""
PROOF_BYTES = 32


def pack(line: str, message: bytes = b"") -> bytes:
    """The bytes of a frame. ``line`` must name the message's length, see ``say``."""
    return line.encode() + b"\n" + message


def say(place: str, message: bytes) -> bytes:
    """The bytes by which a message is sent to its place, which has no spaces."""
    return pack(f"{SAY} {place} {len(message)}", message)


def pack_all(frames: Sequence[tuple[str, bytes]]) -> bytes:
    """The bytes of several frames with messages, as one."""
    lines = [line.partition(" ")[2] for line, _ in frames]
    return pack(f"{SAY} {' '.join(lines)}", b"".join([message for _, message in frames]))


def messages_in(line: str, message: bytes) -> Iterator[tuple[str, bytes]]:
    """The messages of a frame, with their places."""
    _, *words = line.split(" ")
    begin = 0
    for place, length in zip(words[::2], map(int, words[1::2])):
        yield place, message[begin : begin + length]
        begin += length


class Frames:
    """Cuts what a connection receives into frames."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._line: str | None = None
        """The line whose message is still incomplete."""
        self._length = 0

    def add(self, data: bytes) -> list[tuple[str, bytes]]:
        """Take what was received; returns the frames that are now complete: lines, and their
        messages, mostly empty.

        Raises:
            ConnectionError: the other side does not follow this protocol.
        """
        pending = self._pending
        messages: list[tuple[str, bytes]] = []
        pending += data
        while True:
            if self._line is None:
                end = pending.find(b"\n")
                if end < 0:
                    if len(pending) > MAX_LINE:
                        raise ConnectionError("no line came")
                    return messages
                self._line = pending[:end].decode(errors="replace")
                del pending[: end + 1]
                self._length = _length_of(self._line)
            if len(pending) < self._length:
                return messages
            messages.append((self._line, bytes(pending[: self._length])))
            del pending[: self._length]
            self._line = None


def _length_of(line: str) -> int:
    if not line.startswith(f"{SAY} "):
        return 0
    words = line.split(" ")[2::2]
    are_numbers = all(word.isdecimal() for word in words)
    if not are_numbers or sum(map(int, words)) > MAX_MESSAGE:
        raise ConnectionError(f"invalid message lengths: {' and '.join(words)} bytes")
    return sum(map(int, words))


def commands(arm: str, launch: int) -> str:
    """How the places of an arm's commands begin; a command's number follows."""
    return f"{launch}/{arm}/command/"


def command_key(arm: str, launch: int, number: int) -> str:
    """Place of an arm's ``number``-th command."""
    return f"{commands(arm, launch)}{number}"


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
