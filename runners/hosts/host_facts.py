"""Reports what a host is, before ranks start there.

The driver runs ``python -m runners.hosts.host_facts DRIVER:PORT HOST...`` on each, with the names of all hosts. It answers with
JSON. With ``--free-port`` in the place of the driver's address: a port to serve at. It imports nothing of size.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from typing import Any

import psutil

from measurement.addresses import free_port, split_port
from measurement.conditions.conditions import fingerprint
from measurement.probes.fingerprint import cards, exclusive_cards
from measurement.probes.installed_mpi import installed_mpi
from runners.hosts.names import look
from runners.processes.answers import give

FREE_PORT = "--free-port"
NAMES, CARDS, EXCLUSIVE = "names", "cards", "exclusive_cards"
CONNECT_TIMEOUT_S = 5.0


def main(driver: str, *hosts: str) -> None:
    """Give the facts."""
    if driver == FREE_PORT:
        give(str(free_port()))
        return
    give(json.dumps(facts(driver, hosts)))


def facts(driver: str, hosts: Sequence[str]) -> dict[str, Any]:
    """The fingerprint, and what else the preflight must know.

    GPUs (``cards``), those that one process has for itself (``exclusive_cards``), why the driver is not reached
    (``driver_error``), what names mean (``names``).
    """
    return {
        **fingerprint(),
        "mpirun": str(mpi) if (mpi := installed_mpi("mpirun")) else None,
        "interfaces": sorted(psutil.net_if_addrs()),
        "driver_error": reach(driver),
        CARDS: cards(),
        EXCLUSIVE: exclusive_cards(),
        NAMES: look(hosts),
    }


def reach(driver: str) -> str | None:
    """Return why the driver cannot be reached from here; None if it can."""
    try:
        socket.create_connection(split_port(driver), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return str(error)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
