"""What does it cost the driver that somebody floods its ports? A server in a process of its own,
beset by others.

    python benchmarks/flood.py [--seconds 10] [--strangers 2]

For the supervisor server and for the driver's ``TCPStore``, which is torch's: processes that
connect, say garbage and close, as fast as they can. Printed: connections made, CPU time of the
server as a share of a core, how much its memory grew, and how long a supervisor with the key (or a
client of the store) took to be served meanwhile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection

import psutil
from torch.distributed import TCPStore

from measurement.addresses import listen, split_port, with_port
from measurement.agent.ringside_agent.supervision.rank_supervisor import greet
from runners.processes.supervisor_server import SupervisorServer

ADDRESS = "127.0.0.1"
KEY = "the comparison's"
GARBAGE = b"\xff" * 4096 + b"\n"


def serve_supervisors(told: Connection) -> None:
    """Serve until killed; say where."""
    told.send(SupervisorServer(address=ADDRESS, key=KEY).address)
    time.sleep(3600)


def serve_store(told: Connection) -> None:
    """The same of the store that the driver makes."""
    listening = listen(ADDRESS)
    port = listening.getsockname()[1]
    store = TCPStore(
        ADDRESS, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    told.send(with_port(ADDRESS, port))
    time.sleep(3600)
    del store


def beset(address: str, seconds: float, told: Connection) -> None:
    """Connect, say garbage, close; again and again."""
    deadline, made = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(split_port(address), timeout=1) as connection:
                connection.sendall(GARBAGE)
            made += 1
        except OSError:
            continue
    told.send(made)


def greeted(address: str) -> None:
    """A rank's supervisor reports."""
    greet(
        split_port(address), KEY, ["arm", "0", "0", str(time.monotonic_ns()), "1", "host", "1"]
    ).close()


def stored(address: str) -> None:
    """A rank connects to the store and writes."""
    TCPStore(
        *split_port(address), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60)
    ).set("key", "value")


def besieged(
    serve: Callable[[Connection], None],
    use: Callable[[str], None],
    *,
    seconds: float,
    strangers: int,
) -> str:
    """Run one siege and describe it."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    address, process = here.recv(), psutil.Process(server.pid)
    try:
        use(address)
        before, memory = sum(process.cpu_times()[:2]), process.memory_info().rss
        besiegers = [
            multiprocessing.Process(target=beset, args=(address, seconds, there))
            for _ in range(strangers)
        ]
        for one in besiegers:
            one.start()
        time.sleep(seconds / 2)
        began = time.monotonic()
        use(address)
        took_s = time.monotonic() - began
        made = sum(here.recv() for _ in besiegers)
        cpu, grown = sum(process.cpu_times()[:2]) - before, process.memory_info().rss - memory
    finally:
        server.kill()
    return f"{made} connections, {cpu / seconds:.1%} of a core, {grown / 1e6:+.1f} MB, served in {took_s:.2f} s meanwhile"


def main() -> int:
    """Besiege both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--strangers", type=int, default=2)
    given = parser.parse_args()
    for name, serve, use in (
        ("supervisor server", serve_supervisors, greeted),
        ("TCPStore", serve_store, stored),
    ):
        print(
            f"{name}: {besieged(serve, use, seconds=given.seconds, strangers=given.strangers)}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
