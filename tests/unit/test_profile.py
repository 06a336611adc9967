"""A single script's report: where its step goes, and which settings are tried.

Planted limits: ``tests/distributed/test_run``."""

from __future__ import annotations

import pytest

from measurement.records.record import LineUse
from reports import write_reports
from reports.scripts.profile import settings_to_try
from reports.wording.first_screen import first_screen
from tests.kit.results_factory import Truth
from tests.kit.script_factory import (
    Script,
    one_launch,
    script_plan,
    script_records,
    write_script_results,
)


@pytest.mark.parametrize(
    ("settings", "tried"),
    [
        ({}, {"loader.workers": 2}),
        (
            {"loader.workers": 2, "ddp.bucket_cap_mb": 1},
            {"loader.workers": 4, "ddp.bucket_cap_mb": 25},
        ),
    ],
)
def test_tried_is_what_others_are_known_to_beat(settings, tried):
    launch = one_launch(script_plan(), {"old": Script(configuration=settings)})
    assert settings_to_try([record for record in launch if record.arm == "old"]) == tried


def report_alone(root, *, truth=None, lines=()):
    both = script_plan(control=False)
    plan = both.model_copy(update={"arms": {"old": both.arms["old"]}})
    records = script_records(plan, truth or Truth(ratios={}), lambda launch, arm: Script())
    for report in (report for record in records for report in record.scripts):
        report.lines = list(lines)
    return write_reports(write_script_results(root, plan, records))


def test_a_script_alone_has_a_step_and_no_verdict(tmp_path):
    comparison = report_alone(tmp_path)
    assert comparison.is_ok and comparison.results == []
    assert comparison.headline.startswith("A step of old takes ")
    for rank in comparison.profile.ranks:
        assert sum(rank.phases_s.values()) == pytest.approx(rank.step_s)
    assert "Undecided" not in (tmp_path / "report.html").read_text()


def test_a_script_alone_that_fails_was_not_compared_and_its_error_comes_first(tmp_path):
    """It said "No comparison", "same work: same", and had a table of lines that took 0.00 ms."""
    line = LineUse(place="train.py:7", text="loss.item()", seconds=0.0)
    failed = {("old", launch): "failed" for launch in range(5)}
    truth = Truth(ratios={}, statuses=failed, message="ends after 10 steps")
    comparison = report_alone(tmp_path, truth=truth, lines=[line])
    screen = first_screen(comparison)
    assert (screen.headline, screen.notes) == (
        "old failed: nothing was timed",
        ["ends after 10 steps"],
    )
    assert [mark.name for mark in screen.marks] == ["quiet machine"]
    assert screen.next_step.startswith("Fix old and run again")
    assert "train.py:7" not in (tmp_path / "report.md").read_text()
