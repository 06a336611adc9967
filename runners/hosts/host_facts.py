"""What a host says of itself before ranks start there: ``python -m runners.host_facts DRIVER:PORT``, run on each by the driver.

One line of JSON; then, for every line it is sent, the time on its clock. With ``--free-port`` in the place of the driver's
address: a port to serve at. It imports nothing of size.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from typing import Any

import psutil

from measurement.fingerprint import fingerprint

FREE_PORT = "--free-port"
CONNECT_TIMEOUT_S = 5.0
PORTS = range(20000, 32000)
"""Below those that Linux gives to outgoing connections, of which many are made between choosing one and serving at it."""
TRIES = 50


def main(driver: str) -> None:
    """Tell, then answer."""
    if driver == FREE_PORT:
        print(free_port())
        return
    print(json.dumps(facts(driver)), flush=True)
    for _ in sys.stdin:
        print(repr(time.time()), flush=True)


def facts(driver: str) -> dict[str, Any]:
    """The fingerprint, and what else matters across hosts.

    Args:
        driver: address and port that the driver listens at; the key ``driver_error`` says why it is not reached.
    """
    return {
        **fingerprint(),
        "mpirun": mpirun_version(),
        "interfaces": sorted(psutil.net_if_addrs()),
        "driver_error": reach(driver),
    }


def mpirun_version() -> str | None:
    """The first line of ``mpirun --version``; None where there is none."""
    try:
        done = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout.strip().splitlines() or [""])[0] or None


def reach(driver: str) -> str | None:
    """Why the driver is not reached from here; None where it is."""
    address, _, port = driver.rpartition(":")
    try:
        socket.create_connection((address.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return str(error)
    return None


def free_port() -> int:
    """One that nobody serves at on this host, chosen at random.

    Raises:
        OSError: none of many.
    """
    for port in random.sample(PORTS, k=TRIES):
        try:
            with socket.create_server(("", port)):
                return port
        except OSError as error:
            refused = error
    raise refused


if __name__ == "__main__":
    main(sys.argv[1])
