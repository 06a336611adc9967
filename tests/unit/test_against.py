"""A result compared with an earlier one: like conditions or a refusal, verdicts, exit codes."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from measurement.errors import PlanError
from measurement.records.results import ResultsFolder
from reports.against import StoredComparison, judge
from reports.schema import Comparison
from reports.statistics.intervals import ratio_estimate
from tests.conftest import ringside_here
from tests.kit.changed import changed
from tests.kit.refusals import refused_command
from tests.kit.results_factory import Truth, make_manifest, make_plan, write_results

pytestmark = pytest.mark.slow  # results of whole comparisons are composed

CALM = {"noise": 0.01, "launch_noise": 0.01, "drift": 0.02}
FEWER = {"launches": 6, "rounds": 4}


def change(percent, half=0.02):
    widths = (half, 0.8 * half, half)
    return ratio_estimate(math.log1p(percent / 100), widths, launches=8, pairs=0, caution=None)


@pytest.mark.parametrize(
    ("percent", "expected"),
    [
        (0, ("no regression", False)),
        (-3, ("no regression", False)),  # lost, and shown to be less than what may be
        (-5, ("regressed", False)),
        (-8, ("regressed", True)),
        (5, ("improved", False)),
    ],
)
def test_the_verdict_follows_from_the_interval_and_from_what_may_be_lost(percent, expected):
    assert judge(change(percent), allow_slower=0.05) == expected


def test_a_wide_interval_and_one_that_load_may_have_moved_are_undecided():
    assert judge(change(-3, half=0.1), allow_slower=0.05) == ("undecided", False)
    assert judge(change(-8), allow_slower=0.05, reach=0.1) == ("undecided", False)
    assert judge(change(-8), allow_slower=0.05, reach=0.01) == ("regressed", True)
    assert judge(change(5), allow_slower=0.05, reach=math.inf) == ("undecided", False)


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


def test_a_repeat_shows_no_regression_and_5_percent_that_are_planted_end_with_code_3(dates):
    done = ringside_here("report", dates / "new", "--against", dates / "old")
    assert done.returncode == 0, done.stderr
    assert "): no regression beyond 5%; " in done.stdout.splitlines()[0]
    against = Comparison.model_validate_json(
        (dates / "new" / "comparison.json").read_text()
    ).against
    assert {(change.arm, change.baseline): change.verdict for change in against.changes} == {
        ("ddp-gloo", None): "no regression",
        ("horovod-gloo", None): "no regression",
        ("horovod-gloo", "ddp-gloo"): "no regression",
    }
    assert (against.verdict, against.beyond, against.notes) == ("no regression", [], [])
    slow = ringside_here(
        "report", dates / "slow", "--against", dates / "old", "--allow-slower", "2%"
    )
    assert slow.returncode == 3, slow.stderr
    assert "regressed (beyond 2%): horovod-gloo " in slow.stdout.splitlines()[0]
    ratio = Comparison.model_validate_json(
        (dates / "slow" / "comparison.json").read_text()
    ).against.changes[-1]
    assert ratio.change.ci_low < 0.95 < ratio.change.ci_high and ratio.is_beyond
    assert (
        ringside_here(
            "report", dates / "slow", "--against", dates / "old", "--allow-slower", "20%"
        ).returncode
        == 0
    )


def measured(root, **changed):
    """A result of which only the conditions matter, as it was or ``changed``."""
    plan = make_plan(("horovod-gloo",))
    manifest = make_manifest(plan)
    return StoredComparison(
        folder=ResultsFolder(root), **{"plan": plan, "manifest": manifest, **changed}
    )


PLAN, DRIVER = make_plan(("horovod-gloo",)), make_manifest(make_plan()).driver | {"torch": "2.14.0"}
UNLIKE = {
    "cpu: 'Synthetic CPU' -> Other": {
        "manifest": changed(make_manifest(PLAN), driver=DRIVER | {"cpu": "Other"})
    },
    "ringside: 0.1.0 -> 0.2.0": {
        "manifest": changed(make_manifest(PLAN), ringside_version="0.2.0")
    },
    "hosts: none -> a:1,b:1": {"plan": changed(PLAN, hosts="a:1,b:1")},
    "arms.horovod-gloo.options.compression: none -> fp16": {
        "plan": changed(
            PLAN,
            arms=PLAN.arms
            | {"horovod-gloo": changed(PLAN.arms["horovod-gloo"], options={"compression": "fp16"})},
        )
    },
}


@pytest.mark.parametrize("line", UNLIKE)
def test_other_conditions_are_refused_field_by_field(tmp_path, line):
    then = measured(tmp_path / "old", manifest=changed(make_manifest(PLAN), driver=DRIVER))
    with pytest.raises(PlanError, match="other conditions") as refused:
        then.require_like(measured(tmp_path / "new", **{"manifest": then.manifest, **UNLIKE[line]}))
    lines = [text.strip() for text in str(refused.value).splitlines()]
    assert line.replace("'Synthetic CPU'", "Synthetic CPU") in lines, lines
    assert len(lines) == 3, "nothing else differs"
    field = line.partition(":")[0]
    notes = replace(then, allowed=[field]).require_like(
        measured(tmp_path / "new", **{"manifest": then.manifest, **UNLIKE[line]})
    )
    assert notes[0].startswith(f"Compared although it differs (--allow): {field}: ")


def test_longer_measuring_other_arms_and_other_sources_are_no_other_conditions(tmp_path):
    longer = changed(
        make_plan(("horovod-gloo", "horovod-mpi"), launches=9), name="renamed", reports=["html"]
    )
    sources = [
        changed(make_manifest(PLAN), sources={"train.py": digest})
        for digest in ("a" * 16, "b" * 16)
    ]
    then, now = (
        measured(tmp_path / "old", manifest=sources[0]),
        measured(tmp_path / "new", plan=longer, manifest=sources[1]),
    )
    assert then.require_like(now) == ["Sources differ: train.py: aaaaaaaa -> bbbbbbbb"]


def test_what_ranks_report_otherwise_is_refused_as_one_message_with_code_2(dates, tmp_path):
    plan = make_plan({"horovod-gloo": 1.1}, launches=1, rounds=2)
    folder = write_results(tmp_path / "threads", plan=plan)
    for path in folder.root.glob("launch-*/ddp-gloo/record.json"):
        record = json.loads(path.read_text())
        path.write_text(
            json.dumps(record | {"ranks": [rank | {"threads": 4} for rank in record["ranks"]]})
        )
    assert "threads: 1 -> 4" in refused_command("report", folder.root, "--against", dates / "old")
    for words, message in (
        ([dates / "new", "--against", dates / "new"], "the same folder"),
        (
            [dates / "new", "--against", dates / "old", "--allow-slower", "much"],
            "--allow-slower 'much' is no share",
        ),
        ([dates / "new", "--allow-slower", "5%"], "name that with --against OLD"),
        ([dates / "new", dates / "slow", "--against", dates / "old"], "is a comparison"),
    ):
        assert message in refused_command("report", *words)
