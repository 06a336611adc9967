"""Plans: what is accepted, and that what is not gets one clear message; arms that are made of
options, and scripts that are given for plans."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from measurement.agent.ringside_agent.settings import is_imposable
from measurement.conditions.same_environment import plan_digest
from measurement.errors import PlanError
from measurement.plans.plan import Plan
from measurement.plans.plan_file import placed_beside
from runners.launchers.command_lines import read_command
from runners.planning.arms import resolve_arms
from runners.planning.plan_reading import MAX_ARMS, read_plan
from runners.planning.workload import resolve_cases, resolve_workload
from runners.planning.workload_check import require_epochs
from tests.conftest import REPOSITORY, write_plan
from tests.kit.plans import tiny, written_again
from tests.kit.refusals import refusal
from workloads import workload_class


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
    message = refusal(read_plan, write_plan(tmp_path, learnign_rate=0.1))
    assert "did you mean 'learning_rate' under 'workload_options'" in message


@pytest.fixture
def slurm_job(monkeypatch):
    """The variables of a job on two nodes."""
    job = {"JOB_ID": "1", "JOB_NODELIST": "n[1-2]", "TASKS_PER_NODE": "1(x2)"}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", value)


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "plans").glob("*.yaml")), ids=lambda path: path.name
)
def test_shipped_plans_resolve(path, request):
    if path.name == "slurm.yaml":
        request.getfixturevalue("slurm_job")
    if path.name == "hugging-face.yaml":
        pytest.importorskip("transformers", reason="transformers is the user's own")
    plan = read_plan(path)
    if plan.are_scripts:
        for arm in plan.arms.values():
            assert read_command(str(arm.command)).file == "train.py", "a reader's own"
            assert all(map(is_imposable, arm.impose))
        return
    if plan.device == "cuda" and not torch.cuda.is_available():
        pytest.skip("its arms need a GPU")
    assert resolve_arms(plan)
    assert resolve_workload(plan.workload, plan.workload_options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 0}, "world_size = 0: Input should be greater than or equal to 1"),
        ({"workload": "digts"}, "unknown workload 'digts'; did you mean 'digits'?"),
        ({"launchs": 1}, "unknown option 'launchs'; did you mean 'launches' under 'measurement'?"),
        ({"question": "fsdp2"}, "unknown question 'fsdp2'"),
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
            {"arms": {"../x": {"backend": "ddp"}}, "baseline": "../x"},
            "'../x': String should match pattern",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(changes, message):
    assert message in refusal(resolve, **changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nname: b\n", "key 'name' is given twice"),
        ("", "holds NoneType, not a mapping"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path, text, message):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    assert message in refusal(read_plan, path)


def test_overrides_replace_a_value(tmp_path):
    overrides = ["measurement.launches=7", "arms.ddp.environment.X=1"]
    plan = read_plan(write_plan(tmp_path), overrides=overrides)
    assert plan.measurement.launches == 7
    assert plan.arms["ddp"].environment == {"X": "1"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("seed", "not of the form key=value"),
        ("name.x=1", "is a value"),
        ("sed=1", "did you mean 'seed'?"),
    ],
)
def test_an_override_that_replaces_nothing_is_refused(tmp_path, wrong, message):
    assert message in refusal(read_plan, write_plan(tmp_path), overrides=[wrong])


@pytest.mark.parametrize(
    ("changes", "minutes"),
    [
        ({"measurement": {}}, 5),
        ({"measurement": None, "training": {"epochs": 2}}, None),
        ({"measurement": {"minutes": 7}}, 7),
        ({"measurement": {"launches": 3}}, None),
        ({"measurement": {"steps_per_launch": 9}}, None),
    ],
)
def test_minutes_stand_in_the_place_of_a_number_and_length_of_launches(changes, minutes):
    plan = tiny(**changes)
    assert plan.measurement.minutes == minutes
    assert written_again(plan) == plan


def test_minutes_and_a_length_contradict_each_other_unless_a_setting_replaces_the_other(tmp_path):
    both = "minutes and launches are both given"
    assert both in refusal(tiny, measurement={"minutes": 3, "launches": 1})
    path = write_plan(tmp_path)
    plan = read_plan(path, overrides=["measurement.minutes=3"])
    assert (plan.measurement.minutes, plan.measurement.rounds) == (3, None)
    path.write_text(plan.to_yaml())
    assert read_plan(path, overrides=["measurement.launches=3"]).measurement.minutes is None


def test_a_field_that_is_added_later_leaves_older_digests_as_they_are():
    class Later(Plan):
        later: int = 7

    old = tiny()
    assert plan_digest(Later(**old.model_dump())) == plan_digest(old)
    assert plan_digest(Later(**old.model_dump(), later=8)) != plan_digest(old)


def test_the_digest_ignores_only_how_long_is_measured():
    def digest(*, seed=0, **measurement):
        return plan_digest(tiny(seed=seed, measurement=measurement))

    assert digest(launches=1) == digest(launches=9)
    assert (
        len({digest(launches=1), digest(launches=1, block_s=1.0), digest(launches=1, seed=2)}) == 3
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"measurement": {"control": True}},
            "measurement.control means nothing with training, whose blocks are epochs; leave it",
        ),
        ({"measurement": {"minutes": 3}}, "measurement.minutes means nothing with training"),
        ({"workload": "collectives"}, "is a micro-benchmark, not a model; leave training out"),
    ],
)
def test_training_that_cannot_be_is_refused(changes, message):
    assert message in refusal(resolve_training, **changes)


def test_training_has_no_control_and_one_process_has_the_batch_of_all():
    plan = tiny(
        arms={"ddp": {"backend": "ddp"}, "alone": {"backend": "single"}},
        micro_steps=3,
        training={"epochs": 2},
        measurement={"launches": 2},
    )
    assert list(plan.compared_arms()) == ["ddp", "alone"]
    assert written_again(plan) == plan
    arms = resolve_arms(plan)
    alone = arms["alone"].plan
    assert (alone.world_size, alone.micro_steps, alone.local_batch_size) == (1, 1, 2 * 3 * 16)
    assert arms["ddp"].plan == plan


def test_gpus_that_are_not_there_are_refused_when_the_plan_is_read(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "transport 'nccl' needs a GPU, and" in refusal(resolve, **ddp(transport="nccl"))
    assert "device 'cuda' needs a GPU, and PyTorch sees none" in refusal(resolve, device="cuda")


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A folder of plans, in which ``mine.py`` and ``both.py`` lie; the working directory has
    ``both.py`` and ``only.py``."""
    plans, here = tmp_path / "plans", tmp_path / "here"
    for file in (plans / "mine.py", plans / "both.py", here / "both.py", here / "only.py"):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    monkeypatch.chdir(here)
    return plans


