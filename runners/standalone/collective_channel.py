"""How the ranks of a standalone run speak: rank 0's commands and all replies go over the backend's own collectives."""

from __future__ import annotations

from collections.abc import Sequence

from backends import Backend

NOTHING = b" "
"""Broadcasts have at least one byte."""


class CollectiveChannel:
    """Commands and replies of ranks that have met. Every method is collective; none is called while steps are timed."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def send(self, text: str) -> None:
        """Give the other ranks a command; on rank 0."""
        self._backend.broadcast_bytes(text.encode())

    def receive(self) -> bytes:
        """Return rank 0's next command; on the other ranks."""
        return self._backend.broadcast_bytes(NOTHING)

    def reply(self, text: str) -> Sequence[bytes]:
        """Answer the last command; returns every rank's reply, by rank."""
        return self._backend.all_gather_bytes(text.encode())

    def part(self, error: str = "") -> str:
        """End together, once rank 0 has written the record; returns the error that it ends with, if any."""
        return self._backend.broadcast_bytes(error.encode() or NOTHING).decode().strip()
