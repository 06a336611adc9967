"""Arms with a Python, a commit, a workload or options of their own: what is resolved, refused,
asked for, and unlike work."""

from __future__ import annotations

import os
import sys
from unittest.mock import Mock

import pytest

from measurement.conditions.differences import arm_differences
from measurement.conditions.same_environment import plan_digest
from measurement.errors import PlanError
from measurement.plans.plan_file import check_plan
from measurement.plans.sections import Measurement
from measurement.records.record import ParityResult
from reports.wording.first_screen import first_screen
from runners.driver import gates
from runners.driver.gates import run_gates
from runners.planning.arms import resolve_arms
from runners.protocol import GateReply
from runners.scripts.script_setup import resolve_scripts
from runners.session.arm_run import ArmRun, Exchange
from tests.conftest import TINY
from tests.kit.changed import changed
from tests.kit.commands import git
from tests.kit.parity_reports import SHAPES, reports
from tests.kit.plans import tiny
from tests.kit.results_factory import concluded, make_plan, make_record
from tests.unit.test_fairness import arm

WORKLOAD = """
from torch import nn, optim
from workloads.base import Workload

class Net(Workload):
    def build_model(self): return nn.Linear({size}, 1)
    def build_optimizer(self, model): return optim.SGD(model.parameters())
    def batches(self, *, rank, world_size, device): return []
    def compute_loss(self, model, batch): return model(batch)
    def count_samples(self, batch): return 1
"""


def ddp(**changes):
    return {"backend": "ddp", **changes}


def test_an_arm_takes_a_workload_and_options_over_the_plans_which_needs_none_where_all_do():
    digits = ddp(workload="digits")
    small = ddp(workload="synthetic", workload_options={"image_size": 8})
    plan = tiny(arms={"a": digits, "b": small}, workload=None)
    arms = resolve_arms(plan)
    assert (plan.workload, arms["a"].plan.workload) == ("digits", "digits")
    assert arms["b"].plan.workload == "synthetic"
    assert arms["b"].plan.workload_options == {"image_size": 8}
    with pytest.raises(PlanError, match="workload is missing"):
        tiny(arms={"a": digits, "c": ddp()}, workload=None)


def test_a_floor_is_of_equal_work_in_one_batch():
    measurement = {**TINY["measurement"], "floor": True}
    works = {}, {"python": sys.executable}, {"local_batch_size": 64}
    plans = [tiny(arms={"a": ddp(), "b": ddp(**own)}, measurement=measurement) for own in works]
    assert [plan.has_floor for plan in plans] == [True, False, False]


def test_allow_is_for_such_arms_and_changes_no_digest():
    arms = {"a": ddp(), "b": ddp(workload="synthetic")}
    assert plan_digest(tiny(arms=arms)) == plan_digest(tiny(arms=arms, allow=["all"]))
    with pytest.raises(PlanError, match="allow is for arms by command, or with a workload"):
        tiny(arms={"a": ddp(), "b": ddp()}, allow=["all"])


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        (
            {"command": "python x.py", "local_batch_size": 8},
            "an arm by command brings its own work; leave local_batch_size out",
        ),
        (
            {"command": "python x.py", "launcher": "mpirun"},
            "launcher means nothing for arms by command; leave it out",
        ),
        (
            {"backend": "ddp", "samples_per_step": 2},
            "samples_per_step means nothing for arms of a backend; leave it out",
        ),
    ],
)
def test_what_means_nothing_for_an_arm_is_refused_and_was_ignored(arm, message):
    with pytest.raises(PlanError, match=message):
        tiny(arms={"a": arm})


