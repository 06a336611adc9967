"""Micro-benchmarks in the reports: pairs and controls by case, latency and bandwidths by hand, what
is not offered said."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from measurement.records.record import Case
from reports import conclude
from reports.charts.comparison_charts import charts
from reports.conclusions.summaries import count_verdicts, summarise_cases
from tests.kit.changed import changed
from tests.kit.results_factory import Truth, concluded, make_plan, write_results

REASON = "not offered by Horovod"
SIZES = {"1KiB": 1 << 10, "64KiB": 1 << 16, "1MiB": 1 << 20}
CASES = [
    *(
        Case(
            name=f"all_reduce/{name}", operation="all_reduce", message_bytes=size, busbw_factor=1.5
        )
        for name, size in SIZES.items()
    ),
    *(
        Case(name=f"send_recv/{name}", operation="send_recv", message_bytes=size, messages=2)
        for name, size in SIZES.items()
    ),
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
    assert [case.name for case in comparison.cases] == [case.name for case in CASES]
    ratios = {size: comparison.result("horovod-mpi", f"all_reduce/{size}") for size in SIZES}
    assert [ratios[size].verdict for size in ("1KiB", "1MiB")] == ["slower", "faster"]
    for size, truth in (("1KiB", 0.5), ("64KiB", 1.0), ("1MiB", 1.5)):
        assert ratios[size].throughput_ratio == pytest.approx(truth, rel=0.02)
        assert (ratios[size].launches, ratios[size].pairs) == (3, 18)
        assert ratios[size].candidate == "horovod-mpi" and ratios[size].role == "candidate"
    assert comparison.result("horovod-mpi") is None, "there is no ratio over all cases"
    figures = comparison.arm("ddp-gloo").case("all_reduce/1MiB")
    assert figures.busbw_bytes_per_s.value == pytest.approx(1.5 * figures.algbw_bytes_per_s.value)
    assert len(comparison.results) == 3 * len(CASES)


def test_a_case_that_is_not_offered_is_no_hole(comparison):
    arm, result = (
        comparison.arm("horovod-gloo"),
        comparison.result("horovod-gloo", "send_recv/1KiB"),
    )
    assert (arm.case("send_recv/1KiB").not_offered, arm.case("send_recv/1KiB").latency_s) == (
        REASON,
        None,
    )
    assert (result.throughput_ratio, result.note, result.pairs) == (None, REASON, 0)
    assert result not in comparison.undecided
    assert comparison.arm("ddp-gloo").case("send_recv/1KiB").latency_s is not None


@pytest.mark.slow
def test_the_control_has_its_veto_in_its_own_case_only(tmp_path):
    apart = {(arm, CASES[0].name): 1.06 for arm in ("ddp-gloo-control", "horovod-gloo")}
    vetoed = concluded(
        tmp_path, ratios={"horovod-gloo": 1.03}, cases=CASES[:2], case_ratios=apart, noise=0.003
    )
    first, second = (vetoed.result("horovod-gloo", case.name) for case in CASES[:2])
    assert (first.verdict, second.verdict) == ("undecided", "faster")
    assert "'faster', but the control deviates" in first.note
    assert vetoed.control.startswith("The A/A control failed in 1 of 2 cases (all_reduce/1KiB 1.0")


@pytest.mark.slow
def test_an_arm_that_failed_has_no_timing_in_any_case(tmp_path):
    statuses = {("horovod-mpi", launch): "wrong" for launch in range(3)}
    failed = concluded(tmp_path, cases=CASES[:2], statuses=statuses)
    assert count_verdicts(failed.arm("horovod-mpi"), failed.results) == {"no timing": 2}
    assert failed.result("horovod-gloo", CASES[0].name).pairs == 3 * 12


def test_a_case_without_blocks_has_no_figures(folder):
    (record,) = [
        record for record in folder.records() if (record.arm, record.launch) == ("ddp-gloo", 0)
    ]
    empty = pd.DataFrame(columns=["launch", "case", "throughput_per_s"])
    assert {figures.latency_s for figures in summarise_cases([record], empty, confidence=0.95)} == {
        None
    }


@pytest.mark.slow
def test_the_fewest_workers_that_load_most_have_the_headline(tmp_path):
    names = ("0 workers", "1 worker", "2 workers", "4 workers")
    cases = [
        Case(name=f"mnist/{name}", operation="mnist", samples=64, messages=max(int(name[0]), 1))
        for name in names
    ]
    speed = {
        ("ddp-gloo", case.name): share
        for case, share in zip(cases, (0.5, 0.8, 1.0, 0.5005), strict=True)
    }
    comparison = concluded(
        tmp_path, ratios={}, cases=cases, case_ratios=speed, noise=1e-9, drift=0.0
    )
    assert re.match(r"mnist: most is loaded by 2 workers, 6,\d+ samples/s", comparison.headline)
    arm = comparison.arm("ddp-gloo")
    assert [arm.case(case.name).samples_per_s.value for case in cases] == pytest.approx(
        [1600, 2560, 6400, 6406], rel=0.02
    )
    assert arm.case(cases[2].name).latency_s.value == pytest.approx(0.01, rel=0.02), (
        "a batch, of two in a step"
    )
    (chart,) = charts(comparison).values()
    assert chart["data"][0]["x"] == [0, 1, 2, 3]
