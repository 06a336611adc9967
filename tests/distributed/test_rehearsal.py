"""The rehearsal: every arm is tried before anything is timed, and what cannot work is told before a
launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from measurement.plans.plan_file import check_plan
from runners.driver import compared_arms
from runners.driver.preparation import Passed, keep, passed_path, recall
from runners.planning.arm_specs import TrialFacts
from tests.conftest import TINY, ended_well, ringside_here, write_plan
from tests.kit.comparisons import compare, compare_plan

pytestmark = pytest.mark.usefixtures("no_processes_left")
WRONG = Path(__file__).parent / "plugins" / "wrong.py"
SAYS = "rehearsal: starting"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Nothing was rehearsed before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def rehearsed(folder, arms, **changes):
    measurement = {"rehearsal": "once", "rounds": 2, "local_every": 2}
    return compare(folder, world_size=1, arms=arms, measurement=measurement, **changes)


@pytest.mark.costly
def test_a_rehearsal_that_was_passed_is_remembered_and_what_is_measured_already_is_not_checked_again(
    tmp_path, monkeypatch
):
    first = rehearsed(tmp_path, ["ddp", "naive"]).done
    plan, out = tmp_path / "plan.yaml", tmp_path / "out"
    longer = ("--set", "measurement.launches=2")
    assert SAYS in first.stderr and "launch 1 of 1" in first.stderr
    assert not (out / "rehearsal").exists()
    more = compare_plan(plan, *longer).done
    assert "launch 2 of 2: " in more.stderr and "launch 1 of" not in more.stderr
    assert SAYS not in more.stderr, "how long is measured changes nothing of it"
    (out / "report.html").unlink()

    # nothing is measured, so nothing is checked
    monkeypatch.delattr(compared_arms, "inspect")
    again = compare_plan(plan, *longer)
    assert again.done.stderr.splitlines() == [
        "every launch is measured already (for more: --minutes, or --set measurement.launches=N);"
        " writing reports"
    ]
    assert again.done.stdout == more.stdout and (out / "report.html").is_file()
    assert again.folder.read_manifest().looks == [1, 2]


def test_another_plan_or_another_environment_is_rehearsed_again():
    plan = check_plan(TINY, source="test")
    conditions = {"torch": "2.15.0"}
    passed = Passed(
        notes=["a note"], learned={"ddp": TrialFacts(ranks=2, first_steps_s=3.5, ports=(29500,))}
    )
    keep(passed_path(plan, conditions=conditions), passed)
    measurement = plan.measurement.model_copy(update={"launches": 9})
    longer = plan.model_copy(update={"name": "longer", "measurement": measurement})
    other_work = plan.model_copy(update={"micro_steps": 2})

    def remembered(plan, conditions):
        return recall(passed_path(plan, conditions=conditions))

    assert remembered(plan, conditions) == remembered(longer, conditions) == passed
    assert remembered(other_work, conditions) is None
    assert remembered(plan, {"torch": "2.16.0"}) is None


@pytest.mark.costly
def test_an_arm_that_fails_there_is_a_row_and_the_others_are_measured(tmp_path):
    arms = {"ddp": "ddp", "naive": "naive", "raises": f"{WRONG}:RaisesAtSetup"}
    ran = rehearsed(tmp_path, arms, code=1)
    assert "rehearsal: raises failed: rank" in ran.done.stderr
    assert ran.statuses == {"ddp": "ok", "naive": "ok", "raises": "failed"}
    assert "not on this machine" in ran.records["raises"].error.message
    assert not list((tmp_path / "out").glob("launch-*/raises/rank-*.log")), (
        "it is not started again"
    )
    assert list((tmp_path / "out" / "rehearsal").glob("launch-000/raises/rank-*.log"))


def test_nothing_is_measured_where_every_arm_fails(tmp_path):
    arms = dict.fromkeys(["one", "two"], f"{WRONG}:RaisesAtSetup")
    said = rehearsed(tmp_path, arms, code=2).done.stderr
    assert "nothing was measured" in said
    assert "arm 'one': rank" in said and "arm 'two': rank" in said
    assert not list((tmp_path / "out").glob("launch-*"))
    assert not list((tmp_path / "cache").rglob("rehearsals/*")), "a failure is not remembered"


@pytest.mark.costly
def test_a_plan_is_checked_by_its_rehearsal_here(tmp_path):
    arms = {"ddp": "ddp", "raises": f"{WRONG}:RaisesAtSetup"}
    plan = write_plan(tmp_path, arms=arms, world_size=4, hosts="elsewhere.invalid:4")
    done = ringside_here("check", plan)
    assert done.returncode == 1, done.stderr
    assert "ddp: ok" in done.stdout
    assert "raises: failed: rank" in done.stdout


OUTSIDE = Path(__file__).parents[1] / "outside"
BESIDE = """
from gpt_model_beside import make
from plain_beside import Plain


class Mine(Plain):
    def build_model(self):
        return make()
"""


def test_a_workload_alone_is_tried_on_two_ranks_with_what_lies_beside_its_file(tmp_path):
    (tmp_path / "gpt_model_beside.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Linear(10, 1)\n"
    )
    (tmp_path / "plain_beside.py").write_text((OUTSIDE / "idioms.py").read_text())
    (tmp_path / "mine_beside.py").write_text(BESIDE)
    done = ended_well(ringside_here("check", f"{tmp_path / 'mine_beside.py'}:Mine"))
    assert done.stdout.splitlines()[-2:] == ["  arm        ddp: ok", "no problems found"]


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "messages"),
    [
        (
            "idioms.py:RaisesInLoss",
            ["compute_loss raised KeyError: 'mae', at ", "idioms.py:", 'weights["mae"]'],
        ),
        ("idioms.py:SameShard", ["ringside: ranks 0 and 1 consumed the same samples"]),
        (
            "everyday.py:KeepsHiddenInClass",
            ["ringside: the workload's loss is not repeatable: rank "],
        ),
    ],
)
def test_what_cannot_work_is_told_with_the_users_line(name, messages):
    done = ringside_here("check", OUTSIDE / name)
    assert (done.returncode, done.stdout) == (2, "")
    assert all(message in done.stderr for message in messages), done.stderr
    assert "Traceback" not in done.stderr
