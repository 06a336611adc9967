"""The judge of the parity gate, on sketches made by hand: what is right passes at any world size,
each fault is named."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from measurement.agent.ringside_agent.reading.values import CHUNK, sketch
from runners.driver.gates import judge_parity
from runners.rank.parity import sketch_states
from runners.rank.reference_step import put_state, tolerance_of
from tests.kit.changed import changed
from tests.kit.parity_reports import SHAPES, reports, sketches, tensors
from workloads.optimizers import IsolatedRng, seed_generators


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_what_is_right_passes(world_size):
    verdict = judge_parity(reports(world_size))
    assert verdict.passed, verdict.failures
    assert verdict.gradient_error < 1e-6
    assert verdict.parameter_spread == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"started": sketches(tensors(9))}, "rank 1: 'weight' differs from rank 0's by 1"),
        ({"ended": sketches(tensors(9))}, "from rank 0's after 3 steps"),
        ({"samples": "digest of 0"}, "ranks 0 and 1 consumed the same samples"),
    ],
)
def test_a_fault_of_one_rank_is_named(changes, message):
    verdict = judge_parity(reports(**changes))
    assert not verdict.passed
    assert any(message in failure for failure in verdict.failures), verdict.failures


def moved(by, *, rank_off=0.0):
    """Parameters of float32 and bfloat16 that steps changed by a share of themselves; one rank's by
    a share of that more."""
    return {name: sketch(value * (1 + by * (1 + rank_off))) for name, value in tensors(1).items()}


@pytest.mark.parametrize("by", [1e-4, 0.1])
@pytest.mark.parametrize(("rank_off", "passes"), [(1e-4, True), (0.05, False)])
def test_ranks_are_held_against_each_other_by_what_the_steps_changed(by, rank_off, passes):
    """Of a parameter that steps change little a rank might step by twice as much, and of bfloat16
    ones by 2% of all."""
    made = [
        changed(report, ended=moved(by), tolerances=dict.fromkeys(SHAPES, 2e-2))
        for report in reports()
    ]
    verdict = judge_parity([*made[:2], changed(made[2], ended=moved(by, rank_off=rank_off))])
    assert verdict.passed == passes, verdict.failures


def test_a_sum_that_was_asked_for_passes():
    def summed(local, mean, rank):
        return {name: 3 * value for name, value in mean.items()}

    asked = [changed(report, gradient_scale=3.0) for report in reports(synced=summed)]
    assert judge_parity(asked).passed


@pytest.mark.parametrize("size", [1, 3000, 2 * CHUNK + 5])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_a_sketch_is_linear_and_tells_size(size, scale):
    a, b = scale * torch.randn(2, size, dtype=torch.float64)
    both = np.add(sketch(a), sketch(b))
    assert np.allclose(sketch(a + b), both, rtol=1e-9, atol=1e-9 * scale * size)
    assert 0.2 < np.linalg.norm(sketch(a)) / a.norm() < 2.5


INDICES, VALUES = torch.tensor([[0, 3], [1, 2]]), torch.tensor([1.0, 2.0])
STATES = {
    "integer": torch.arange(100),
    "half": torch.ones(100, dtype=torch.bfloat16),
    "eighth": torch.ones(100).to(torch.float8_e4m3fn),
    "conjugated": torch.randn(100, dtype=torch.complex64).conj(),
    "empty": torch.zeros(0, 3),
    "expanded": torch.zeros(1).expand(100),
    "turned": torch.arange(100.0).reshape(10, 10).t(),
    "scalar": torch.tensor(float("nan")),
    "masked": torch.full((10, 10), float("-inf")).triu(1),
    "sparse": torch.sparse_coo_tensor(INDICES, VALUES, (10, 10)),
    "huge": torch.sparse_coo_tensor(INDICES, VALUES, (10**6, 10**6)),
    "complex sparse": torch.sparse_coo_tensor(INDICES, VALUES.to(torch.complex64), (10, 10)),
}


def test_tensors_of_every_kind_are_compared_and_what_is_none_is_named():
    sketched, others = sketch_states(
        {**STATES, "_extra_state": {"calls": 3}, "whole": torch.nn.UninitializedParameter()}
    )
    assert sketched.keys() == STATES.keys()
    assert all(np.isfinite(values).all() for values in sketched.values())
    assert others == ["'_extra_state' (dict)", "'whole' (UninitializedParameter)"]


def test_what_is_not_finite_by_intent_is_told_from_what_is_not():
    masked, other = STATES["masked"], STATES["masked"].clone()
    other[0, 1] = 0.0
    assert sketch(masked, is_state=True) != sketch(other, is_state=True)
    assert not np.isfinite(sketch(masked)).all(), "a gradient that is not finite is seen"


def test_what_is_not_compared_is_said():
    incomplete = [
        changed(report, not_compared=["'_extra_state' (dict)"], samples="") for report in reports()
    ]
    verdict = judge_parity(incomplete)
    assert verdict.passed, "batches without tensors are not the same ones"
    assert verdict.notes == [
        "not compared, since it cannot be put in numbers: '_extra_state' (dict)",
        "samples not compared: the batches hold no tensors",
    ]


def test_a_tolerance_follows_the_dtype():
    """A bfloat16 has 8 bits."""

    def passes(error, **tolerances):
        def synced(local, mean, rank):
            return {**mean, "weight": mean["weight"] * (1 + error)}

        made = reports(synced=synced)
        return judge_parity([changed(report, tolerances=tolerances) for report in made]).passed

    half = tolerance_of(STATES["half"])
    assert passes(1e-3, weight=half) and not passes(0.1, weight=half)
    assert not passes(1e-3)


def test_what_rounding_alone_makes_is_not_held_against_a_gradient():
    made = reports(synced=lambda local, mean, rank: {**mean, "bias": mean["bias"] * 1.5})
    size = float(np.linalg.norm(made[0].local["bias"]))
    for noise, passes in ((size, True), (1e-6 * size, False)):
        verdict = judge_parity([changed(report, noise={"bias": noise}) for report in made])
        assert verdict.passed == passes


def test_a_tensor_that_a_rank_does_not_report_is_wrong_and_no_exception():
    verdict = judge_parity(
        reports(ended={name: sketch(value) for name, value in tensors(2).items() if name != "bias"})
    )
    assert any("rank 1: 'bias' is inf" in failure for failure in verdict.failures), verdict.failures


def test_states_of_every_kind_are_put_into_a_model():
    model = torch.nn.Module()
    for name in ("turned", "integer", "expanded", "sparse"):
        model.register_buffer(name, STATES[name])
    wanted = {
        "turned": torch.ones(10, 10),
        "integer": torch.ones(100),
        "expanded": torch.full((1,), 2.0).expand(100),
    }
    put_state(model, {**wanted, "sparse": STATES["sparse"], "_extra_state": 3})
    assert all(model.get_buffer(name).eq(value).all() for name, value in wanted.items())


def test_draws_of_batches_go_on_by_themselves_and_are_not_noticed():
    def draws():
        while True:
            yield float(torch.rand(())), float(np.random.rand()), random.random()

    def three(seed):
        seed_generators(seed)
        return [next(draws()) for _ in range(3)]

    wanted, others = three(5), three(7)
    seed_generators(7)
    apart = IsolatedRng(5).iterate(draws)
    assert [(next(apart), next(draws())) for _ in range(3)] == list(
        zip(wanted, others, strict=True)
    )
