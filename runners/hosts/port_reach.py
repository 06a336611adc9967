"""Whether ranks on each pair of hosts reach each other's ports: every host listens at one, and connects to all the others'.

``python -m runners.hosts.port_reach`` is one host's part. It answers with its port, reads all hosts' ports, answers with what it
could not reach, and listens until its input ends.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from runners.processes import remote
from runners.processes.answers import give

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0
REMEDY = (
    "ranks choose ports of their own: let no firewall between the hosts close them, and let each name mean the same address "
    "everywhere (or give --network-interface to your commands)"
)


def unreached(hosts: Sequence[str], *, here: Collection[str]) -> list[str]:
    """Try every pair of hosts, both ways. Each must answer over ssh.

    Args:
        hosts: by the names that ranks connect by.
        here: those that are this machine.

    Returns:
        A line for each way that is closed.
    """
    argv = remote.python("runners.hosts.port_reach")
    told = {host: remote.Conversation(None if host in here else host, argv) for host in hosts}
    limit = threading.Timer(ANSWER_TIMEOUT_S, _kill, args=[list(told.values())])
    limit.start()
    try:
        ports = {host: process.answer() for host, process in told.items()}
        listening = {host: int(text) for host, text in ports.items() if text.isdigit()}
        for process in told.values():
            process.tell(json.dumps(listening))
        answers = {host: process.answer() for host, process in told.items()}
    finally:
        limit.cancel()
        for process in told.values():
            process.end()
    lines = [f"{host}: it could not listen at a port; try: ssh {host} true" for host in hosts if host not in listening]
    for host, answer in answers.items():
        closed = json.loads(answer) if answer else {}
        lines += [f"{host} does not reach ports of {other}: {reason}" for other, reason in closed.items()]
    return lines


def _kill(processes: Sequence[remote.Conversation]) -> None:
    for process in processes:
        process.kill()


def _try(host: str, port: int) -> str | None:
    """Why a port is not reached; None where it is."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return str(error.strerror or error)
    return None


def main() -> None:
    """One host's part."""
    dual = socket.has_dualstack_ipv6()
    with socket.create_server(("", 0), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual) as listening:
        give(str(listening.getsockname()[1]))
        ports = json.loads(sys.stdin.readline() or "{}")
        with ThreadPoolExecutor(max_workers=64) as pool:
            found = dict(zip(ports, pool.map(_try, ports, ports.values()), strict=True))
        give(json.dumps({host: reason for host, reason in found.items() if reason}))
        sys.stdin.read()


if __name__ == "__main__":
    main()
