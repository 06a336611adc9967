"""Says which launchers can start a backend: those that give all that it needs. The same for plug-ins and our own."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from backends import Backend, backend_class
from measurement.errors import LaunchError, PlanError
from measurement.world import HOROVOD, MPI, RENDEZVOUS
from runners.launchers import make_launcher

WITHOUT = {
    RENDEZVOUS: "it gives its ranks no address to meet at (MASTER_ADDR and MASTER_PORT)",
    MPI: "it starts no MPI: each rank would be a world of 1",
    HOROVOD: "no HOROVOD_* variables: each rank would be a world of 1",
}
"""Why a launcher that does not give one of these cannot start a backend."""


def default_launcher(reference: str, backend: type[Backend], transport: str | None) -> str:
    """Return the first of a backend's customary launchers that can start it.

    Raises:
        PlanError: none of its customary launchers gives what it needs.
    """
    usable = usable_launchers(backend, transport)
    if not usable:
        needs = ", ".join(sorted(backend.needs(transport)))
        raise PlanError(
            f"backend '{reference}' needs {needs}, which none of its customary launchers gives; name a launcher that does"
        )
    return usable[0]


def usable_launchers(backend: type[Backend], transport: str | None) -> list[str]:
    """Return those of a backend's customary launchers that can start it."""
    needs = backend.needs(transport)
    return [name for name in backend.customary_launchers if needs <= make_launcher(name).gives(transport)]


def require_given(gives: AbstractSet[str], *, launcher: str, backend: str, transport: str | None) -> None:
    """Refuse a launcher that does not give what a backend needs.

    Args:
        gives: what the launcher gives or, in a running rank, what the variables it found stand for.
        launcher: its name for the message.
        backend: the reference of the backend.
        transport: None: the backend's own choice.

    Raises:
        PlanError: what is missing, and which launchers give it.
    """
    cls = backend_class(backend)
    missing = cls.needs(transport) - gives
    if not missing:
        return
    over = f" over '{transport}'" if MPI in missing else ""
    names = [f"'{name}'" for name in usable_launchers(cls, transport)]
    listed = " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    remedy = f"use {listed}" if names else "use a launcher that does"
    if launcher == "srun" and MPI in missing:
        remedy = "start it with srun --mpi=pmix (srun --mpi=list tells whether this Slurm has it), or by mpirun inside the job"
    why = "; ".join(WITHOUT.get(need, f"it does not give '{need}'") for need in sorted(missing))
    raise PlanError(f"launcher '{launcher}' cannot start backend '{backend}'{over} ({why}); {remedy}")


def require_findable(hidden: Mapping[str, str], *, backend: str, transport: str | None, network_interface: str | None) -> None:
    """Refuse hosts whose ranks would tell each other wrong addresses over Gloo.

    Args:
        hidden: hosts to the reason, see ``runners.hosts.names``.
        backend: the reference of the backend. Horovod 0.28.1 meets over Gloo under NCCL, too, and heeds no interface there.
        transport: None: the backend's own choice.
        network_interface: where other backends' Gloo takes the address from instead.

    Raises:
        LaunchError: one line for each host.
    """
    is_horovod = HOROVOD in backend_class(backend).needs(transport)
    if is_horovod or (transport == "gloo" and not network_interface):
        told = [f"host '{host}': {why}" for host, why in hidden.items()]
        if told:
            raise LaunchError("\n".join(told))
