"""A server to whose connections each says first who it is, with the proof that it belongs to the comparison."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence

from measurement.addresses import listen, with_port
from runners.probe.ringside_probe.supervision.rank_supervisor import keep_alive, prove, receive_line

GREETING_TIMEOUT_S = 5.0
MOST_GREETINGS = 128
"""Connections that have not said yet who they are; others are closed at once, and come again."""
REFUSED_S = 5.0
"""How long one that was let go counts among them."""
FULL_S = 0.05
"""How long the driver then accepts nobody. Both keep who floods it from taking a core of the measured ranks."""


class GreetingServer:
    """Accepts connections in a thread and hands over those that have the key. See ``rank_supervisor.greet`` for the other side."""

    def __init__(self, *, address: str, key: str, name: str, welcome: Callable[[socket.socket, Sequence[str]], None]) -> None:
        """``welcome`` gets a connection and its words. Where it raises an ``OSError`` or a ``ValueError``, it is closed."""
        self._key, self._address, self._welcome = key, address, welcome
        self._greetings = threading.BoundedSemaphore(MOST_GREETINGS)
        self._server = listen(address)
        threading.Thread(target=self._accept, name=name, daemon=True).start()

    @property
    def address(self) -> str:
        """``host:port`` to connect to."""
        return with_port(self._address, self._server.getsockname()[1])

    def close(self) -> None:
        """Accept nobody any more."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

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
        """Hear who it is; one that cannot prove it, is not welcome or takes its time is let go."""
        closing = threading.Timer(GREETING_TIMEOUT_S, _shut, [connection])
        closing.start()
        try:
            challenge = secrets.token_hex(16)
            connection.sendall(f"{challenge}\n".encode())
            *who, proof = receive_line(connection, most=1024).split()
            if not hmac.compare_digest(proof.encode(), prove(self._key, challenge, *who).encode()):
                raise ConnectionError("it does not have the key")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(connection)
            self._welcome(connection, who)
        except (OSError, ValueError):
            connection.close()
            closing.cancel()
            time.sleep(REFUSED_S)
        finally:
            closing.cancel()
            self._greetings.release()


def _shut(connection: socket.socket) -> None:
    """End whoever waits for this connection's other side."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
