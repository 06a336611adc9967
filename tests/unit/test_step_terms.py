"""Why: terms of known truth, written as the driver would, and the sentence that names the cause."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from measurement.plans.plan import FLOOR
from reports.conclusions.step_terms import (
    TERMS,
    dominant_cause,
    term_differences,
    terms_by_launch,
)
from reports.conclusions.steps import Steps
from reports.parts_schema import Estimate
from reports.wording.causes import core_wait_clause
from reports.wording.first_screen import first_screen
from tests.kit.results_factory import concluded, make_plan

pytestmark = pytest.mark.slow  # results of whole comparisons are composed

QUIET = {"noise": 0.002, "drift": 0.05}


def conclude_truth(tmp_path, **changes):
    """Both arms are as fast, but for what changes."""
    return concluded(
        tmp_path, **{"ratios": {"horovod-gloo": 1.0}, "launches": 5, "rounds": 24} | QUIET | changes
    )


def steps_by_hand(rows, *, columns="kind rank turn step data_wait_s step_s"):
    """Steps of one launch, of which all else is alike; half of each is the forward pass.

    Turns are those of each arm in each round, where ``columns`` has none."""
    table = pd.DataFrame(rows, columns=columns.split())
    phases = dict.fromkeys(("data_wait_s", "backward_s", "optimizer_s", "exchange_s"), 0.0)
    place = {"launch": 0, "arm": "arm", "kind": "sync", "case": None, "round": 0, "samples": 1}
    alike = {name: value for name, value in (phases | place).items() if name not in table}
    table = table.assign(**alike, forward_s=table["step_s"] / 2)
    turns = table.groupby(["round", "arm"]).ngroup()
    return Steps.of(table.assign(turn=table.get("turn", turns), block=table["round"]))


def test_terms_are_those_of_the_definition_by_hand():
    arm = steps_by_hand(
        [
            ("sync", 0, 0, 0, 1.0, 10.0),
            ("sync", 1, 0, 0, 1.0, 11.0),
            ("local", 0, 1, 0, 1.0, 6.0),
            ("local", 0, 1, 1, 1.0, 8.0),
            ("local", 1, 1, 0, 1.0, 8.0),
            ("local", 1, 1, 1, 1.0, 6.0),
        ]
    )
    floor = steps_by_hand([("local", rank, 2, 0, 0.5, 4.5) for rank in (0, 1)])
    terms = terms_by_launch(arm, floor).loc[0]
    assert terms[list(TERMS)].to_dict() == {
        "compute": 4.0,  # 4.5 - 0.5
        "data_wait": 1.0,
        "library_overhead": 2.0,  # 7 - 1 less 4
        "imbalance": 1.0,  # the slowest takes 8 in both steps, of which 7 are in the terms above
        "exposed_exchange": 3.0,  # 11 - 8
    }
    assert terms[list(TERMS)].sum() == terms["step"] == 11.0


def test_one_rank_exchanges_nothing_and_what_its_calls_cost_is_the_librarys():
    arm = steps_by_hand([("sync", 0, 0, 0, 1.0, 10.0), ("local", 0, 1, 0, 1.0, 8.0)])
    terms = terms_by_launch(arm, steps_by_hand([("local", 0, 2, 0, 1.0, 7.0)])).loc[0]
    assert terms[list(TERMS)].tolist() == [6.0, 1.0, 3.0, 0.0, 0.0]


def test_exchange_that_takes_back_overhead_is_one_figure_with_it():
    """Horovod over MPI took 3.4 ms longer, and the first screen said 8.2 ms, which its threads take
    from steps without exchange alone."""
    baseline = table_of_terms(library_overhead=0.0, exposed_exchange=2.7)
    polling = table_of_terms(library_overhead=8.2, exposed_exchange=-2.1)
    differences = term_differences(polling, [baseline])
    assert differences["overhead_and_exchange"].mean() == pytest.approx(3.4, abs=0.1)
    assert not {"library_overhead", "exposed_exchange"} & set(differences)
    cause = dominant_cause(differences, slower=True, confidence=0.95)
    assert cause is not None and cause.term == "overhead_and_exchange"
    noisy = table_of_terms(library_overhead=8.2, exposed_exchange=-0.01)
    apart = term_differences(noisy, [baseline])
    assert apart["library_overhead"].mean() == pytest.approx(8.2, abs=0.1)


def table_of_terms(**means):
    """Terms of six launches, ms, with a noise of 0.1."""
    random = np.random.default_rng(3)
    table = pd.DataFrame(
        {term: means.get(term, 1.0) + 0.1 * random.normal(size=6) for term in TERMS}
    )
    return table.assign(step=table.sum(axis="columns"))


@pytest.mark.parametrize(
    ("local_s", "expected"),
    [
        ((4.0, 5.0), [4.5, 0.0, 0.5]),
        ((6.0, 7.0), [4.5, 2.0, 0.5]),
        ((4.0, 7.0), [4.5, 0.0, 2.5]),
    ],
)
def test_what_one_rank_takes_longer_is_imbalance_and_what_all_take_is_overhead(local_s, expected):
    """The second rank has a slow core."""
    arm = [("sync", rank, 0, 0, 0.0, 12.0) for rank in (0, 1)]
    arm += [("local", rank, 1, 0, 0.0, step_s) for rank, step_s in enumerate(local_s)]
    floor = [("local", rank, 2, 0, 0.0, 4.0 + rank) for rank in (0, 1)]
    terms = terms_by_launch(steps_by_hand(arm), steps_by_hand(floor)).loc[0]
    assert terms[["compute", "library_overhead", "imbalance"]].tolist() == expected


def test_the_cause_is_named(tmp_path):
    """The candidate's library takes 5 ms more of every step, or 5 ms less."""
    for overhead_s, word in ((0.005, "more"), (-0.005, "less")):
        comparison = conclude_truth(tmp_path / word, overhead_s={"horovod-gloo": overhead_s})
        assert comparison.result("horovod-gloo").because.term == "library_overhead"
        assert "because of 4.7" in comparison.findings[0] and word in comparison.findings[0]


