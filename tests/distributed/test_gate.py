"""The parity gate and the fairness manifest, on real ranks: what computes wrongly is reported as wrong and gets no timing."""

from __future__ import annotations

from pathlib import Path

import pytest

from measurement.results import ResultsFolder
from tests.conftest import ringside, write_plan

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("no_processes_left")]
WRONG = Path(__file__).parent / "plugins" / "wrong.py"


def run(tmp_path, classes, **measurement):
    arms = {name.lower(): {"backend": f"{WRONG}:{name}", "transport": "gloo"} for name in classes}
    plan = write_plan(tmp_path, arms={"ddp": {"backend": "ddp"}, **arms}, measurement={"control": False, **measurement})
    done = ringside("compare", plan, "-o", tmp_path / "out")
    return done, {record.arm: record for record in ResultsFolder(tmp_path / "out").records()}


def test_every_wrong_backend_is_caught_and_not_timed(tmp_path):
    classes = ["SkipsOneParameter", "SumsInsteadOfAveraging", "StartsApart", "SameShardEverywhere", "SameInputsInside"]
    done, records = run(tmp_path, classes)
    assert done.returncode == 1, done.stderr
    assert records["ddp"].status == "ok"
    expected = {
        "skipsoneparameter": "gradient of 'classify.bias' is off by",
        "sumsinsteadofaveraging": "(relative L2, tolerance 0.0001)",
        "startsapart": "differs from rank 0's",
        "sameshardeverywhere": "ranks 0 and 1 consumed the same samples",
        "sameinputsinside": "gradient of",
    }
    folder = ResultsFolder(tmp_path / "out")
    for arm, message in expected.items():
        assert records[arm].status == "wrong", (arm, records[arm].error)
        assert message in records[arm].error.message
        assert len(folder.steps(records[arm])) == 0
    assert "wrong" in done.stdout


def test_an_unasked_difference_is_an_error(tmp_path):
    done, records = run(tmp_path, ["Unfair"])
    assert done.returncode == 1
    assert records["unfair"].status == "failed"
    assert "threads is 2, ddp has 1" in records["unfair"].error.message
