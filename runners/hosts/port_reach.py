"""Whether ranks on each pair of hosts reach each other's ports: every host listens at one, and connects to all the others'.

``python -m runners.hosts.port_reach HOST...`` is one host's part. It answers with its port and with what names mean there, reads
all hosts' ports, answers with what it could not reach, and listens until its input ends.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from runners.hosts.names import View, look
from runners.processes import remote
from runners.processes.answers import give

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0
REMEDY = (
    "ranks choose ports of their own: let no firewall between the hosts close them, and let each name mean the same address "
    "everywhere (or give --network-interface to your commands)"
)


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What hosts found of each other."""

    closed: list[str]
    """A line for each way that is closed."""
    views: dict[str, View]
    """By host, see ``runners.hosts.names``."""


def try_ports(hosts: Sequence[str], *, here: Collection[str]) -> Reach:
    """Try every pair of hosts, both ways. Each must answer over ssh. ``here``: those that are this machine."""
    argv = remote.python("runners.hosts.port_reach", *hosts)
    talks = {host: remote.Conversation(None if host in here else host, argv) for host in hosts}
    limit = threading.Timer(ANSWER_TIMEOUT_S, lambda: list(map(remote.Conversation.kill, talks.values())))
    limit.start()
    try:
        first = {host: json.loads(talk.answer() or "{}") for host, talk in talks.items()}
        listening = {host: found["port"] for host, found in first.items() if found}
        for talk in talks.values():
            talk.send(json.dumps(listening))
        answers = {host: json.loads(talk.answer() or "{}") for host, talk in talks.items()}
    finally:
        limit.cancel()
        ended = {host: talk.end() for host, talk in talks.items()}
    lines = [f"{host}: it could not listen at a port ({ended[host]}); try: ssh {host} true" for host in hosts if not first[host]]
    lines += [f"{host} does not reach ports of {other}: {why}" for host, closed in answers.items() for other, why in closed.items()]
    return Reach(closed=lines, views={host: found["view"] for host, found in first.items() if found})


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
        give(json.dumps({"port": listening.getsockname()[1], "view": look(sys.argv[1:])}))
        ports = json.loads(sys.stdin.readline() or "{}")
        with ThreadPoolExecutor(max_workers=64) as pool:
            found = dict(zip(ports, pool.map(_try, ports, ports.values()), strict=True))
        give(json.dumps({host: reason for host, reason in found.items() if reason}))
        sys.stdin.read()


if __name__ == "__main__":
    main()
