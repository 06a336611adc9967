"""How gradients meet: each backend joins a model and an optimizer so that all ranks take the same step."""

from __future__ import annotations

from backends.base import Backend
from measurement.errors import PlanError
from measurement.registry import Registry

REGISTRY = Registry(
    kind="backend",
    group="ringside.backends",
    table={
        "single": "backends.single:Single",
        "dp": "backends.dp:DataParallel",
        "naive": "backends.naive:Naive",
        "ddp": "backends.ddp:DDP",
        "horovod": "backends.hvd:Horovod",
    },
)


def backend_class(reference: str) -> type[Backend]:
    """The class a name or ``module:Class`` refers to.

    Raises:
        PlanError: unknown, not loadable, or no Backend.
    """
    found = REGISTRY.resolve(reference)
    if not issubclass(found, Backend):
        raise PlanError(f"backend '{reference}' is {found.__name__}, which does not derive from backends.base.Backend")
    return found