def test_the_arms_python_comes_first_on_path_and_runs_its_ranks(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    arm = resolve_arms(tiny(arms={"a": ddp(), "b": ddp(python=str(python))}))["b"]
    assert arm.place.interpreter == str(python), "a link is kept: an environment is known by it"
    assert arm.environment["PATH"].startswith(f"{python.parent}:")
    assert arm.environment["PYTHON_EXEC"] == str(python)


@pytest.mark.process
def test_a_commit_is_resolved_in_a_worktree_of_its_own(repository, monkeypatch):
    monkeypatch.chdir(repository)
    for size in (1, 2):
        (repository / "own.py").write_text(WORKLOAD.format(size=size))
        git(repository, "add", "own.py")
        git(repository, "commit", "-qm", "own")
    arms = {"a": ddp(commit="HEAD~1"), "c": ddp()}
    resolved = resolve_arms(tiny(arms=arms, workload="own.py:Net"))
    folder = resolved["a"].place.folder
    assert (folder / "own.py").read_text() == WORKLOAD.format(size=1)
    assert resolved["a"].recorded["commit"] == git(repository, "rev-parse", "HEAD~1").strip()
    assert resolved["a-control"].place.folder == folder, "checked out once"
    with pytest.raises(PlanError, match="workload 'digits' is not in a git repository"):
        resolve_arms(tiny(arms=arms))
    monkeypatch.chdir(repository.parent)
    by_path = resolve_arms(tiny(arms=arms, workload=f"{repository}/own.py:Net"))["a"]
    assert (by_path.plan.workload, by_path.place.folder) == ("own.py:Net", folder), (
        "by its whole path it would be another"
    )


@pytest.mark.parametrize(
    ("asked", "changes", "unasked", "unlike"),
    [
        ({"python": "/x"}, {"fingerprint": {"torch": "2.0", "python": "3.12"}}, [], []),
        ({"python": "/x"}, {"fingerprint": {"cpu": "other"}}, ["host.cpu"], []),
        ({"workload": "other"}, {"model": {"parameters": 3}}, [], ["model.parameters"]),
        ({"sample_unit": "tokens", "workload": "other"}, {}, [], ["sample_unit"]),
    ],
)
def test_what_follows_from_an_arms_own_is_asked_for(asked, changes, unasked, unlike):
    same = {"model": {"parameters": 2}, "fingerprint": {"torch": "2.1"}}
    first = arm("a", role="baseline", **same)
    other = changed(arm("b", **{**same, **changes}), **asked)
    rows = [row for row in arm_differences([first, other]) if not row.allowed]
    assert [row.field for row in rows if not row.changes_work] == unasked
    assert [row.field for row in rows if row.changes_work] == unlike


def gated(name, reports, *, role="candidate", **own):
    """An arm whose ranks answer with these reports."""
    replies = [GateReply.model_construct(report=report) for report in reports]
    session = Mock(exit_codes=(), is_ended=False)
    session.name = name
    session.exchange.return_value = Exchange(replies=replies, took_s=0, hosts={})
    record = changed(make_record(arm=name, role=role, world_size=2), **own)
    return ArmRun(session=session, job=None, record=record, say=lambda text: None)


OWN = {"commit": "c" * 40}


@pytest.mark.parametrize(
    ("changes", "own", "status", "unlike"),
    [
        ({}, OWN, "ok", []),
        ({"samples": "others"}, OWN, "ok", ["samples"]),
        ({"sizes": dict.fromkeys(SHAPES, 1)}, OWN, "ok", ["model.tensors"]),
        ({"samples": "others"}, {}, "wrong", []),
    ],
)
def test_other_samples_and_states_of_an_arms_own_work_are_told_and_do_not_fail_it(
    changes, own, status, unlike
):
    """Of the plan's own work, other samples are an error."""
    first = gated("old", reports(2), role="baseline")
    other = gated("new", [changed(reports(2)[0], **changes), reports(2)[1]], **own)
    arms = [first, other]
    run_gates(arms, compared=arms, measurement=Measurement(), after_blocks=True)
    assert (first.record.status, other.record.status) == ("ok", status)
    assert sorted(other.record.unlike_work) == unlike


def test_conditions_that_follow_fail_no_arm():
    arms = [gated("old", [], role="baseline"), gated("new", [], **OWN), gated("plain", [])]
    for one, size in zip(arms, (2, 3, 3), strict=True):
        one.ready = [changed(rank, model={"parameters": size}) for rank in arm("x").ranks]
        one.record.world_size = 1
    gates.compare_conditions(arms)
    _, other, plain = (one.record for one in arms)
    assert (other.status, plain.status) == ("ok", "failed")
    assert "model.parameters: 2 in old, 3 in plain" in plain.error.message


def slower_by_own_work(root, ratios, change, *, allow=(), **work):
    """A comparison with an arm 'new' that has this of its own, as its changed records tell."""
    plan = make_plan(ratios)
    arms = {**plan.arms, "new": changed(plan.arms["new"], **work)}
    plan = changed(plan, arms=arms, allow=list(allow))
    return concluded(root, ratios=ratios, launch_noise=0.01, plan=plan, change=change)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("allow", "verdict", "withheld"),
    [(["model"], "undecided", "work"), (["model", "samples"], "slower", None)],
)
def test_unlike_work_gets_no_verdict_unless_it_is_allowed(tmp_path, allow, verdict, withheld):
    def change(record):
        record.parity = ParityResult(passed=True, gradient_error=2e-7)
        if record.arm == "new":
            record.unlike_work = {"samples": "consumed other samples than ddp-gloo"}
            record.commit = "c" * 40

    ratios = {"new": 0.7, "other": 0.7}
    comparison = slower_by_own_work(tmp_path, ratios, change, allow=allow, commit="v2")
    result = comparison.result("new")
    assert (result.verdict, result.withheld_by) == (verdict, withheld)
    assert comparison.result("other").verdict == "slower"


