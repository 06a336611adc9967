"""A search of settings and its confirmation, on real ranks."""

from __future__ import annotations

import pytest

from measurement.records.results import ResultsFolder
from reports.tuning.tuning_schema import Tuning
from tests.conftest import needs_horovod, ringside_here, write_plan

pytestmark = pytest.mark.usefixtures("no_processes_left")


@needs_horovod
@pytest.mark.costly
def test_a_search_holds_each_trial_against_its_default_and_confirms_what_it_took(tmp_path):
    arms = {
        "ddp": {"backend": "ddp", "transport": "gloo", "options": {"bucket_cap_mb": 25.0}},
        "hvd": {"backend": "horovod", "transport": "gloo"},
    }
    plan = write_plan(tmp_path, arms=arms, measurement={"control": False}, reports=["json"])
    done = ringside_here("tune", plan, "-o", tmp_path / "out", "--trials", 1)
    assert done.returncode == 0, done.stderr
    tuning = Tuning.model_validate_json((tmp_path / "out" / "tuning.json").read_text())
    assert [(trial.status, trial.log_ratio is not None) for arm in tuning.arms for trial in arm.trials] == [("ok", True)] * 2
    launch = {record.arm: record for record in ResultsFolder(tmp_path / "out" / "search" / "000").records()}
    assert sorted(launch) == ["ddp-default", "ddp-trial-1", "hvd-default", "hvd-trial-1"]
    assert all(record.status == "ok" and record.parity.passed for record in launch.values())
    assert launch["ddp-trial-1"].options.items() > {"bucket_cap_mb": 25.0}.items(), "what the plan fixes stays"
    assert tuning.headline in " ".join(done.stdout.split())
    assert "DistributedDataParallel(model, bucket_cap_mb=25.0" in done.stdout
    assert (tmp_path / "out" / "tuning.html").stat().st_size > 10**5
