"""A result compared with an earlier one: like conditions or a refusal, verdicts, exit codes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from measurement.errors import PlanError
from measurement.records.results import ResultsFolder
from reports.against import StoredComparison, judge
from reports.schema import Comparison
from reports.statistics.student import ratio_estimate
from tests.conftest import ringside_here
from tests.kit.changed import changed
from tests.kit.refusals import refused_command
from tests.kit.results_factory import Truth, make_manifest, make_plan, write_results

pytestmark = pytest.mark.slow  # results of whole comparisons are composed

CALM = {"noise": 0.01, "launch_noise": 0.01, "drift": 0.02}
FEWER = {"launches": 6, "rounds": 4}


@pytest.mark.parametrize(
    ("percent", "half", "reach", "verdict"),
    [
        (0, 0.02, 0, "no regression"),
        (-3, 0.02, 0, "no regression"),  # lost, and shown to be less than what may be
        (-5, 0.02, 0, "regressed"),
        (-8, 0.02, 0, "regressed beyond"),
        (5, 0.02, 0, "improved"),
        (-3, 0.1, 0, "undecided"),
        (-8, 0.02, 0.1, "undecided"),  # load may have moved it
        (-8, 0.02, 0.01, "regressed beyond"),
    ],
)
def test_the_verdict_follows_from_the_interval_and_from_what_may_be_lost(
    percent, half, reach, verdict
):
    widths = (half, 0.8 * half, half)
    change = ratio_estimate(math.log1p(percent / 100), widths, launches=8, pairs=0, caution=None)
    judged, is_beyond = judge(change, allow_slower=0.05, reach=reach)
    assert judged + " beyond" * is_beyond == verdict


@pytest.fixture(scope="module")
def dates(tmp_path_factory):
    """Three results of one plan; in ``slow`` horovod-gloo has lost 5% of its speed."""
    root = tmp_path_factory.mktemp("dates")
    for seed, (name, speed) in enumerate({"old": 1.1, "new": 1.1, "slow": 1.1 * 0.95}.items()):
        truth = Truth(**CALM, ratios={"horovod-gloo": speed})
        folder = write_results(
            root / name, plan=make_plan(truth.ratios, **FEWER), truth=truth, seed=seed + 1
        )
        manifest = folder.read_manifest()
        folder.write_manifest(changed(manifest, created_at=f"2026-01-0{seed + 1}T12:00:00+00:00"))
    return root


def reported(dates, new, *words):
    """What ``report`` prints of a result against the old one, its exit code, and what it wrote."""
    done = ringside_here("report", dates / new, "--against", dates / "old", *words)
    written = Comparison.model_validate_json((dates / new / "comparison.json").read_text())
    return done.stdout.splitlines()[0], done.returncode, written.against


def test_a_repeat_shows_no_regression(dates):
    first, code, against = reported(dates, "new")
    assert "): no regression beyond 5%; " in first and code == 0
    assert {(change.arm, change.baseline): change.verdict for change in against.changes} == {
        ("ddp-gloo", None): "no regression",
        ("horovod-gloo", None): "no regression",
        ("horovod-gloo", "ddp-gloo"): "no regression",
    }
    assert (against.verdict, against.beyond, against.notes) == ("no regression", [], [])


def test_5_percent_that_are_planted_end_with_code_3_unless_more_may_be_lost(dates):
    first, code, against = reported(dates, "slow", "--allow-slower", "2%")
    assert "regressed (beyond 2%): horovod-gloo " in first and code == 3
    ratio = against.changes[-1]
    assert ratio.change.ci_low < 0.95 < ratio.change.ci_high and ratio.is_beyond
    assert reported(dates, "slow", "--allow-slower", "20%")[1] == 0


def measured(root, **changed):
    """A result of which only the conditions matter, as it was or ``changed``."""
    plan = make_plan(("horovod-gloo",))
    manifest = make_manifest(plan)
    return StoredComparison(
        folder=ResultsFolder(root), **{"plan": plan, "manifest": manifest, **changed}
    )


PLAN, DRIVER = make_plan(("horovod-gloo",)), make_manifest(make_plan()).driver | {"torch": "2.14.0"}
UNLIKE = {
    "cpu: Synthetic CPU -> Other": {
        "manifest": changed(make_manifest(PLAN), driver=DRIVER | {"cpu": "Other"})
    },
    "ringside: 0.1.0 -> 0.2.0": {
        "manifest": changed(make_manifest(PLAN), ringside_version="0.2.0")
    },
    "hosts: none -> a:1,b:1": {"plan": changed(PLAN, hosts="a:1,b:1")},
}


@pytest.mark.parametrize("line", UNLIKE)
def test_other_conditions_are_refused_field_by_field_unless_they_are_allowed(tmp_path, line):
    then = measured(tmp_path / "old", manifest=changed(make_manifest(PLAN), driver=DRIVER))
    now = measured(tmp_path / "new", **{"manifest": then.manifest, **UNLIKE[line]})
    with pytest.raises(PlanError, match="other conditions") as refused:
        then.require_like(now)
    lines = [text.strip() for text in str(refused.value).splitlines()]
    assert line in lines
    assert len(lines) == 3, "nothing else differs"
    field = line.partition(":")[0]
    (note,) = replace(then, allowed=[field]).require_like(now)
    assert note.startswith(f"Compared although it differs (--allow): {field}: ")


def test_longer_measuring_other_arms_and_other_sources_are_no_other_conditions(tmp_path):
    longer = changed(
        make_plan(("horovod-gloo", "horovod-mpi"), launches=9), name="renamed", reports=["html"]
    )
    old, new = (changed(make_manifest(PLAN), sources={"train.py": letter * 16}) for letter in "ab")
    then = measured(tmp_path / "old", manifest=old)
    now = measured(tmp_path / "new", plan=longer, manifest=new)
    assert then.require_like(now) == ["Sources differ: train.py: aaaaaaaa -> bbbbbbbb"]


def test_what_ranks_report_otherwise_is_refused(dates, tmp_path):
    def other_threads(record):
        record.ranks = [changed(rank, threads=4) for rank in record.ranks]

    plan = make_plan({"horovod-gloo": 1.1}, launches=1, rounds=2)
    folder = write_results(tmp_path / "threads", plan=plan, change=other_threads)
    assert "threads: 1 -> 4" in refused_command("report", folder.root, "--against", dates / "old")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("new --against new", "the same folder"),
        ("new --against old --allow-slower much", "--allow-slower 'much' is no share"),
        ("new --allow-slower 5%", "name that with --against OLD"),
        ("new slow --against old", "is a comparison"),
    ],
)
def test_what_cannot_be_held_against_is_refused(dates, words, message):
    typed = [dates / word if word in ("old", "new", "slow") else word for word in words.split()]
    assert message in refused_command("report", *typed)