def command_place(**changes):
    """Of an arm with a command of this commit."""
    typed = {"command": f"{sys.executable} train.py"}
    arms = {"a": {**typed, "commit": "v1", **changes}, "b": typed}
    plan = {"name": "n", "world_size": 1, "baseline": "b", "arms": arms}
    return resolve_scripts(check_plan(plan, source="test"))["a"].place


@pytest.mark.process
def test_a_command_of_a_commit_starts_in_its_worktree(repository, monkeypatch):
    monkeypatch.chdir(repository)
    place = command_place()
    assert (place.folder / "train.py").is_file() and place.folder != repository
    checkout = repository.with_name(f"{repository.name}-{place.commit[:12]}")
    assert f" && cd {checkout} && " in place.shell_line("x", environment={}, path="")


@pytest.mark.process
@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("none.py", "arm 'a': commit 'v1' has no 'none.py'"),
        ("{repository}/train.py", "train.py' is a path outside the commit; name it relative to"),
    ],
)
def test_what_a_commit_does_not_have_is_refused(repository, monkeypatch, file, message):
    monkeypatch.chdir(repository)
    with pytest.raises(PlanError, match=message):
        command_place(command=f"{sys.executable} {file.format(repository=repository)}")


def test_ranks_of_a_back_end_start_in_their_arms_directory(tmp_path):
    (tmp_path / "own.py").write_text(WORKLOAD.format(size=3))
    arms = {"a": ddp(directory=str(tmp_path)), "b": ddp()}
    place = resolve_arms(tiny(arms=arms, workload="own.py:Net"))["a"].place
    assert place.folder == tmp_path
    assert place.workload_here("own.py:Net") == f"{tmp_path}/own.py:Net"
    assert place.shell_line("x", environment={}, path=os.environ["PATH"]) == f"cd {tmp_path} && x"


def test_an_arm_is_timed_in_its_own_batch_and_takes_the_gate_in_one_that_all_have():
    arms = {"a": ddp(), "b": ddp(local_batch_size=64)}
    resolved = resolve_arms(tiny(arms=arms, local_batch_size=8))
    batches = {
        name: (arm.plan.local_batch_size, arm.gate_batch_size) for name, arm in resolved.items()
    }
    assert batches == {"a": (8, 4), "a-control": (8, 4), "b": (64, 4)}
    assert resolved["b"].recorded["local_batch_size"] == 64
    assert resolve_arms(tiny())["ddp"].gate_batch_size is None


def test_own_batches_are_refused_where_all_arms_share_theirs():
    arms = {"a": ddp(), "b": ddp(local_batch_size=64)}
    message = "training means nothing where arms have batches of their own; leave it out"
    with pytest.raises(PlanError, match=message):
        tiny(arms=arms, measurement={}, training={"epochs": 1})


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        ({}, True),
        ({"local_batch_size": 64}, False),
        ({"local_batch_size": 64, "role": "baseline"}, True),  # of one arm at two times
    ],
)
def test_another_batch_is_refused_unless_the_plan_asks_for_it(asked, refused):
    other = changed(arm("b", local_batch_size=64), **asked)
    (row,) = arm_differences([arm("a", role="baseline"), other])
    assert (row.changes_work, row.withholds) == (True, refused)


@pytest.mark.slow
def test_a_verdict_between_unlike_batches_says_so(tmp_path):
    def change(record):
        record.parity = ParityResult(passed=True, gradient_error=2e-7)
        if record.arm == "new":
            record.local_batch_size = 64
            for rank in record.ranks:
                rank.local_batch_size = 64

    comparison = slower_by_own_work(tmp_path, {"new": 0.7}, change, local_batch_size=64)
    result, screen = comparison.result("new"), first_screen(comparison)
    assert (result.verdict, result.withheld_by, result.term_differences_s) == ("slower", None, {})
    assert screen.headline.startswith("At each arm's own batch: new is 3")
    assert "batches of 32 and 64 per rank" in screen.compared
    assert (screen.marks[2].word, screen.marks[2].ok) == ("other batches", False)
