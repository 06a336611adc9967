"""``ringside compare --available``: arms that the machine cannot run are left out, and a folder
keeps the arms it began with."""

from __future__ import annotations

import pytest

from measurement.conditions.same_environment import plan_digest
from measurement.errors import PlanError
from measurement.records.results import ResultsFolder
from runners.planning import arm_checks
from runners.planning.arm_checks import arms_to_compare, left_out_line
from tests.kit.plans import tiny

LOCAL = {
    "ddp-gloo": {"backend": "ddp", "transport": "gloo"},
    "horovod-gloo": {"backend": "horovod", "transport": "gloo"},
    "horovod-mpi": {"backend": "horovod", "transport": "mpi", "launcher": "mpirun"},
}


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """What there is: everything but GPUs. A test takes away."""
    there = {"torchrun", "horovodrun", "mpirun", "horovod", "mpi4py"}
    monkeypatch.setattr("shutil.which", lambda name, path=None: name if name in there else None)
    monkeypatch.setattr(arm_checks, "find_spec", lambda name: name if name in there else None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return there


def planned(arms=LOCAL, **changes):
    return tiny(arms=arms, **{"name": "local", **changes})


def chosen(plan, tmp_path, *, only_available=True):
    return arms_to_compare(plan, ResultsFolder(tmp_path / "out"), only_available=only_available)


def test_where_all_can_run_nothing_changes(tmp_path):
    plan = planned()
    assert chosen(plan, tmp_path) is plan


NO_HOROVOD = (
    "left out: horovod-gloo, horovod-mpi: Horovod is not installed; 'ringside doctor' says why"
)
NO_MPIRUN = "left out: horovod-mpi: 'mpirun' is not installed; 'ringside doctor' says why"


@pytest.mark.parametrize(
    ("missing", "left", "line"),
    [
        ({"horovod"}, ["ddp-gloo", "ddp-mpi"], NO_HOROVOD),
        ({"horovod", "mpirun"}, ["ddp-gloo", "fsdp2-gloo"], NO_HOROVOD),
        ({"mpirun"}, ["ddp-gloo", "horovod-gloo"], NO_MPIRUN),
    ],
)
def test_what_is_missing_is_left_out_and_the_next_best_question_asked(
    tmp_path, installed, missing, left, line
):
    installed -= missing
    plan = chosen(planned(question="horovod"), tmp_path)
    assert list(plan.arms) == left
    assert left_out_line(plan.left_out) == line
    assert plan.question == ("horovod" if "horovod-gloo" in left else None)


def test_a_plan_of_ones_own_is_not_made_another_question(tmp_path, installed):
    installed -= {"horovod"}
    with pytest.raises(
        PlanError,
        match="fewer than two arms can run here; left out: horovod-gloo, ",
    ):
        chosen(planned(name="own"), tmp_path)


def test_a_baseline_that_cannot_run_is_replaced_and_a_mistake_stays_one(tmp_path):
    nccl = {"ddp-nccl": {"backend": "ddp", "transport": "nccl"}, **LOCAL}
    plan = chosen(planned(nccl), tmp_path)
    assert plan.baseline == "ddp-gloo" and plan.left_out == {"ddp-nccl": "no GPU"}
    with pytest.raises(PlanError, match="unknown backend 'dpp'"):
        chosen(planned({**LOCAL, "wrong": {"backend": "dpp"}}), tmp_path)


@pytest.mark.parametrize("only_available", [True, False])
def test_a_folder_goes_on_with_the_arms_that_it_began_with(tmp_path, installed, only_available):
    plan = planned()
    installed -= {"horovod"}
    begun = chosen(plan, tmp_path)
    (tmp_path / "out").mkdir()
    ResultsFolder(tmp_path / "out").write_plan(begun)
    installed |= {"horovod"}
    again = chosen(plan, tmp_path, only_available=only_available)
    assert plan_digest(again) == plan_digest(begun)
    changed = planned({**LOCAL, "ddp-gloo": {"backend": "naive"}})
    assert plan_digest(chosen(changed, tmp_path)) != plan_digest(begun), "which is refused"
