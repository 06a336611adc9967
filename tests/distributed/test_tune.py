"""A search of an arm's settings and its confirmation, on real ranks."""

from __future__ import annotations

import pytest

from measurement.records.results import ResultsFolder
from reports.tuning import Tuning, headline
from tests.conftest import ended_well, ringside_here, write_plan

pytestmark = pytest.mark.usefixtures("no_processes_left")


@pytest.mark.costly
def test_a_search_holds_each_trial_against_the_arms_defaults_and_confirms_what_it_took(tmp_path):
    arms = {"ddp": "ddp", "fixed": {"backend": "ddp", "options": {"bucket_cap_mb": 25.0}}}
    plan = write_plan(tmp_path, arms=arms, reports=["json"])
    out = tmp_path / "out"
    done = ended_well(
        ringside_here("tune", plan, "--arm", "fixed", "-o", out, "--minutes", 0.1, "--at-once", 1)
    )
    tuning = Tuning.model_validate_json((out / "tuning.json").read_text())
    assert {(trial.status, trial.log_ratio is not None) for trial in tuning.trials} == {
        ("ok", True)
    }
    launch = {record.arm: record for record in ResultsFolder(out / "search" / "000").records()}
    assert sorted(launch) == ["fixed", "trial-1"]
    assert all(record.status == "ok" and record.parity.passed for record in launch.values())
    assert launch["trial-1"].options.items() > {"bucket_cap_mb": 25.0}.items(), (
        "what the plan fixes stays"
    )
    assert headline(tuning) in " ".join(done.stdout.split())
    assert (out / "confirm" / "comparison.json").is_file() == bool(tuning.best)
