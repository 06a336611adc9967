"""Backends: each prepares a model and an optimizer so that gradients are averaged and all ranks
take the same step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.base import INTERFACE, Backend
from measurement.errors import PlanError
from measurement.plans.settings import checked
from measurement.registry import Registry

REGISTRY = Registry(
    kind="backend",
    group="ringside.backends",
    table={
        "single": "backends.single:Single",
        "dp": "backends.single:DataParallel",
        "naive": "backends.torch_distributed:Naive",
        "ddp": "backends.ddp:DDP",
        "fsdp2": "backends.fsdp2:FSDP2",
        "replicate": "backends.fsdp2:Replicate",
        "horovod": "backends.horovod.backend:Horovod",
    },
)


def backend_class(reference: str) -> type[Backend]:
    """Find the class that a name or ``module:Class`` refers to.

    Raises:
        PlanError: the reference is unknown, cannot be loaded, is not a Backend, or is written for
            another version of the interface.
    """
    cls = REGISTRY.resolve(reference)
    if not issubclass(cls, Backend):
        raise PlanError(
            f"backend '{reference}' is {cls.__name__}, which does not derive from"
            " backends.base.Backend"
        )
    version = getattr(cls, "interface_version", None)
    if version != INTERFACE:
        raise PlanError(
            f"backend '{reference}' ({cls.__name__}) is not written for version {INTERFACE} of the"
            f" interface: it has interface_version {version}; write it as backends.base.Backend"
            f" says, and set interface_version = {INTERFACE}"
        )
    return cls


def make_backend(
    reference: str,
    *,
    transport: str | None,
    options: Mapping[str, Any],
    micro_steps: int = 1,
    arm: str | None = None,
) -> Backend:
    """Make a backend with checked options of a plan; it is not connected. Messages name ``arm``.

    Raises:
        PlanError: with the accepted options.
    """
    cls = backend_class(reference)
    source = f"options of arm '{arm}'" if arm else f"options of backend '{reference}'"
    checked_options = checked(cls.Options, options, source=source)
    return cls(transport=transport, options=checked_options, micro_steps=micro_steps)
