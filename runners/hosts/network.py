"""The network interface that this process, and all it starts, shall use: checked here, told to every library that asks."""

from __future__ import annotations

import os
import socket

import psutil

from measurement.errors import PlanError
from runners.launchers.base import interface_environment


def use_interface(name: str | None) -> None:
    """Set the variables by which Gloo, NCCL, Horovod and Open MPI choose; before any of them starts. Nothing for None.

    Raises:
        PlanError: this host has no such interface.
    """
    if name is None:
        return
    own = sorted(psutil.net_if_addrs())
    if name not in own:
        raise PlanError(f"--network-interface '{name}' is none of {socket.gethostname()}'s; use one of {', '.join(own)}")
    os.environ |= interface_environment(name) | {"OMPI_MCA_btl_tcp_if_include": name}
