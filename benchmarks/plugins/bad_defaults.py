"""Backends with a bad default, for ``benchmarks/tuning.py``: buckets of 1 KiB, and a cycle of 100
ms.
"""

from __future__ import annotations

from pydantic import Field

from backends.ddp import DDP, DDPOptions
from backends.horovod.backend import Horovod
from backends.horovod.options import HorovodOptions


class SmallBucketOptions(DDPOptions):
    """DDP's options, with hardly a parameter to a bucket."""

    bucket_cap_mb: float | None = Field(default=1 / 1024, gt=0)


class SmallBuckets(DDP):
    """DDP as it is with that default."""

    Options = SmallBucketOptions


class SlowCycleOptions(HorovodOptions):
    """Horovod's options, with ten cycles a second."""

    cycle_time_ms: float | None = Field(default=100.0, gt=0)


class SlowCycle(Horovod):
    """Horovod as it is with that default."""

    Options = SlowCycleOptions