def test_files_lie_beside_the_plan_or_in_the_working_directory(beside):
    content = {
        "workload": "mine.py:Net",
        "arms": {
            "a": {"backend": "both.py:B", "launcher": "only.py:L"},
            "b": {"backend": "mine:B"},
        },
        "reports": ["html", "mine.py:JUnit"],
    }
    assert placed_beside(content, Path("../plans")) == {
        "workload": f"{beside}/mine.py:Net",
        "arms": {
            "a": {"backend": f"{beside}/both.py:B", "launcher": "only.py:L"},
            "b": {"backend": f"{beside}/mine.py:B"},
        },
        "reports": ["html", f"{beside}/mine.py:JUnit"],
    }


def test_a_file_that_lies_nowhere_is_refused_with_where_it_was_looked_for(beside):
    message = refusal(placed_beside, {"workload": "none.py:Net"}, beside)
    assert str(beside) in message and str(Path.cwd()) in message


def hvd(**options):
    return {"backend": "horovod", "transport": "gloo", "options": options}


def test_options_that_are_lists_make_arms_which_the_plan_may_name(tmp_path):
    several = hvd(fusion_threshold_mb=[8, 0.5], compression=["none", "fp16"], num_groups=2)
    named = {"baseline": "hvd-fusion_threshold_mb-8-compression-none", "question": "ddp"}
    plan = read_plan(
        write_plan(tmp_path, arms={"ddp": {"backend": "ddp"}, "hvd": several}, **named)
    )
    assert plan.baseline == named["baseline"]
    assert [(name, *arm.options.values()) for name, arm in plan.arms.items()] == [
        ("ddp",),
        ("hvd-fusion_threshold_mb-8-compression-none", 8, "none", 2),
        ("hvd-fusion_threshold_mb-8-compression-fp16", 8, "fp16", 2),
        ("hvd-fusion_threshold_mb-0.5-compression-none", 0.5, "none", 2),
        ("hvd-fusion_threshold_mb-0.5-compression-fp16", 0.5, "fp16", 2),
    ]


def test_an_option_that_is_itself_a_list_stays_one(tmp_path):
    options = {"module_classes": ["Linear", "Conv2d"]}
    arms = {"ddp": {"backend": "ddp"}, "fsdp": {"backend": "fsdp2", "options": options}}
    assert read_plan(write_plan(tmp_path, arms=arms)).arms["fsdp"].options == options


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2, 1], "two arms would be called 'hvd-cycle_time_ms-1'"),
        (list(range(MAX_ARMS)), f"arms of 2, and at most {MAX_ARMS} are allowed"),
    ],
)
def test_lists_that_make_no_arms_are_refused(tmp_path, values, message):
    arms = {"ddp": {"backend": "ddp"}, "hvd": hvd(cycle_time_ms=values)}
    with pytest.raises(PlanError, match=message):
        read_plan(write_plan(tmp_path, arms=arms))


SCRIPT = """
import argparse
argparse.ArgumentParser().parse_args()
raise SystemExit("it was run")
"""


def test_a_script_in_the_place_of_a_workload_or_a_plan_is_told_of_ab(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    remedy = "to compare two scripts as they are: ringside ab 'COMMAND' 'COMMAND'"
    with pytest.raises(PlanError, match=re.escape(remedy)):  # as ``check`` does
        workload_class(str(script))
    with pytest.raises(PlanError, match=f"is a script, not a plan; {re.escape(remedy)}"):
        read_plan(script)
