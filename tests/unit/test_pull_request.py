"""The comment of a pull request: short, found again by its marker, with a link; and regressions as
failed tests."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from reports import conclude, make_report
from reports.parts_schema import Against, Change, Estimate
from tests.kit.changed import changed
from tests.kit.results_factory import make_plan, write_results

pytestmark = pytest.mark.slow  # results of whole comparisons are composed

CI = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID", "CI_JOB_URL")


def with_regression(comparison):
    """The comparison after a change that cost one arm a tenth of its speed."""

    def change(arm, factor, verdict, baseline=None):
        return Change(
            arm=arm,
            baseline=baseline,
            before=100,
            after=100 * factor,
            change=Estimate(value=factor, ci_low=factor - 0.01, ci_high=factor + 0.01),
            launches_before=3,
            launches_after=3,
            verdict=verdict,
            is_beyond=verdict == "regressed",
        )

    against = Against(
        comparison_id="before",
        folder="results/before",
        created_at="2026-01-01T12:00:00+00:00",
        baseline="ddp-gloo",
        allow_slower=0.05,
        confidence=0.95,
        verdict="regressed",
        changes=[
            change("ddp-gloo", 1.002, "no regression"),
            change("horovod-gloo", 0.9, "regressed"),
            change("horovod-gloo", 0.97, "undecided", baseline="ddp-gloo"),
        ],
        headline="Two dates, not two arms: horovod-gloo is 10% slower than on 1 January",
        remedy="Measure both in turn: --commit-a",
    )
    return changed(comparison, against=against)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return conclude(
        write_results(tmp_path_factory.mktemp("results"), plan=make_plan(launches=2, rounds=4))
    )


@pytest.fixture
def text(monkeypatch):
    """Renders outside of CI."""
    for name in CI:
        monkeypatch.delenv(name, raising=False)
    return lambda comparison: make_report("pull-request").render(comparison).decode()


def test_the_comment_of_many_arms_held_against_an_earlier_result_is_short(comparison, text):
    names = [f"horovod-{number}" for number in range(12)]
    arm, result = comparison.arm("horovod-gloo"), comparison.result("horovod-gloo")
    many = changed(
        comparison,
        arms=[*comparison.arms, *(changed(arm, name=name) for name in names)],
        results=[result, *(changed(result, candidate=name) for name in names)],
        question=["horovod-gloo", *names],
    )
    lines = text(with_regression(many)).splitlines()
    assert len(lines) <= 21
    assert lines[1] == "### Two dates, not two arms: horovod-gloo is 10% slower than on 1 January"
    assert any("| regressed: -10%" in line for line in lines)


def test_the_link_is_the_plans_or_the_jobs(comparison, text, monkeypatch):
    monkeypatch.setenv("CI_JOB_URL", "https://gitlab.example/jobs/7")
    assert "(<https://gitlab.example/jobs/7/artifacts/browse>)" in text(comparison)
    for name, value in zip(CI[:3], ("https://github.com", "team/model", "42"), strict=True):
        monkeypatch.setenv(name, value)
    assert "(<https://github.com/team/model/actions/runs/42>)" in text(comparison)
    linked = changed(comparison, link="https://pages.example/r/")
    assert "(<https://pages.example/r/>)" in text(linked)


def test_junit_has_a_failure_for_what_regressed_beyond_what_is_allowed(comparison):
    _, suite = ElementTree.fromstring(make_report("junit").render(with_regression(comparison)))
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    failure = suite.find("testcase[@name='horovod-gloo throughput']/failure")
    assert failure.get("message").startswith("horovod-gloo lost 10.0% since 2026-01-01T12:00:00")
    assert failure.get("message").endswith("; 5.0% is allowed")


def test_changes_at_several_points_are_told_apart(comparison):
    against = with_regression(comparison).against
    changes = [changed(change, point=point) for point in ("n2", "n4") for change in against.changes]
    shown = changed(comparison, against=changed(against, changes=changes))
    gauges = make_report("openmetrics").render(shown).decode().splitlines()
    names = [line.partition("} ")[0] for line in gauges if line.startswith("ringside_change_ratio")]
    suite = ElementTree.fromstring(make_report("junit").render(shown)).findall("testsuite")[-1]
    assert len(set(names)) == len(names) == len(changes)
    assert len({case.get("name") for case in suite.iter("testcase")}) == len(changes)
