"""Verdicts at the edges: few launches, busy machines, huge and empty intervals, arms without steps.

Each has its own sentence."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from measurement.plans.plan import FLOOR
from measurement.records.record import Case
from reports import make_report
from reports.formats.charts import charts
from reports.wording.formatting import difference_text, ratio, signed_difference
from tests.kit.results_factory import FORMATS, Truth, concluded, on_terminal
from tests.unit.test_separate_runs import compared, write_alternating

pytestmark = pytest.mark.slow  # results of whole comparisons are composed

ONE = "horovod-gloo"
NONSENSE = re.compile(r"\d{6,}\.\d|\bnan\b|\binf\b|e\+\d\d|0\.000 to|ratio –")
"""What no sentence of a report says."""


def rendered(comparison):
    """Every format; JSON without numbers that are none."""
    files = {name: make_report(name).render(comparison) for name in FORMATS}
    json.dumps(charts(comparison), allow_nan=False)
    json.loads(files["json"], parse_constant=pytest.fail)
    return files | {"terminal": on_terminal(comparison, width=100).encode()}


def sound(tmp_path, *, ratio=0.8, **more):
    """A comparison of one candidate, of which every format is made and none says nonsense."""
    comparison = concluded(tmp_path, ratios={ONE: ratio}, **more)
    terminal = rendered(comparison)["terminal"].decode()
    lines = [comparison.headline, comparison.control, *comparison.findings, *comparison.warnings]
    for line in (*lines, terminal):
        assert not NONSENSE.search(line), line
    return comparison


@pytest.mark.parametrize("rounds", [12, 1])
def test_one_launch_gives_a_ratio_and_no_verdict(tmp_path, rounds):
    comparison = sound(tmp_path, launches=1, rounds=rounds)
    result = comparison.result(ONE)
    assert (result.verdict, result.verdict_alone) == ("undecided", "undecided")
    assert (result.ci_low, result.caution) == (None, "one launch")
    assert "one launch gives a ratio but no verdict" in comparison.findings[0]
    assert comparison.fastest == [comparison.baseline, ONE], "neither is shown to be faster"
    assert comparison.undecided == [result], "--max-minutes measures on"


def test_identical_launches_and_a_ratio_of_exactly_1_are_equivalent(tmp_path):
    result = sound(tmp_path, ratio=1.0, noise=0.0, drift=0.0).result(ONE)
    assert (result.verdict, result.throughput_ratio) == ("equivalent", pytest.approx(1.0, abs=1e-3))


@pytest.mark.parametrize("true", [1e-6, 1 / 18, 1e3])
def test_huge_ratios_are_told_in_words_that_can_be_read(tmp_path, true):
    comparison = sound(tmp_path, ratio=true, noise=0.01, drift=0.0, exposed_s=0.0, floor=False)
    assert comparison.result(ONE).verdict == ("faster" if true > 1 else "slower")
    assert re.search(
        r"is (more than )?\d+(\.\d)? times (faster|slower) than", comparison.headline
    ), comparison.headline
    assert charts(comparison)["launches"]["layout"]["xaxis"]["type"] == "log"


def test_far_beyond_what_load_does_there_is_a_verdict_on_a_machine_that_was_never_quiet(tmp_path):
    comparison = sound(tmp_path, ratio=1 / 18, loaded_rounds=range(12), noise=0.1)
    result = comparison.result(ONE)
    assert (result.verdict, result.withheld_by) == ("slower", None)
    assert result.load_reach == pytest.approx(4.0, rel=0.1), "half of the cores were others'"
    assert "the verdict rests on disturbed rounds" in comparison.findings[0]


def test_what_load_may_have_made_is_no_verdict_where_no_round_was_quiet(tmp_path):
    load = {"loaded_rounds": range(12), "slowed_by_load": {ONE: 3.0}}
    comparison = sound(tmp_path, ratio=1.0, **load, noise=0.01, drift=0.0)
    result = comparison.result(ONE)
    assert (result.verdict, result.withheld_by) == ("undecided", "load")
    assert "no undisturbed rounds show it" in comparison.findings[0]


def test_a_few_quiet_rounds_that_tell_nothing_count_as_none(tmp_path):
    """One launch has a quiet round, so that there is a ratio of quiet rounds and no interval."""
    busy = Truth(ratios={ONE: 1.0}, slowed_by_load={ONE: 3.0}, loaded_rounds=range(12), noise=0.1)
    once = replace(busy, loaded_rounds=range(11))
    comparison = concluded(tmp_path, truth=busy, truths={0: once}, launches=4, local_every=0)
    rendered(comparison)
    assert comparison.result(ONE).withheld_by == "load"


@pytest.mark.parametrize(
    ("written", "texts"),
    [
        (ratio, {math.nan: "–", 0.0: "< 0.001", 123.4: "123", math.inf: "> 9999"}),
        (
            difference_text,
            {
                1.0521: "5.2%",
                0.21: "79%",
                1 / 18: "18.0 times",
                0.0: "more than 9999 times",
            },
        ),
        (
            signed_difference,
            {0.7: "-30%", 4.234: "4.23 times", 1 / 18: "18.0 times slower"},
        ),
    ],
)
def test_ratios_are_written_in_few_digits_and_beyond_what_anybody_measures_as_bounds(
    written, texts
):
    assert {value: written(value) for value in texts} == texts


ARMS = ("ddp-gloo", "ddp-gloo-control", ONE)


@pytest.mark.parametrize(
    ("failed", "message"),
    [
        ((*ARMS, FLOOR), "No comparison"),
        (("ddp-gloo-control",), "The A/A control gives no interval"),
    ],
)
def test_arms_that_failed_have_a_sentence(tmp_path, failed, message):
    statuses = {(arm, launch): "failed" for arm in failed for launch in range(3)}
    comparison = sound(tmp_path, statuses=statuses)
    assert message in f"{comparison.headline} {comparison.control}"


def test_launches_that_finished_no_round_give_no_ratio(tmp_path):
    comparison = sound(tmp_path, cut={(arm, launch): 0 for arm in ARMS for launch in range(3)})
    assert comparison.result(ONE).throughput_ratio is None


def test_blocks_without_samples_have_no_rate_and_do_not_count(tmp_path):
    def change(record):
        for rank in (rank for block in record.blocks[:3] for rank in block.ranks):
            rank.samples = [0 if record.arm == ONE else number for number in rank.samples]

    comparison = concluded(tmp_path, ratios={ONE: 0.8}, change=change)
    rendered(comparison)
    assert comparison.result(ONE).throughput_ratio == pytest.approx(0.8, rel=0.1)


FEW_LAUNCHES = [
    (1, "one launch gives a ratio"),
    (2, "with two launches, their variance is poorly estimated"),
]


@pytest.mark.parametrize(("launches", "message"), FEW_LAUNCHES)
def test_micro_benchmarks_of_few_launches_say_so(tmp_path, launches, message):
    cases = [
        Case(name=f"all_reduce/{size}", operation="all_reduce", message_bytes=size)
        for size in (1024, 4096)
    ]
    comparison = sound(tmp_path, cases=cases, launch_noise=0.3, launches=launches)
    assert {result.verdict for result in comparison.results} == {"undecided"}
    assert any(message in line for line in comparison.warnings)


@pytest.mark.parametrize(
    ("number", "message"),
    [(1, "one run of an arm gives a ratio"), (2, "two runs disagree, or agree by chance; make")],
)
def test_few_runs_that_stood_alone_say_so(tmp_path, number, message):
    comparison = compared(
        write_alternating(tmp_path, number, truth=Truth(ratios={"horovod": 0.8}, launch_noise=1.0))
    )
    rendered(comparison)
    result = comparison.result("horovod")
    assert (result.verdict, result.more_runs, result.more_range) == ("undecided", None, None)
    assert message in comparison.findings[0]
    assert not NONSENSE.search("\n".join([comparison.headline, *comparison.warnings]))
