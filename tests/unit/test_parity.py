"""The judge of the parity gate, on sketches made by hand: what is right passes at any world size, each fault is named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.protocol.gate_verdict import judge_parity
from runners.protocol.messages import ParityReport
from runners.protocol.sketches import sketch

SHAPES = {"weight": (40, 30), "bias": (30,), "dead": (5,)}


def tensors(seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    made = {name: scale * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    return {**made, "dead": torch.zeros(SHAPES["dead"])}


def sketches(values):
    return {name: sketch(value) for name, value in values.items()}


def reports(world_size=3, synced=None, **changes):
    """Reports of ranks that do everything right, but for ``changes`` of rank 1."""
    local = [tensors(100 + rank) for rank in range(world_size)]
    mean = {name: sum(values[name] for values in local) / world_size for name in SHAPES}
    made = [
        ParityReport(
            started=sketches(tensors(1)),
            wanted=sketches(tensors(1 + rank)),
            local=sketches(local[rank]),
            synced=sketches(synced(local, mean, rank) if synced else mean),
            ended=sketches(tensors(2)),
            sizes={name: value.numel() for name, value in mean.items()},
            samples=f"digest of {rank}",
            gradient_scale=1.0,
            gradient_tolerance=1e-4,
        )
        for rank in range(world_size)
    ]
    made[1 % world_size] = made[1 % world_size].model_copy(update=changes)
    return made


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_what_is_right_passes(world_size):
    found = judge_parity(reports(world_size), steps=3)
    assert found.passed, found.failures
    assert found.gradient_error < 1e-6
    assert found.parameter_spread == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"started": sketches(tensors(9))}, "rank 1: 'weight' differs from rank 0's by 1"),
        ({"ended": sketches(tensors(9))}, "from rank 0's after 3 steps"),
        ({"samples": "digest of 0"}, "ranks 0 and 1 consumed the same samples"),
    ],
)
def test_a_fault_of_one_rank_is_named(changes, message):
    found = judge_parity(reports(**changes), steps=3)
    assert not found.passed
    assert any(message in failure for failure in found.failures), found.failures


@pytest.mark.parametrize(
    "synced",
    [
        lambda local, mean, rank: {name: 3 * value for name, value in mean.items()},
        lambda local, mean, rank: {**mean, "bias": local[rank]["bias"]},
        lambda local, mean, rank: {**mean, "weight": mean["weight"] * 1.001},
        lambda local, mean, rank: local[0],
        lambda local, mean, rank: {**mean, "weight": mean["weight"] * float("nan")},
    ],
    ids=["sum", "one parameter skipped", "off by a thousandth", "one rank's own", "nan"],
)
def test_wrong_gradients_are_caught(synced):
    sent = [ParityReport.model_validate_json(report.model_dump_json()) for report in reports(synced=synced)]
    found = judge_parity(sent, steps=3)
    assert not found.passed
    assert "gradient of" in found.failures[0]


def test_a_sum_that_was_asked_for_passes_with_a_note():
    asked = [
        report.model_copy(update={"gradient_scale": 3.0})
        for report in reports(synced=lambda local, mean, rank: {name: 3 * value for name, value in mean.items()})
    ]
    found = judge_parity(asked, steps=3)
    assert found.passed
    assert found.notes == ["gradients are 3 x the mean, as the options ask"]


def test_many_faults_are_cut_short():
    found = judge_parity(reports(world_size=8, synced=lambda local, mean, rank: local[rank]), steps=3)
    assert len(found.failures) == 9
    assert found.failures[-1].startswith("and ")


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), size=st.integers(1, 3000), scale=st.floats(1e-6, 1e6))
def test_a_sketch_is_linear_and_tells_size(seed, size, scale):
    a, b = torch.randn(2, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    both = np.add(sketch(a), sketch(b))
    assert np.allclose(sketch(a + b), both, rtol=1e-9, atol=1e-9 * scale * size)
    assert 0.2 < np.linalg.norm(sketch(a)) / a.norm() < 2.5
