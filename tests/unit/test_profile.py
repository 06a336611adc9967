"""A single script's report: where its step goes, and which settings are tried.

Planted limits: ``tests/distributed/test_run``."""

from __future__ import annotations

import pytest

from measurement.plans.plan import Plan
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


def alone():
    content = script_plan(control=False).model_dump(mode="json", exclude_unset=True)
    return Plan.model_validate({**content, "arms": {"old": content["arms"]["old"]}})


def tried(**configuration):
    plan = script_plan()
    record = next(
        row
        for row in one_launch(plan, {"old": Script(configuration=configuration)})
        if row.arm == "old"
    )
    return settings_to_try([record])


def test_tried_is_what_others_are_known_to_beat():
    assert tried() == {"loader.workers": 2}
    assert tried(**{"loader.workers": 2, "ddp.bucket_cap_mb": 1}) == {
        "loader.workers": 4,
        "ddp.bucket_cap_mb": 25,
    }
    assert "threads.torch" in tried(**{"threads.torch": 64})
    assert settings_to_try([]) == {}


def test_a_script_alone_has_a_step_and_no_verdict(tmp_path):
    plan = alone()
    records = script_records(plan, Truth(ratios={}), lambda launch, arm: Script())
    comparison = write_reports(write_script_results(tmp_path, plan, records))
    assert comparison.is_ok and comparison.results == []
    assert comparison.headline.startswith("A step of old takes ")
    assert [rank.rank for rank in comparison.profile.ranks] == [0, 1]
    for rank in comparison.profile.ranks:
        assert sum(rank.phases_s.values()) == pytest.approx(rank.step_s)
    page = (tmp_path / "report.html").read_text()
    assert page.count('class="steps"') == 2 and "Undecided" not in page
