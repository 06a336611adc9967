"""Arms that are made of options, arms with work of their own, and scripts that are given for
plans."""

from __future__ import annotations

import re

import pytest

from measurement.errors import PlanError
from runners.planning.plan_reading import MAX_ARMS, read_plan
from tests.conftest import write_plan
from workloads import workload_class

DDP = {"backend": "ddp"}


def hvd(**options):
    return {"backend": "horovod", "transport": "gloo", "options": options}


def test_options_that_are_lists_make_arms_which_the_plan_may_name(tmp_path):
    several = hvd(fusion_threshold_mb=[8, 0.5], compression=["none", "fp16"], num_groups=2)
    named = {"baseline": "hvd-fusion_threshold_mb-8-compression-none", "question": "ddp"}
    plan = read_plan(write_plan(tmp_path, arms={"ddp": DDP, "hvd": several}, **named))
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
    arms = {"ddp": DDP, "fsdp": {"backend": "fsdp2", "options": options}}
    assert read_plan(write_plan(tmp_path, arms=arms)).arms["fsdp"].options == options


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2, 1], "two arms would be called 'hvd-cycle_time_ms-1'"),
        (list(range(MAX_ARMS)), f"arms of 2, and at most {MAX_ARMS} are allowed"),
    ],
)
def test_lists_that_make_no_arms_are_refused(tmp_path, values, message):
    arms = {"ddp": DDP, "hvd": hvd(cycle_time_ms=values)}
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
