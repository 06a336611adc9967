"""Backends: each prepares a model and an optimizer so that gradients are averaged and all ranks take the same step."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from backends.base import INTERFACE, Backend
from measurement.errors import PlanError
from measurement.plans.plan_file import checked
from measurement.registry import Registry

REGISTRY = Registry(
    kind="backend",
    group="ringside.backends",
    table={
        "single": "backends.single:Single",
        "dp": "backends.dp:DataParallel",
        "naive": "backends.naive:Naive",
        "ddp": "backends.ddp:DDP",
        "fsdp2": "backends.fsdp2:FSDP2",
        "horovod": "backends.horovod.backend:Horovod",
    },
)
OF_INTERFACE_1 = ("local_only", "accumulating", "exchanged", "launchers", "launchers_for", "check_gradients")
"""What backends had once and are no longer asked for."""


def backend_class(reference: str) -> type[Backend]:
    """Find the class that a name or ``module:Class`` refers to.

    Raises:
        PlanError: the reference is unknown, cannot be loaded, is no Backend, or is written for another version of the interface.
    """
    found = REGISTRY.resolve(reference)
    if not issubclass(found, Backend):
        raise PlanError(f"backend '{reference}' is {found.__name__}, which does not derive from backends.base.Backend")
    _require_interface(reference, found)
    return found


def check_options(reference: str, given: Mapping[str, Any], *, source: str) -> BaseModel:
    """Check the options of a backend. One of another backend's is told to be its.

    Raises:
        PlanError: with what is accepted.
    """

    def of_others() -> dict[str, str]:
        classes = {name: backend_class(name) for name in REGISTRY.table if name != reference}
        return {option: f"of backend '{name}'" for name, cls in classes.items() for option in cls.Options.model_fields}

    return checked(backend_class(reference).Options, given, source=source, elsewhere=of_others)


def _require_interface(reference: str, found: type[Backend]) -> None:
    version = getattr(found, "interface_version", None)
    parameters = list(inspect.signature(found.prepare).parameters)
    old = [name for name in OF_INTERFACE_1 if hasattr(found, name)]
    if version == INTERFACE and parameters[1:] == ["model", "build_optimizer"] and not old:
        return
    seen = [f"interface_version {version}" if version != INTERFACE else "", f"prepare({', '.join(parameters[1:])})", *old]
    raise PlanError(
        f"backend '{reference}' ({found.__name__}) is not written for version {INTERFACE} of the interface: it has "
        f"{', '.join(filter(None, seen))}; set interface_version = {INTERFACE}, let prepare(model, build_optimizer) call "
        "build_optimizer(model) and return a backends.base.Prepared, which has local_only, accumulating and exchanged, and name "
        "needs(transport) and customary_launchers in the place of launchers, check_model in that of check_gradients"
    )