def test_two_causes_alike_are_no_single_cause(tmp_path):
    longer = {"overhead_s": {"horovod-gloo": 0.004}, "more_exchange_s": {"horovod-gloo": 0.0038}}
    comparison = conclude_truth(tmp_path, **longer)
    result = comparison.result("horovod-gloo")
    assert (result.verdict, result.because) == ("slower", None)
    assert "; no single cause stands out (beyond noise: " in comparison.findings[0]


@pytest.mark.parametrize(
    ("waits_ms", "said"),
    [
        ((6.0, 5.9, 6.1), "; its training threads wait 5.00 ms longer for a core in each step"),
        ((1.5, 1.4, 1.6), ""),  # less than half of what the steps differ by
        ((6.0, 1.0, 11.0), ""),  # its interval holds the baseline's
    ],
)
def test_a_wait_for_a_core_that_is_most_of_the_difference_stands_beside_the_cause(
    tmp_path, waits_ms, said
):
    comparison = conclude_truth(tmp_path, overhead_s={"horovod-gloo": 0.005})

    def with_wait(name, value, low, high):
        wait = Estimate(value=value / 1e3, ci_low=low / 1e3, ci_high=high / 1e3)
        arm = comparison.arm(name)
        threads = arm.threads_s["sync"].model_copy(update={"runnable_s": wait})
        return arm.model_copy(update={"threads_s": {"sync": threads}})

    result, theirs = comparison.result("horovod-gloo"), with_wait("ddp-gloo", 1.0, 0.9, 1.1)
    assert core_wait_clause(result, with_wait("horovod-gloo", *waits_ms), theirs) == said


def test_without_a_floor_overhead_is_in_computing(tmp_path):
    comparison = conclude_truth(tmp_path, overhead_s={"horovod-gloo": 0.005}, floor=False)
    assert comparison.arm("horovod-gloo").step_terms_s.library_overhead is None
    assert comparison.result("horovod-gloo").because.term == "compute"
    assert " ms more computing per step" in comparison.findings[0]


def test_a_rank_that_is_late_is_named_with_its_host_and_phase_in_its_arm_alone(tmp_path):
    """Where there are few arms, half of those that an arm is compared with have a late rank."""
    comparison = conclude_truth(tmp_path, late_s={("horovod-gloo", 1): 0.003}, control=False)
    straggler = comparison.arm("horovod-gloo").by_rank.straggler
    assert (straggler.rank, straggler.host, straggler.phase) == (1, "host1", "backward")
    assert straggler.late_s == pytest.approx(0.003, rel=0.1)
    assert straggler.ci_low < 0.003 < straggler.ci_high
    assert comparison.arm("ddp-gloo").by_rank.straggler is None


def test_a_rank_that_is_late_in_all_arms_is_named_in_all(tmp_path):
    everywhere = [*make_plan(("horovod-gloo",)).compared_arms(), FLOOR]
    comparison = conclude_truth(tmp_path, late_s={(arm, 0): 0.002 for arm in everywhere})
    assert [arm.by_rank.straggler.rank for arm in comparison.arms] == [0, 0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_no_rank_is_named_where_all_are_alike(tmp_path, seed):
    comparison = concluded(tmp_path, ratios={"horovod-gloo": 1.0}, rounds=24, noise=0.03, seed=seed)
    assert [arm.by_rank.straggler for arm in comparison.arms] == [None] * 3


def test_an_arm_that_is_faster_than_its_model_alone_gets_no_verdict(tmp_path):
    comparison = conclude_truth(tmp_path, overhead_s={"horovod-gloo": -0.01})
    result = comparison.result("horovod-gloo")
    assert (result.verdict, result.verdict_alone) == ("undecided", "faster")
    assert result.withheld_by == "implausible"
    assert "takes less time for a step than its model alone does" in result.note
    assert comparison.headline.startswith("No verdict against ") and comparison.fastest == []
    assert first_screen(comparison).marks[-1].word == "other work"
