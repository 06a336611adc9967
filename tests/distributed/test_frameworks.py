"""Frameworks as they are installed: what is read of their objects."""

from __future__ import annotations

import importlib.util
import os
from types import SimpleNamespace

import pytest
from torch.utils.data import BatchSampler, DataLoader

from measurement.agent.ringside_agent.reading import configuration

REMEDY = {"deepspeed": "DS_BUILD_OPS=0 .venv/bin/uv pip install --no-build-isolation deepspeed"}


def needs(name):
    """A package; where CI's machine must have it, the test fails without."""
    if importlib.util.find_spec(name) is None:
        (pytest.fail if name in os.environ.get("RINGSIDE_REQUIRE", "") else pytest.skip)(
            f"{name} is not installed: {REMEDY.get(name, 'make frameworks')}"
        )


def test_batches_that_accelerate_shares_out_are_read_as_shared_out():
    needs("accelerate")
    from accelerate.data_loader import BatchSamplerShard

    shards = [BatchSamplerShard(BatchSampler(range(32), 4, drop_last=False), 2, rank) for rank in range(2)]
    read = [
        configuration.of_loader(SimpleNamespace(loader=DataLoader(range(32), batch_sampler=one), accumulation=1)) for one in shards
    ]
    assert [(one["sampler.replicas"], one["sampler.rank"], one["loader.length"]) for one in read] == [(2, 0, 4), (2, 1, 4)]
