"""Says which launchers can start a backend: those that give all that it needs. The same for plug-ins and our own."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from backends import Backend
from measurement.errors import LaunchError, PlanError
from measurement.world import HOROVOD, MPI, RENDEZVOUS
from runners.launchers import REGISTRY, make_launcher

WITHOUT = {
    RENDEZVOUS: "it gives its ranks no address to meet at (MASTER_ADDR and MASTER_PORT)",
    MPI: "it starts no MPI: each rank would be a world of 1",
    HOROVOD: "no HOROVOD_* variables: each rank would be a world of 1",
}
"""Why a launcher that does not give one of these cannot start a backend."""


def default_launcher(reference: str, backend: Backend) -> str:
    """Return the first of a backend's customary launchers that can start it.

    Raises:
        PlanError: none of its customary launchers gives what it needs.
    """
    usable = usable_launchers(backend)
    if not usable:
        needs = ", ".join(sorted(backend.needs()))
        raise PlanError(
            f"backend '{reference}' needs {needs}, which none of its customary launchers gives; name a launcher that does"
        )
    return usable[0]


def usable_launchers(backend: Backend) -> list[str]:
    """Return those of a backend's customary launchers that can start it."""
    return [name for name in backend.customary_launchers if backend.needs() <= make_launcher(name).gives(backend.transport)]


def require_given(gives: AbstractSet[str], backend: Backend, *, launcher: str, reference: str) -> None:
    """Refuse a launcher that does not give what a backend needs.

    Args:
        gives: what the launcher gives or, in a running rank, what the variables it found stand for.
        backend: over the transport that it will use.
        launcher: its name for the message.
        reference: of the backend, for the message.

    Raises:
        PlanError: what is missing, and which launchers give it.
    """
    missing = backend.needs() - gives
    if not missing:
        return
    over = f" over '{backend.transport}'" if MPI in missing else ""
    names = [f"'{name}'" for name in usable_launchers(backend)]
    listed = " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    others = f"use {listed}" if names else "use a launcher that does"
    own = make_launcher(launcher).remedies if launcher in REGISTRY.names() else {}
    remedy = next((own[need] for need in sorted(missing) if need in own), others)
    why = "; ".join(WITHOUT.get(need, f"it does not give '{need}'") for need in sorted(missing))
    raise PlanError(f"launcher '{launcher}' cannot start backend '{reference}'{over} ({why}); {remedy}")


def require_findable(hidden: Mapping[str, str], backend: Backend, *, network_interface: str | None) -> None:
    """Refuse hosts whose ranks would tell each other wrong addresses over Gloo.

    Args:
        hidden: hosts to the reason, see ``runners.hosts.names``.
        backend: over the transport that it will use. Horovod 0.28.1 meets over Gloo under NCCL, too, and heeds no interface there.
        network_interface: where other backends' Gloo takes the address from instead.

    Raises:
        LaunchError: one line for each host.
    """
    if HOROVOD in backend.needs() or (backend.transport == "gloo" and not network_interface):
        told = [f"host '{host}': {why}" for host, why in hidden.items()]
        if told:
            raise LaunchError("\n".join(told))
