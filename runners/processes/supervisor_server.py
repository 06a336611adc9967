"""The driver's end of the wardens' connections: stop, continue and kill ranks on any host, and learn of their death."""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field

from measurement.errors import LaunchError
from runners.warden import GONE, keep_alive

ACKNOWLEDGE_TIMEOUT_S = 10.0


@dataclass(kw_only=True)
class Ward:
    """One rank as its warden knows it."""

    rank: int
    host: str
    pid: int
    connection: socket.socket
    is_gone: bool = False
    gone_at_s: float = math.inf
    """When its process ended, seconds since the epoch by its host's clock; infinite where its warden could not say."""
    pending: bytes = field(default=b"", repr=False)


class Wardens:
    """Accepts the wardens of all ranks of a comparison; a thread takes the connections, the driver's thread speaks to them."""

    def __init__(self, *, address: str) -> None:
        self.token = secrets.token_hex(16)
        self._server = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        self._address = address
        self._wards: dict[tuple[str, int], dict[int, Ward]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="ringside-wardens", daemon=True).start()

    @property
    def address(self) -> str:
        """``host:port`` for the wardens to connect to."""
        address = f"[{self._address}]" if ":" in self._address else self._address
        return f"{address}:{self._server.getsockname()[1]}"

    def of(self, arm: str, launch: int) -> dict[int, Ward]:
        """The ranks of an arm whose wardens have reported, by rank."""
        with self._lock:
            return dict(self._wards.get((arm, launch), {}))

    def tell(self, arm: str, launch: int, word: str) -> None:
        """Have every warden of an arm do something, all at once, and wait until each has done it.

        Raises:
            LaunchError: a warden does not answer in time.
        """
        wards = [ward for ward in self.of(arm, launch).values() if not ward.is_gone]
        for ward in wards:
            with contextlib.suppress(OSError):  # it has closed: the answer that is waited for tells
                ward.connection.sendall(f"{word}\n".encode())
        for ward in wards:
            self._await_word(ward, word)

    def gone(self, arm: str, launch: int) -> dict[int, float]:
        """The ranks of an arm whose process has ended, first the first to end, and when (``Ward.gone_at_s``). Does not wait."""
        wards = self.of(arm, launch).values()
        for ward in wards:
            with contextlib.suppress(BlockingIOError):
                while not ward.is_gone:
                    _hear(ward, timeout_s=0)
        return {ward.rank: ward.gone_at_s for ward in sorted(wards, key=lambda ward: ward.gone_at_s) if ward.is_gone}

    def release(self, arm: str, launch: int) -> None:
        """Close an arm's connections: wardens whose rank still runs kill it."""
        with self._lock:
            wards = self._wards.pop((arm, launch), {})
        for ward in wards.values():
            ward.connection.close()

    def close(self) -> None:
        """Close everything."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for arm, launch in list(self._wards):
            self.release(arm, launch)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        connection.settimeout(ACKNOWLEDGE_TIMEOUT_S)
        line = b""
        try:
            while not line.endswith(b"\n") and len(line) < 1024:
                line += connection.recv(1)
            token, arm, launch, rank, host, pid = line.decode().split()
        except (OSError, ValueError):
            connection.close()
            return
        if not secrets.compare_digest(token, self.token):
            connection.close()
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
        with self._lock:
            wards = self._wards.setdefault((arm, int(launch)), {})
            wards[int(rank)] = Ward(rank=int(rank), host=host, pid=int(pid), connection=connection)

    @staticmethod
    def _await_word(ward: Ward, word: str) -> None:
        deadline = time.monotonic() + ACKNOWLEDGE_TIMEOUT_S
        line = f"{word}\n".encode()
        while not ward.is_gone and line not in ward.pending:
            try:
                _hear(ward, timeout_s=max(0.01, deadline - time.monotonic()))
            except TimeoutError:
                raise LaunchError(f"rank {ward.rank} on {ward.host} was not told to {word}: its warden does not answer") from None
        ward.pending = ward.pending.partition(line)[2]


def _hear(ward: Ward, *, timeout_s: float) -> None:
    """Take what its warden has sent next: words, or the end.

    Raises:
        TimeoutError: nothing has come in time.
        BlockingIOError: nothing is there, and ``timeout_s`` is 0.
    """
    ward.connection.settimeout(timeout_s)
    try:
        data = ward.connection.recv(4096)
    except OSError as error:
        if isinstance(error, BlockingIOError) or error.errno is None:  # not yet; the kernel's own time-out, ETIMEDOUT, is the end
            raise
        data = b""
    ward.pending += data
    if not data:
        ward.is_gone = True
        said = ward.pending.decode().split()
        if GONE in said[:-1]:
            ward.gone_at_s = float(said[said.index(GONE) + 1])
