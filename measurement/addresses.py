"""Network addresses and ports of this host: their families, how they are written, and which ports
are free.
"""

from __future__ import annotations

import random
import socket
from collections import deque

LOOPBACK = "127.0.0.1"
PORTS = range(20000, 32000)
"""Below Linux's ports for outgoing connections, which are taken between choosing a port and
listening at it."""
TRIES = 50
_recent: deque[int] = deque(maxlen=1000)
"""Ports that were chosen here, and may not be in use yet."""


def family_of(address: str) -> socket.AddressFamily:
    """Family of an IP address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def with_port(host: str, port: int) -> str:
    """``host:port``; an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_port(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``; the inverse of ``with_port``."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def listen(address: str, port: int = 0) -> socket.socket:
    """A socket that listens at an address of this host; port 0: the kernel chooses one.

    Raises:
        OSError: the port is taken, or this is not an address of this host.
    """
    return socket.create_server((address, port), family=family_of(address))


def is_free(port: int) -> bool:
    """Whether a port is free on all IPv4 addresses of this host."""
    try:
        with listen("", port):
            return True
    except OSError:
        return False


def free_port() -> int:
    """A free port of this host, chosen at random; another one each time.

    Raises:
        OSError: none of many tried was free.
    """
    for port in random.sample(PORTS, k=TRIES):
        if port not in _recent and is_free(port):
            _recent.append(port)
            return port
    raise OSError(f"none of {TRIES} ports tried from {PORTS.start} to {PORTS.stop - 1} is free")
