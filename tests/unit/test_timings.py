"""Where the seconds of a launch go: the parts add up to it, and are shown by the command, in the page and in Markdown."""

from __future__ import annotations

import pytest

from measurement.plans.plan import Point
from measurement.probes.start_clock import StartClock
from reports import conclude
from tests.conftest import ringside_here
from tests.kit.changed import changed
from tests.kit.results_factory import make_plan, write_results

OWN = {"interpreter": 0.1, "imports": 3.4, "rendezvous": 1.0, "model": 0.5}
STAGES = {"start": 9.0, "blocks": 20.0, "gate": 2.5, "end": 1.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two launches of 34 s; horovod-gloo was ready last, and its second rank later than the first."""
    folder = write_results(tmp_path_factory.mktemp("timings"), plan=make_plan(["horovod-gloo"], launches=2, rounds=8))
    for record in folder.records():
        is_last = record.arm == "horovod-gloo"
        record.rank_start_s = [OWN, OWN | {"imports": 4.4}] if is_last else [OWN, OWN]
        record.launch_s, record.start_s, record.measuring_s = 34.0, 8.5 if is_last else 8.0, 20.0
        record.stages_s = STAGES
        folder.write_record(record)
    folder.write_manifest(changed(folder.read_manifest(), seconds={"total": 80.0}))
    return folder


@pytest.mark.slow
def test_the_parts_of_a_launch_add_up_to_it(folder):
    parts = {(one.stage, one.part): one.seconds for one in conclude(folder).timings}
    assert sum(parts.values()) == pytest.approx(40.0 - 34.0 + 33.0), "33 s are in stages, 6 between launches"
    start = {part: seconds for (stage, part), seconds in parts.items() if stage == "start"}
    assert start == pytest.approx(OWN | {"imports": 4.4, "launcher": 9.0 - 6.0})
    blocks = {part: seconds for (stage, part), seconds in parts.items() if stage == "blocks"}
    assert sum(blocks.values()) == pytest.approx(20.0) and all(seconds > 0 for seconds in blocks.values())
    assert (parts["gate", ""], parts["end", ""]) == (2.5, 1.5)


@pytest.mark.slow
def test_the_command_shows_them_and_a_study_has_none_of_its_own(folder, tmp_path):
    assert "timed steps with exchange" in ringside_here("report", folder.root, "--timings").stdout
    assert "timed steps with exchange" not in ringside_here("report", folder.root).stdout
    study = changed(folder.read_plan(), points={"two": Point()})
    (tmp_path / "plan.yaml").write_text(study.to_yaml())
    for words in (["report", tmp_path], ["compare", tmp_path / "plan.yaml", "-o", tmp_path / "new"]):
        refused = ringside_here(*words, "--timings")
        assert refused.returncode == 2 and "--timings is for one comparison" in refused.stderr, refused.stderr


def test_a_start_is_told_from_when_the_kernel_made_the_process():
    clock = StartClock()
    clock.mark("interpreter")
    clock.mark("imports")
    assert clock.stages_s["interpreter"] > clock.stages_s["imports"] >= 0
