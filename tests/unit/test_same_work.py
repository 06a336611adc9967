"""What two arms came to in the gate, on sketches made by hand; and ranks that have drifted apart,
by what each tells of itself."""

from __future__ import annotations

import pytest
import torch

from runners.driver.gates import compare_state, drift_between
from runners.protocol import DriftReport
from tests.kit.changed import changed
from tests.kit.parity_reports import reports, sketches, tensors


def report(*, parameters=None, momentum=None, **changes):
    """Of rank 0 of an arm: parameters moved by about 0.1 each."""
    started, change = tensors(1), tensors(2, scale=0.1)
    ended = {name: started[name] + change[name] for name in started}
    state = {f"momentum_buffer of {name}": value for name, value in tensors(3).items()}
    ended |= parameters(ended, change) if parameters else {}
    state |= momentum(state) if momentum else {}
    sizes = {name: value.numel() for name, value in {**started, **state}.items()}
    made = changed(
        reports(1)[0], ended=sketches(ended), optimizer_state=sketches(state), sizes=sizes
    )
    return changed(made, **changes)


def compared(other, first=None):
    return compare_state(first or report(), other, first_arm="ddp")


def moved(by):
    """A report of which parameters ended elsewhere, by these factors of what steps changed."""
    return report(
        parameters=lambda ended, change: {
            name: ended[name] + factor * change[name] for name, factor in by.items()
        }
    )


def test_arms_that_differ_by_rounding_agree():
    verdict = compared(moved({"weight": 1e-6}))
    assert (verdict.failures, verdict.notes) == ([], [])
    assert 0 < verdict.distance < 1e-5


def test_the_last_place_of_a_parameter_may_differ_where_steps_hardly_change_it():
    """As in a warm-up of the learning rate, or where gradients are tiny: here three elements of
    1,200 are rounded otherwise."""
    started, change = tensors(1), tensors(2, scale=3e-6)

    def ends(factor):
        return {name: started[name] + factor * change[name] for name in started}

    def held_against_one_step(ended):
        first = report(parameters=lambda *_: ends(1))
        return compared(report(parameters=lambda *_: ended), first=first)

    elsewhere = ends(1)
    row = elsewhere["weight"][7, :3]
    elsewhere["weight"][7, :3] = torch.nextafter(row, 2 * row)
    assert held_against_one_step(elsewhere).failures == []
    doubled = held_against_one_step(ends(2))
    assert len(doubled.failures) == 2, "a sum in place of a mean is still seen"


def test_a_parameter_that_went_elsewhere_is_named_with_the_size_of_the_error():
    verdict = compared(moved({"weight": 0.01}))
    (line,) = verdict.failures
    assert line.startswith("parameter 'weight' is 0.0099 from ddp's after 3 steps")
    assert verdict.distance == pytest.approx(0.01, rel=0.01)


def test_optimizer_state_is_compared_and_what_one_does_not_keep_is_a_note():
    name = "momentum_buffer of bias"
    (line,) = compared(report(momentum=lambda state: {name: 1.1 * state[name]})).failures
    assert "optimizer state 'momentum_buffer' of 'bias' is 0.091 from ddp's" in line
    verdict = compared(report(optimizer_state={}))
    assert verdict.failures == []
    assert "'momentum_buffer' not all compared" in verdict.notes[0]


def test_what_an_optimizer_makes_of_rounding_is_allowed():
    """Adam makes whole steps of a gradient that is rounding."""
    apart = moved({"bias": -1})
    assert compared(apart).failures
    assert compared(apart, first=report(rounding={"bias": 0.7})).failures == []


def test_what_is_not_a_number_fails():
    assert compared(moved({"bias": float("nan")})).failures


def rank(rate=0.1, *, weight=(1.0, 2.0)):
    return DriftReport(
        hyperparameters={"lr": [rate, 0.5]},
        parameters={"weight": list(weight)} if weight else {},
    )


@pytest.mark.parametrize(
    "reports",
    [
        [rank(), rank(weight=(1.0 + 1e-6, 2.0)), rank(0.1 * (1 + 1e-9))],
        [rank(weight=(float("nan"), 1.0))] * 2,
        [rank(weight=None)] * 2,
        [None, None],
    ],
)
def test_ranks_that_are_apart_by_rounding_alone_or_diverge_alike_have_not_drifted(reports):
    assert drift_between(reports) is None


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            rank(0.025),
            "ranks have drifted apart: lr 0.1, 0.025 (every rank must take the same steps",
        ),
        (
            rank(weight=(1.0, 2.1)),
            "ranks have drifted apart: parameters 'weight', by up to 0.045 of their size",
        ),
        (rank(weight=(float("nan"), 2.0)), "parameters 'weight', by up to inf"),
    ],
)
def test_what_differs_is_told_with_its_values(other, message):
    assert message in drift_between([rank(), rank(), other])
