"""The way between a script's rank and the driver: lines of JSON over a socket, each with the proof of who wrote it.

The driver's side (``runners.scripts.probe_server``) writes and reads them by the same functions.
"""

from __future__ import annotations

import hmac
import json
import select
import socket
from typing import Any, Sequence

from .supervision.rank_supervisor import prove


def sealed(key: str, kind: str, rank: Sequence[str], number: int, text: str) -> bytes:
    """A line that only who has the key can write. ``kind``: ``command`` or ``reply``; ``number``: of the command."""
    proof = prove(key, kind, *rank, str(number), text)
    return (json.dumps({"number": number, "text": text, "proof": proof}) + "\n").encode()


def opened(line: bytes, key: str, kind: str, rank: Sequence[str]) -> tuple[int, str] | None:
    """Number and text of a line; None where it is not whole, or another one wrote it."""
    if not line.endswith(b"\n"):
        return None
    told = json.loads(line)
    number, text = int(told["number"]), str(told["text"])
    proof = prove(key, kind, *rank, str(number), text)
    return (number, text) if hmac.compare_digest(str(told["proof"]), proof) else None


class Channel:
    """Receives commands and sends replies. ``rank`` holds arm, launch, start and rank."""

    def __init__(self, connection: socket.socket, *, key: str, rank: Sequence[str]) -> None:
        self.connection = connection
        self.outstanding: int | None = None
        """Number of the command that has no reply yet."""
        self.is_over = False
        """Nothing is told to the driver any more."""
        self._key, self._rank = key, tuple(rank)
        self._lines = connection.makefile("rb")

    def receive(self, *, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Wait for the next command; None where the driver has gone, or sent none in time."""
        try:
            if timeout_s is not None and not select.select([self.connection], [], [], timeout_s)[0]:
                return None
            line = self._lines.readline()
        except (OSError, ValueError):
            return None
        found = opened(line, self._key, "command", self._rank)
        if found is None:
            return None
        self.outstanding, text = found
        command: dict[str, Any] = json.loads(text)
        return command

    def reply(self, message: dict[str, Any]) -> bool:
        """Answer the last command; returns whether the driver was there. A second answer is not sent."""
        if self.outstanding is None:
            return True
        number, self.outstanding = self.outstanding, None
        try:
            self.connection.sendall(sealed(self._key, "reply", self._rank, number, json.dumps(message)))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close this process's end."""
        self._lines.close()
        self.connection.close()
