"""Micro-benchmarks in the reports: pairs and controls by case, latency and bandwidths by hand, what
is not offered said."""

from __future__ import annotations

import re

import pytest

from measurement.records.record import Case
from reports import conclude
from tests.kit.changed import changed
from tests.kit.results_factory import Truth, concluded, make_plan, write_results

REASON = "not offered by Horovod"
SIZES = {"1KiB": 1 << 10, "64KiB": 1 << 16, "1MiB": 1 << 20}
CASES = [
    Case(name=f"{operation}/{name}", operation=operation, message_bytes=size, **more)
    for operation, more in (
        ("all_reduce", {"busbw_factor": 1.5}),
        ("send_recv", {"messages": 2}),
    )
    for name, size in SIZES.items()
]
TRUTH = Truth(
    ratios={"horovod-gloo": 0.8, "horovod-mpi": 1.0},
    cases=CASES,
    not_offered={"horovod-gloo": ["send_recv"], "horovod-mpi": ["send_recv"]},
    case_ratios={("horovod-mpi", "all_reduce/1MiB"): 1.5, ("horovod-mpi", "all_reduce/1KiB"): 0.5},
    noise=0.01,
    drift=0.1,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    plan = changed(make_plan(rounds=6, block_steps=2), workload="collectives")
    return write_results(tmp_path_factory.mktemp("cases"), truth=TRUTH, plan=plan)


@pytest.fixture(scope="module")
def comparison(folder):
    return conclude(folder)


@pytest.mark.slow
def test_every_case_has_its_own_pairs_and_ratio(comparison):
    for size, truth, verdict in (("1KiB", 0.5, "slower"), ("1MiB", 1.5, "faster")):
        result = comparison.result("horovod-mpi", f"all_reduce/{size}")
        assert result.throughput_ratio == pytest.approx(truth, rel=0.02)
        assert (result.verdict, result.launches, result.pairs) == (verdict, 3, 18)
    assert comparison.result("horovod-mpi") is None, "there is no ratio over all cases"
    figures = comparison.arm("ddp-gloo").case("all_reduce/1MiB")
    assert figures.busbw_bytes_per_s.value == pytest.approx(1.5 * figures.algbw_bytes_per_s.value)
    assert len(comparison.results) == 3 * len(CASES)


def test_a_case_that_is_not_offered_is_no_hole(comparison):
    name = "send_recv/1KiB"
    figures = comparison.arm("horovod-gloo").case(name)
    assert (figures.not_offered, figures.latency_s) == (REASON, None)
    result = comparison.result("horovod-gloo", name)
    assert (result.throughput_ratio, result.note, result.pairs) == (None, REASON, 0)
    assert result not in comparison.undecided
    assert comparison.arm("ddp-gloo").case(name).latency_s is not None


@pytest.mark.slow
def test_the_control_has_its_veto_in_its_own_case_only(tmp_path):
    cases, ratios = CASES[:2], {"horovod-gloo": 1.03}
    apart = {(arm, cases[0].name): 1.06 for arm in ("ddp-gloo-control", "horovod-gloo")}
    vetoed = concluded(tmp_path, ratios=ratios, cases=cases, case_ratios=apart, noise=0.003)
    verdicts = [vetoed.result("horovod-gloo", case.name).verdict for case in cases]
    assert verdicts == ["undecided", "faster"]
    assert vetoed.control.startswith("The A/A control failed in 1 of 2 cases (all_reduce/1KiB 1.0")


@pytest.mark.slow
def test_the_fewest_workers_that_load_most_have_the_headline(tmp_path):
    shares = {"0 workers": 0.5, "1 worker": 0.8, "2 workers": 1.0, "4 workers": 0.5005}
    cases = [
        Case(name=f"mnist/{name}", operation="mnist", samples=64, messages=max(int(name[0]), 1))
        for name in shares
    ]
    speed = {("ddp-gloo", f"mnist/{name}"): share for name, share in shares.items()}
    settings = {"ratios": {}, "noise": 1e-9, "drift": 0.0}
    comparison = concluded(tmp_path, cases=cases, case_ratios=speed, **settings)
    assert re.match(r"mnist: most is loaded by 2 workers, 6,\d+ samples/s", comparison.headline)
    two = comparison.arm("ddp-gloo").case("mnist/2 workers")
    assert two.samples_per_s.value == pytest.approx(6400, rel=0.02)
    assert two.latency_s.value == pytest.approx(0.01, rel=0.02), "a batch, of two in a step"
