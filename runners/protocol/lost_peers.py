"""What libraries say of a peer that has gone: such an error follows from another, which says why."""

from __future__ import annotations

import re

LOST_PEER = re.compile(
    r"(closed|reset) by peer|broken pipe|remote process exited|pair closure|has been shut down"
    r"|connection (refused|lost|closed|was likely closed)|network error|no route to host|timed? ?out"
    r"|end of file|socket closed|ncclRemoteError|DistStoreError|DistNetworkError|MPI_ERR_PROC_FAILED|MPI_Abort"
    r"|is killed by signal: Terminated",
    re.IGNORECASE,
)
"""Gloo, NCCL, Horovod, MPI, c10d's store and sockets; torch's loaders, whose processes a launcher ends with the first rank."""

CAUSE_FIRST_S = 3.0
"""A rank that lost a peer ends so much later: launchers end all ranks with the first, and the other has to say why."""


def mentions_lost_peer(message: str) -> bool:
    """Whether an error is likely to follow from the failure of another rank. Pure."""
    return LOST_PEER.search(message) is not None
