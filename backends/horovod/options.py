"""Horovod's options in a plan, and those that it reads from the environment: the variables to set,
and the values in force.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from backends.base import MIB
from measurement.plans.settings import PlanOptions

DEFAULTS = {
    "fusion_threshold_bytes": ("HOROVOD_FUSION_THRESHOLD", 128 * MIB),
    "cycle_time_ms": ("HOROVOD_CYCLE_TIME", 1.0),
    "cache_capacity": ("HOROVOD_CACHE_CAPACITY", 1024),
}
"""Variable and default of Horovod 0.28.1, by the setting's name in a record."""
CONSTRUCTORS = {"compression", "gradient_predivide_factor", "num_groups", "sparse_as_dense"}
"""Options that ``hvd.DistributedOptimizer`` takes by these names."""


class HorovodOptions(PlanOptions):
    """Named as in ``hvd.DistributedOptimizer`` and ``horovodrun``; None leaves Horovod's
    default.
    """

    compression: Literal["none", "fp16"] = "none"
    """Whether gradients are exchanged as fp16."""
    op: Literal["Average", "Sum", "Adasum"] = "Average"
    """How gradients are combined. Adasum needs MPI."""
    backward_passes_per_step: int | None = Field(default=None, ge=1)
    """Backward passes before an exchange. None: the plan's ``micro_steps``, which all arms
    share."""
    num_groups: int = Field(default=0, ge=0)
    """Groups of gradients that are exchanged together. 0: no groups."""
    sparse_as_dense: bool = False
    """Turn sparse gradients into dense ones before the exchange."""
    gradient_predivide_factor: float = Field(default=1.0, gt=0)
    """Splits averaging in two: gradients are divided by this before the sum, and by the rest after
    it."""
    fusion_threshold_mb: float | None = Field(default=None, ge=0)
    """HOROVOD_FUSION_THRESHOLD in MiB. Horovod's default is 128."""
    cycle_time_ms: float | None = Field(default=None, gt=0)
    """HOROVOD_CYCLE_TIME in milliseconds. Horovod's default is 1."""
    cache_capacity: int | None = Field(default=None, ge=0)
    """HOROVOD_CACHE_CAPACITY. Horovod's default is 1024."""
    hierarchical_allreduce: bool | None = None
    """HOROVOD_HIERARCHICAL_ALLREDUCE: within each host first, then between hosts. NCCL under MPI
    only; not Horovod's default."""


def knobs_asked_for(options: HorovodOptions) -> dict[str, str]:
    """Return the variables that options stand for. A setting of None is not set."""
    megabytes, is_hierarchical = options.fusion_threshold_mb, options.hierarchical_allreduce
    knobs = {
        "HOROVOD_FUSION_THRESHOLD": None if megabytes is None else int(megabytes * MIB),
        "HOROVOD_CYCLE_TIME": options.cycle_time_ms,
        "HOROVOD_CACHE_CAPACITY": options.cache_capacity,
        "HOROVOD_HIERARCHICAL_ALLREDUCE": None if is_hierarchical is None else int(is_hierarchical),
    }
    return {name: str(value) for name, value in knobs.items() if value is not None}


def knobs_in_force(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return each setting's value, and whether it comes from the environment or is the library's
    documented default.
    """
    knobs: dict[str, Any] = {}
    for name, (variable, default) in DEFAULTS.items():
        value = environment.get(variable)
        knobs[name] = _as_c_number(value) if value is not None else default
        knobs[f"{name}_source"] = "environment" if value is not None else "horovod default"
    return knobs


def _as_c_number(text: str) -> float:
    """Read a variable as Horovod's ``strtol``/``strtof`` do: the leading number, or 0 if there is
    none.
    """
    leading = re.match(r"\s*[+-]?(\d+\.?\d*|\.\d+)", text)
    return float(leading.group()) if leading else 0.0
