"""Sets the network interface for this process and all it starts."""

from __future__ import annotations

import os
import socket

import psutil

from measurement.errors import PlanError
from runners.launchers.base import interface_environment


def use_interface(name: str | None) -> None:
    """Set the variables by which Gloo, NCCL, Horovod and Open MPI choose an interface, before they start. None sets nothing.

    Raises:
        PlanError: this host has no such interface.
    """
    if name is None:
        return
    own = sorted(psutil.net_if_addrs())
    if name not in own:
        raise PlanError(f"--network-interface '{name}' is none of {socket.gethostname()}'s; use one of {', '.join(own)}")
    os.environ |= interface_environment(name) | {"OMPI_MCA_btl_tcp_if_include": name}
