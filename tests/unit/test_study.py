"""Studies: points made plans, batch sizes, scaling by hand, verdicts by point, and failed points
that are no holes."""

from __future__ import annotations

import pytest

from measurement.conditions.same_environment import plan_digest
from measurement.errors import HostfileError, PlanError
from measurement.plans.plan_file import check_plan, plan_at
from measurement.records.results import ResultsFolder
from reports import conclude, write_reports
from reports.against import StoredComparison
from reports.by_key import table_by_key
from reports.tables.sections import what_if_table
from reports.what_if import Links
from runners.driver.run_comparison import StudyRun, point_plans
from tests.conftest import TINY
from tests.kit.changed import changed
from tests.kit.plans import read_tiny, written_again
from tests.kit.results_factory import Truth, make_manifest, make_plan, write_results

RATIOS = {"one": 1.2, "two": 1.1, "three": 1.0, "four": 0.8}
"""Of horovod-gloo to ddp-gloo, by point."""


def study_of(points, *, single=False, launches=3, **changes):
    content = make_plan(["horovod-gloo"], rounds=8, launches=launches, control=False).model_dump()
    if single:
        content["arms"]["single"] = {"backend": "single"}
    return check_plan({**content, "points": points, **changes}, source="test")


def write_points(root, study, truths, *, failed=None):
    """A study's folder: a truth for each point that was measured, a cause for each that failed."""
    folder = ResultsFolder(root)
    folder.write_plan(study)
    manifest = make_manifest(study)
    folder.write_manifest(changed(manifest, failed_points=failed or {}))
    for name, truth in truths.items():
        write_results(folder.point(name).root, truth=truth, plan=point_plans(study)[name])
    return folder


def truths_of(ratios):
    return {
        name: Truth(ratios={"horovod-gloo": ratio}, noise=0.005, drift=0.0)
        for name, ratio in ratios.items()
    }


@pytest.fixture(scope="module")
def by_point(tmp_path_factory):
    study = study_of({name: {} for name in RATIOS}, hosts="host1:1,host2:1")
    return write_points(tmp_path_factory.mktemp("by-point"), study, truths_of(RATIOS))


def test_points_become_plans(tmp_path):
    points = {
        "one": {"world_size": 1},
        "two-by-two": {"hosts": ["host1:2", "host2:2"], "local_batch_size": 8},
    }
    arms = {**TINY["arms"], "single": {"backend": "single"}}
    study = read_tiny(
        tmp_path,
        points=points,
        world_size=None,
        arms=arms,
        network_interface="eth0",
        nodes="draw",
    )
    one, four = plans = list(point_plans(study).values())
    assert (one.name, one.world_size, one.local_batch_size, one.hosts) == ("tiny.one", 1, 16, None)
    assert (four.world_size, four.local_batch_size) == (4, 8)
    assert four.hosts == "host1:2,host2:2"
    assert [plan.network_interface for plan in plans] == [None, "eth0"]
    assert [plan.nodes for plan in plans] == ["first", "draw"]
    assert [list(plan.arms) for plan in plans] == [["ddp", "single"], ["ddp"]]
    assert len({plan_digest(plan) for plan in [*plans, study]}) == 3
    assert written_again(study) == study


@pytest.mark.parametrize(("scaling", "batches"), [("weak", [24, 24, 24]), ("strong", [24, 12, 6])])
def test_batches_of_weak_and_strong_scaling(scaling, batches):
    points = {f"n{n}": {"world_size": n} for n in (1, 2, 4)}
    study = study_of(points, scaling=scaling, local_batch_size=24)
    assert [plan_at(study, name).local_batch_size for name in points] == batches


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"points": {"a": {}, "b": {"local_batch_size": 4}}, "scaling": "strong"},
            "let no other point name a local_batch_size",
        ),
        (
            {"points": {"a": {}}, "arms": {"ddp": {"backend": "single"}}},
            "point 'a': the baseline 'ddp' cannot run there",
        ),
        (
            {"points": {"a": {"world_size": 2}}, "workload": "collectives"},
            "'collectives' is a micro-benchmark",
        ),
    ],
)
def test_what_makes_no_study_is_refused_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises((PlanError, HostfileError), match=message):
        StudyRun(read_tiny(tmp_path, **changes), ResultsFolder(tmp_path / "out")).prepare()
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_scaling_baseline_is_named(tmp_path):
    points = {"two": {"world_size": 2}, "four": {"world_size": 4}}
    quiet = Truth(ratios={"horovod-gloo": 1.0}, noise=0.01, drift=0.0)
    folder = write_points(tmp_path, study_of(points), dict.fromkeys(points, quiet))
    four = conclude(folder).points[1].arm("ddp-gloo")
    assert four.scaling_baseline == "ddp-gloo at two (the first point)"
    assert four.speed_up.value == pytest.approx(2, rel=0.05)
    assert four.scaling_efficiency.value == pytest.approx(four.speed_up.value / 2)


@pytest.mark.slow
def test_failed_points_and_arms_are_told_with_their_cause(tmp_path):
    study = study_of({f"n{n}": {"world_size": n} for n in (1, 2, 4, 8)}, single=True)
    equal, failed = {"single": 1.0, "horovod-gloo": 1.0}, {("horovod-gloo", n) for n in range(3)}
    truths = {
        "n1": Truth(ratios=equal),
        "n2": Truth(ratios=equal, statuses=dict.fromkeys(failed, "failed")),
    }
    cause = "host 'host2': it does not answer"
    comparison = write_reports(write_points(tmp_path, study, truths, failed={"n4": cause}))
    assert {point.name: [arm.status for arm in point.arms] for point in comparison.points} == {
        "n1": ["ok", "ok", "ok"],
        "n2": ["ok", "failed", "not at this point"],
        "n4": ["failed", "failed", "not at this point"],
        "n8": ["not measured", "not measured", "not at this point"],
    }
    told = {f"n4: {cause}", "n2: horovod-gloo failed: rank 1 exited with code 1"}
    assert told <= set(comparison.warnings)
    assert f"{cause} |" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_what_is_asked_of_a_comparison_is_answered_at_each_point(by_point, tmp_path):
    study = ResultsFolder(by_point.root).read_plan()
    slower = truths_of(RATIOS | {"four": 0.8 * 0.7})
    now = write_points(tmp_path, study, slower)
    against = write_reports(now, earlier=StoredComparison.read(by_point)).against
    assert {(change.arm, change.point) for change in against.beyond} == {("horovod-gloo", "four")}
    assert len(against.changes) == 3 * len(RATIOS) and against.of_baseline is None
    assert "horovod-gloo at four" in against.headline

    by_launch = table_by_key(now, "launch")
    assert [column.title for column in by_launch.columns[:3]] == ["launch", "point", "arm"]
    assert len(by_launch.rows) == 3 * 4 * 2

    answered = what_if_table(conclude(now, links=Links(rates=[10**9])))
    assert {row.entries[0].text for row in answered.rows} == {*RATIOS}
