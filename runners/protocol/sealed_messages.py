"""Messages between driver and ranks, in a store that anybody may write to who reaches its port: each proves who wrote it.

PyTorch's ``TCPStore`` asks nobody for a credential, and a rank imports what its job names. So each message carries an HMAC of its
key in the store and its text, by the comparison's key. A key in the store is used once, so that no message can stand for another.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from measurement.errors import LaunchError


class SealedStore:
    """A store whose messages are proven. Driver and ranks have one each."""

    def __init__(self, store: Any, *, key: str) -> None:
        """``store``: a ``torch.distributed.Store``."""
        self.bare = store
        """For what the libraries themselves meet over."""
        self._key = key.encode()

    def set(self, place: str, text: str) -> None:
        """Put a message in its place."""
        self.bare.set(place, f"{self._proof(place, text.encode())} {text}")

    def get(self, place: str) -> bytes:
        """Return the message of a place once it is there; raises a ``LaunchError`` where somebody else has written it."""
        return self._proven(place, bytes(self.bare.get(place)))

    def get_all(self, places: Sequence[str]) -> list[bytes]:
        """Return the messages of places in one request once all are there; raises as ``get`` does."""
        return [self._proven(place, bytes(sealed)) for place, sealed in zip(places, self.bare.multi_get(list(places)), strict=True)]

    def _proven(self, place: str, sealed: bytes) -> bytes:
        proof, _, text = sealed.partition(b" ")
        if not hmac.compare_digest(proof, self._proof(place, text).encode()):
            raise LaunchError(
                f"the message '{place}' in the driver's store was not written by this comparison: somebody else on the network "
                "reaches the store's port; close it to others (docs/security.md)"
            )
        return text

    def wait(self, places: Sequence[str], timeout: timedelta) -> bool:
        """Wait until there is a message in each place; returns whether there was in time."""
        from torch.distributed import DistStoreError

        try:
            self.bare.wait(list(places), timeout)
        except DistStoreError:
            return False
        return True

    def has(self, place: str) -> bool:
        """Whether there is a message. Does not wait."""
        return bool(self.bare.check([place]))

    def remove(self, place: str) -> None:
        """Remove a message."""
        self.bare.delete_key(place)

    def _proof(self, place: str, text: bytes) -> str:
        return hmac.new(self._key, place.encode() + b"\0" + text, hashlib.sha256).hexdigest()
