"""What backends need of a launcher and launchers give their ranks. A plug-in may use strings of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

RENDEZVOUS = "rendezvous"
"""A place to meet: an address in MASTER_ADDR and MASTER_PORT, or MPI, over which rank 0 tells the others its own."""
MPI = "mpi"
"""The ranks are those of one MPI world."""
HOROVOD = "horovod"
"""What Horovod finds its rank and the other ranks by: HOROVOD_* variables, or MPI's."""
ALLOW_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
"""Variables that Open MPI wants to be 1 before it starts ranks for root."""

MISSING: Mapping[str, str] = {
    RENDEZVOUS: "it gives its ranks no address to meet at (MASTER_ADDR and MASTER_PORT)",
    MPI: "it starts no MPI: each rank would be a world of 1",
    HOROVOD: "no HOROVOD_* variables: each rank would be a world of 1",
}


def reason(missing: Iterable[str]) -> str:
    """Why a launcher that does not give these cannot start a backend."""
    return "; ".join(MISSING.get(need, f"it does not give '{need}'") for need in sorted(missing))
