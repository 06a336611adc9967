"""Plans: what is accepted, and that what is not gets one clear message."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import measurement.plans.plan
from measurement.agent.ringside_agent import imposing
from measurement.conditions.same_environment import plan_digest
from measurement.errors import PlanError
from measurement.plans.plan_file import placed_beside
from runners.launchers.command_lines import read_command
from runners.planning.arms import resolve_arms
from runners.planning.plan_reading import read_plan
from runners.planning.workload import resolve_cases, resolve_workload
from runners.planning.workload_check import require_epochs
from tests.conftest import REPOSITORY, TINY, write_plan
from tests.kit.plans import tiny, written_again
from tests.kit.refusals import refusal


def resolve(**changes):
    plan = tiny(**changes)
    resolve_workload(plan.workload, plan.workload_options)
    return resolve_arms(plan)


def ddp(**changes):
    """Changes of a plan: its only arm is DDP but for these."""
    return {"arms": {"ddp": {"backend": "ddp", **changes}}}


def resolve_training(**changes):
    """All that is refused before anything starts, in the order of ``ComparisonRun``."""
    plan = tiny(**{"measurement": {}, "training": {"epochs": 2}, **changes})
    arms = resolve_arms(plan)
    workload = resolve_workload(plan.workload, plan.workload_options)
    resolve_cases(plan, workload, arms)
    require_epochs(plan, workload)


def test_a_workloads_option_at_the_top_of_a_plan_is_told_its_place(tmp_path):
    path = write_plan(tmp_path, learnign_rate=0.1)
    with pytest.raises(
        PlanError,
        match="unknown option 'learnign_rate'; did you mean 'learning_rate' under 'workload_options'",
    ):
        read_plan(path)


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "plans").glob("*.yaml")), ids=lambda path: path.name
)
def test_shipped_plans_resolve(path, monkeypatch):
    if path.name == "slurm.yaml":
        for name, value in {
            "JOB_ID": "1",
            "JOB_NODELIST": "n[1-2]",
            "TASKS_PER_NODE": "1(x2)",
        }.items():
            monkeypatch.setenv(f"SLURM_{name}", value)
    if path.name == "hugging-face.yaml":
        pytest.importorskip(
            "transformers",
            reason="Hugging Face's transformers is not installed; it is the user's own",
        )
    plan = read_plan(path)
    if plan.are_scripts:
        assert {read_command(str(arm.command)).file for arm in plan.arms.values()} == {
            "train.py"
        }, "a reader's own"
        assert all(imposing.is_known(name) for arm in plan.arms.values() for name in arm.impose)
        return
    if plan.device == "cuda" and not torch.cuda.is_available():
        with pytest.raises(PlanError, match="PyTorch sees none on this machine"):
            resolve_arms(plan)
        pytest.skip("its arms need a GPU")
    assert resolve_arms(plan)
    assert resolve_workload(plan.workload, plan.workload_options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 0}, "world_size = 0: Input should be greater than or equal to 1"),
        ({"baseline": "dpd"}, "unknown baseline arm 'dpd'; did you mean 'ddp'?"),
        ({"workload": "digts"}, "unknown workload 'digts'; did you mean 'digits'?"),
        ({"workload": "no/such/file.py:Mine"}, "does not exist"),
        ({"workload": "json:Nothing"}, "unknown class for workload 'json:Nothing' 'Nothing'"),
        ({"workload": "json:JSONDecoder"}, "does not derive from workloads.base.Workload"),
        ({"launchs": 1}, "unknown option 'launchs'; did you mean 'launches' under 'measurement'?"),
        ({"question": "fsdp2"}, "unknown question 'fsdp2'"),
        (
            ddp(options={"fusion_threshold_mb": 1}),
            "unknown option 'fusion_threshold_mb'",
        ),
        (
            ddp(backend="horovd"),
            "unknown backend 'horovd'; did you mean 'horovod'?",
        ),
        (ddp(backend="single"), "'single' is one process, not 2"),
        (
            ddp(backend="dp"),
            "shares a batch out among the GPUs of one process, and this run is on the CPU",
        ),
        (
            {"speed": {"sync_batchnorm": True}},
            "refuse that ('SyncBatchNorm expected input tensor to be on GPU'); leave it out",
        ),
        (
            {"environment": {"WANDB_API_KEY": "x"}},
            "environment: 'WANDB_API_KEY' looks like a secret",
        ),
        (
            {"forward_environment": ["no such"]},
            "'no such': String should match pattern '^[A-Za-z_]",
        ),
        (
            ddp(python="python3") | {"container": "box python3"},
            "container and an arm's own python exclude each other",
        ),
        (
            {
                "container": "box python3",
                "workload": "",
                "arms": {"ddp": {"command": "torchrun train.py"}},
            },
            "container means nothing for arms by command",
        ),
        (
            ddp(backend="horovod", environment={"HOROVOD_AUTOTUNE": "1"}),
            "environment of arm 'ddp': HOROVOD_AUTOTUNE=1 changes fusion and cycle time while steps are timed",
        ),
        (
            ddp(backend="horovod", options={"backward_passes_per_step": 2}),
            "set micro_steps: 2 in the plan",
        ),
        (
            ddp(options={"comm_hook": "powersgd"}),
            "set bucket_cap_mb: 100",
        ),
        (
            ddp(options={"bucket_cap_mb_list": [1], "bucket_cap_mb": 2}),
            "only one of bucket_cap_mb and bucket_cap_mb_list; leave out",
        ),
        (
            {"arms": {"../x": {"backend": "ddp"}}, "baseline": "../x"},
            "'../x': String should match pattern",
        ),
        ({"two\nlines": 1}, "unknown option 'two lines'"),
        ({"arms": {}}, "arms = {}"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(changes, message):
    assert message in refusal(resolve, **changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\narms: [unclosed\n", "line 3, column 1"),
        ("name: a\nname: b\n", "key 'name' is given twice"),
        ("- 1\n", "holds list, not a mapping"),
        ("", "holds NoneType, not a mapping"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path, text, message):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(PlanError, match=message):
        read_plan(path)


def test_overrides_replace_and_are_checked(tmp_path):
    path = write_plan(tmp_path)
    plan = read_plan(
        path, overrides=["measurement.launches=7", "arms.ddp.environment.X=1", "seed=4"]
    )
    assert (plan.measurement.launches, plan.arms["ddp"].environment, plan.seed) == (
        7,
        {"X": "1"},
        4,
    )
    for wrong, message in (
        ("seed", "not of the form key=value"),
        ("name.x=1", "is a value"),
        ("sed=1", "did you mean 'seed'?"),
    ):
        with pytest.raises(PlanError, match=message):
            read_plan(path, overrides=[wrong])


def test_minutes_stand_in_the_place_of_a_number_and_length_of_launches():
    assert tiny(measurement={}).measurement.minutes == 5
    assert tiny(measurement={"minutes": None}).measurement.launches == 5
    assert tiny(measurement=None, training={"epochs": 2}).measurement.minutes is None
    plan = tiny(measurement={"minutes": 7})
    assert written_again(plan) == plan
    for length in (
        {"launches": 3},
        {"seconds_per_launch": 9},
        {"rounds": 4},
        {"steps_per_launch": 9},
    ):
        assert tiny(measurement=length).measurement.minutes is None


def test_minutes_and_a_length_contradict_each_other_unless_a_setting_replaces_the_other(tmp_path):
    with pytest.raises(PlanError, match="minutes and launches are both given"):
        tiny(measurement={"minutes": 3, "launches": 1})
    path = write_plan(tmp_path)
    plan = read_plan(path, overrides=["measurement.minutes=3"])
    assert (plan.measurement.minutes, plan.measurement.rounds) == (3, None)
    path.write_text(plan.to_yaml())
    assert read_plan(path, overrides=["measurement.launches=3"]).measurement.minutes is None
    with pytest.raises(PlanError, match="minutes and launches are both given"):
        read_plan(path, overrides=["measurement.launches=3", "measurement.minutes=2"])


def test_the_control_is_the_baseline_again():
    plan = tiny(
        measurement={"control": True},
        arms={"ddp": TINY["arms"]["ddp"], "other": {"backend": "ddp"}},
    )
    assert list(plan.compared_arms()) == ["ddp", "ddp-control", "other"]
    assert [plan.role(name) for name in plan.compared_arms()] == [
        "baseline",
        "control",
        "candidate",
    ]
    assert plan.compared_arms()["ddp-control"] == plan.arms["ddp"]


def test_a_field_that_is_added_later_leaves_older_digests_as_they_are():
    class Plan(measurement.plans.plan.Plan):
        later: int = 7

    old = tiny()
    assert plan_digest(Plan.model_validate(old.model_dump())) == plan_digest(old)
    assert plan_digest(Plan.model_validate({**old.model_dump(), "later": 8})) != plan_digest(old)


def test_the_digest_ignores_only_how_long_is_measured():
    digest = plan_digest(tiny(measurement={"control": True, "launches": 1}))
    assert plan_digest(tiny(measurement={"control": True, "launches": 9})) == digest
    assert plan_digest(tiny(measurement={"control": True, "launches": 1, "block_s": 1.0})) != digest
    assert plan_digest(tiny(measurement={"control": True, "launches": 1}, seed=2)) != digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"measurement": {"control": True}},
            "measurement.control means nothing with training, whose blocks are epochs; leave it",
        ),
        (
            {"measurement": {"local_every": 4}},
            "measurement.local_every means nothing with training",
        ),
        ({"measurement": {"minutes": 3}}, "measurement.minutes means nothing with training"),
        (
            {"measurement": {"max_minutes": 9}},
            "measurement.max_minutes means nothing with training",
        ),
        ({"training": {"epochs": 1, "target_acuracy": 0.9}}, "did you mean 'target_accuracy'?"),
        (
            {"workload": "resnet18"},
            "workload 'resnet18' has no epochs, so it cannot be trained to the end",
        ),
        (
            {"workload": "collectives"},
            "workload 'collectives' is a micro-benchmark, not a model; leave training out",
        ),
        (
            {"local_batch_size": 1000},
            "local_batch_size 1000 x 2 ranks is more than the 1437 training samples",
        ),
    ],
)
def test_training_that_cannot_be_is_refused(changes, message):
    assert message in refusal(resolve_training, **changes)


def test_training_has_no_control_and_one_process_has_the_batch_of_all():
    arms = {"ddp": TINY["arms"]["ddp"], "alone": {"backend": "single"}}
    changes = {
        "arms": arms,
        "micro_steps": 3,
        "training": {"epochs": 2},
        "measurement": {"launches": 2},
    }
    plan = tiny(**changes)
    assert (plan.measurement.control, plan.measurement.local_every, list(plan.compared_arms())) == (
        False,
        0,
        ["ddp", "alone"],
    )
    assert written_again(plan) == plan
    alone = resolve_arms(plan)["alone"].plan
    assert (alone.world_size, alone.micro_steps, alone.local_batch_size) == (1, 1, 2 * 3 * 16)
    assert resolve_arms(plan)["ddp"].plan == plan


@pytest.mark.parametrize(
    ("arm", "device", "message"),
    [
        (
            {"backend": "ddp", "transport": "nccl"},
            "auto",
            "transport 'nccl' needs a GPU, and PyTorch sees none on this machine",
        ),
        ({"backend": "naive", "transport": "nccl"}, "cpu", "transport 'nccl' needs a GPU"),
        ({"backend": "horovod", "transport": "nccl"}, "auto", "use 'gloo', and 'cpu' or 'auto'"),
        (
            {"backend": "ddp"},
            "cuda",
            "device 'cuda' needs a GPU, and PyTorch sees none on this machine",
        ),
    ],
)
def test_gpus_that_are_not_there_are_refused_when_the_plan_is_read(
    monkeypatch, arm, device, message
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert message in refusal(resolve, device=device, baseline="a", arms={"a": arm})


def test_files_lie_beside_the_plan_or_in_the_working_directory(tmp_path, monkeypatch):
    plans, here = tmp_path / "plans", tmp_path / "here"
    plans.mkdir()
    here.mkdir()
    for file in (plans / "mine.py", plans / "both.py", here / "both.py", here / "only.py"):
        file.write_text("")
    monkeypatch.chdir(here)
    content = {
        "workload": "mine.py:Net",
        "arms": {
            "a": {"backend": "both.py:B", "launcher": "only.py:L"},
            "b": {"backend": "ddp"},
            "c": {"backend": "mine:B"},
        },
        "points": {"2": {"arms": {"a": {"backend": "mine.py:B"}}}},
        "reports": ["html", "mine.py:JUnit"],
    }
    placed = placed_beside(content, Path("../plans"))
    assert placed["workload"] == f"{plans}/mine.py:Net"
    assert placed["arms"]["a"] == {"backend": f"{plans}/both.py:B", "launcher": "only.py:L"}
    assert placed["arms"]["c"] == {"backend": f"{plans}/mine.py:B"}
    assert placed["points"]["2"]["arms"]["a"] == {"backend": f"{plans}/mine.py:B"}
    assert placed["reports"] == ["html", f"{plans}/mine.py:JUnit"]
    message = refusal(placed_beside, {"workload": "none.py:Net"}, plans)
    assert all(str(folder) in message for folder in (plans, here))
    monkeypatch.chdir(plans)
    assert placed_beside(content, Path()) == content
