"""A single script's report: where its step goes, and which settings are tried.

Planted limits: ``tests/distributed/test_run``."""

from __future__ import annotations

import pytest

from reports import write_reports
from reports.scripts.profile import settings_to_try
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


def test_a_script_alone_has_a_step_and_no_verdict(tmp_path):
    both = script_plan(control=False)
    plan = both.model_copy(update={"arms": {"old": both.arms["old"]}})
    records = script_records(plan, Truth(ratios={}), lambda launch, arm: Script())
    comparison = write_reports(write_script_results(tmp_path, plan, records))
    assert comparison.is_ok and comparison.results == []
    assert comparison.headline.startswith("A step of old takes ")
    for rank in comparison.profile.ranks:
        assert sum(rank.phases_s.values()) == pytest.approx(rank.step_s)
    assert "Undecided" not in (tmp_path / "report.html").read_text()
