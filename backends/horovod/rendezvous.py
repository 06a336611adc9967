"""The rendezvous of Horovod's ranks over Gloo where ``mpirun`` or ``srun`` started them, without
``horovodrun``'s variables.

Horovod 0.28.1 has its own mode for this, the MPI controller with ``HOROVOD_CPU_OPERATIONS=gloo``.
It ends in a segmentation fault at the first allreduce: only the Gloo controller gives process sets
a Gloo context. So rank 0 runs the rendezvous server that ``horovodrun`` would run, and every rank
gets the variables that ``horovodrun`` would set.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from typing import Any

from backends.base import Store
from measurement.agent.ringside_agent.place import World

KEY = "horovod/rendezvous"


def rendezvous_over_gloo(world: World, store: Store) -> Any:
    """Set Horovod's variables for this rank, before ``hvd.init()``, unless ``horovodrun`` has.

    The store has the address of rank 0's server. Collective.

    Returns:
        The server, to be stopped after Horovod has shut down; None on other ranks, and where none
        is needed.
    """
    if "HOROVOD_RANK" in os.environ:
        return None
    one_host = world.local_world_size == world.world_size
    hostname = socket.gethostname()
    store.set(f"{KEY}/{world.rank}", f"{hostname} {world.local_rank}")
    places = [store.get(f"{KEY}/{rank}").decode().split() for rank in range(world.world_size)]
    server = None
    if world.rank == 0:
        server = _serve(places, store, address="127.0.0.1" if one_host else hostname)
    address, port = store.get(KEY).decode().split()
    peers = [host for host, local_rank in places if int(local_rank) == world.local_rank]
    os.environ |= {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_HOSTNAME": hostname,
        "HOROVOD_RANK": str(world.rank),
        "HOROVOD_SIZE": str(world.world_size),
        "HOROVOD_LOCAL_RANK": str(world.local_rank),
        "HOROVOD_LOCAL_SIZE": str(world.local_world_size),
        "HOROVOD_CROSS_RANK": str(peers.index(hostname)),
        "HOROVOD_CROSS_SIZE": str(len(peers)),
    }
    if one_host:
        os.environ.setdefault("HOROVOD_GLOO_IFACE", "lo")
    return server


def _serve(places: list[list[str]], store: Store, *, address: str) -> Any:
    """Start Horovod's own server with every rank's place."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousServer

    sizes = Counter(host for host, _ in places)
    slots = []
    for rank, (host, local_rank) in enumerate(places):
        peers = [other for other, place in places if place == local_rank]
        slots.append(
            SlotInfo(
                host,
                rank,
                int(local_rank),
                peers.index(host),
                size=len(places),
                local_size=sizes[host],
                cross_size=len(peers),
            )
        )
    server = RendezvousServer()
    port = server.start()
    server.init(slots)
    store.set(KEY, f"{address} {port}")
    return server
