"""What is trained: each workload knows its model, optimizer, batches and loss, and nothing of how ranks talk."""

from __future__ import annotations

from typing import Any

from measurement.errors import PlanError
from measurement.registry import Registry
from workloads.base import Workload

REGISTRY = Registry(
    kind="workload",
    group="ringside.workloads",
    table={
        "digits": "workloads.digits:Digits",
        "synthetic": "workloads.synthetic:Synthetic",
    },
)


def workload_class(reference: str) -> tuple[type[Workload], dict[str, Any]]:
    """The class a reference names, and the options the name itself implies.

    A torchvision model's name, such as ``resnet50``, stands for ``synthetic`` with that model.

    Raises:
        PlanError: unknown, not loadable, or no Workload.
    """
    if ":" not in reference and reference not in REGISTRY.names() and reference in _torchvision_models():
        return workload_class("synthetic")[0], {"model": reference}
    found = REGISTRY.resolve(reference)
    if not issubclass(found, Workload):
        raise PlanError(f"workload '{reference}' is {found.__name__}, which does not derive from workloads.base.Workload")
    return found, {}


def _torchvision_models() -> list[str]:
    try:
        from torchvision.models import list_models
    except ImportError:
        return []
    return list(list_models())
