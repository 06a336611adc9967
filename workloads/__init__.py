"""Workloads, which are trained, and micro-benchmarks, which are repeated.

A workload knows its model, optimizer, batches and loss. A micro-benchmark knows its operations and
their right results. Neither knows how ranks communicate.
"""

from __future__ import annotations

from typing import Any

from measurement.errors import TWO_SCRIPTS, PlanError
from measurement.registry import Registry
from workloads.base import Workload
from workloads.micro_benchmark import MicroBenchmark

REGISTRY = Registry(
    kind="workload",
    group="ringside.workloads",
    table={
        "cifar10": "workloads.classifiers:Cifar10",
        "collectives": "workloads.collectives:Collectives",
        "digits": "workloads.digits:Digits",
        "imagenet": "workloads.classifiers:Imagenet",
        "language_model": "workloads.language_model:LanguageModel",
        "loaders": "workloads.loaders:Loaders",
        "mnist": "workloads.digits:Mnist",
        "synthetic": "workloads.classifiers:Synthetic",
    },
    otherwise=TWO_SCRIPTS,
)


def workload_class(reference: str) -> tuple[type[Workload] | type[MicroBenchmark], dict[str, Any]]:
    """Find the class that a reference names, and the options that the name itself implies.

    The name of a torchvision model, such as ``resnet50``, stands for ``synthetic`` with that model.

    Raises:
        PlanError: the reference is unknown, cannot be loaded, or is neither a Workload nor a
            MicroBenchmark.
    """
    if (
        ":" not in reference
        and REGISTRY.find(reference) is None
        and reference in _torchvision_models()
    ):
        return workload_class("synthetic")[0], {"model": reference}
    workload = REGISTRY.resolve(reference)
    if not issubclass(workload, Workload | MicroBenchmark):
        raise PlanError(
            f"workload '{reference}' is {workload.__name__}, which does not derive from"
            " workloads.base.Workload (or workloads.micro_benchmark.MicroBenchmark)"
        )
    missing = sorted(workload.__abstractmethods__)
    if missing:
        raise PlanError(
            f"workload '{reference}' has yet to define {', '.join(missing)}, which every workload"
            " needs"
        )
    return workload, {}


def _torchvision_models() -> list[str]:
    try:
        from torchvision.models import list_models
    except ImportError:
        return []
    return list(list_models())
