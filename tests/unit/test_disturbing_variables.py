"""Variables left in the shell: which are refused, which are told, to whom they matter, and that
they are named where ranks die."""

from __future__ import annotations

import sys

import pytest

from measurement.environment import (
    describe_variables,
    disturbances,
    disturbing_variables,
    recorded_environment,
)
from measurement.errors import PlanError
from reports import conclude
from runners.planning.arm_checks import require_undisturbed
from runners.planning.arms import resolve_arms
from tests.kit.changed import changed
from tests.kit.commands import run
from tests.kit.plans import tiny
from tests.kit.results_factory import make_plan, write_results

ARMS = {
    "ddp": {"backend": "ddp", "transport": "gloo", "launcher": "torchrun"},
    "hvd": {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"},
}


def arms(**changes):
    usual = {"arms": ARMS, "device": "cpu", "measurement": {"control": False}}
    return resolve_arms(tiny(**usual | changes)).values()


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch):
    """This process may have some of its own."""
    for variable in disturbing_variables():
        monkeypatch.delenv(variable.name, raising=False)


@pytest.mark.parametrize(
    ("name", "value", "backend"),
    [
        ("HOROVOD_AUTOTUNE", "1", "horovod"),
        ("HOROVOD_TIMELINE", "/tmp/timeline.json", "horovod"),
        *(("TORCH_DISTRIBUTED_DEBUG", "detail", name) for name in ("ddp", "fsdp2", "naive")),
    ],
)
def test_what_would_not_measure_truly_is_refused_for_every_backend_that_reads_it(
    monkeypatch, name, value, backend
):
    monkeypatch.setenv(name, value)
    with pytest.raises(PlanError, match=f"arm 'a': {name}={value} .*(unset it|leave it out)"):
        require_undisturbed(arms(arms={"a": {"backend": backend}}, measurement={}))
    other = {"backend": "naive" if backend == "horovod" else "horovod"}
    assert require_undisturbed(arms(arms={"a": other}, measurement={})) == []


def test_others_are_told_with_the_arms_that_they_reach(monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "+dynamo")
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "debug")
    logs = "has lines logged while steps are timed"
    assert sorted(require_undisturbed(arms())) == [
        f"HOROVOD_LOG_LEVEL=debug {logs}; it reaches hvd alone, which makes the comparison uneven",
        f"TORCH_LOGS=+dynamo {logs}",
    ]


@pytest.mark.slow
def test_the_headline_and_the_warnings_name_what_ranks_had(tmp_path):
    """Also of scripts, whose commands may set what is refused elsewhere; not what the plan sets,
    nor what reaches nobody."""
    shell = {"HOROVOD_TIMELINE": "/tmp/t.json", "LD_PRELOAD": "mine.so", "NCCL_DEBUG": "INFO"}

    def had(record):
        record.ranks = [changed(rank, environment=shell) for rank in record.ranks]

    plan = changed(make_plan(["horovod-gloo"], launches=2), environment={"LD_PRELOAD": "mine.so"})
    comparison = conclude(write_results(tmp_path, plan=plan, change=had))
    assert comparison.inherited_variables == ["HOROVOD_TIMELINE"]
    assert comparison.headline.startswith("With HOROVOD_TIMELINE set: ")
    assert "it reaches horovod-gloo alone" in comparison.warnings[0]


def test_every_variable_of_the_table_is_recorded():
    names = [variable.name.rstrip("*") for variable in disturbing_variables()]
    assert [name for name in names if not recorded_environment({name: "1"})] == []


def test_what_the_plan_chose_is_not_told(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "left.so")
    assert (
        require_undisturbed(arms(environment={"LD_PRELOAD": "mine.so", "MALLOC_ARENA_MAX": "1"}))
        == []
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "OFF"),
        ("HOROVOD_TIMELINE", ""),
        ("HOROVOD_TIMELINE", "DYNAMIC"),
        ("HOROVOD_AUTOTUNE", "0"),
        ("PYTHONMALLOC", "pymalloc"),
    ],
)
def test_values_that_change_nothing_are_passed_over(name, value):
    assert disturbances({name: value}, ["horovod", "torch.distributed", "cuda"]) == []


def test_a_value_of_0_counts_where_it_does_something():
    assert disturbances({"MALLOC_MMAP_MAX_": "0"}, []) != []


def test_a_long_value_is_cut_and_a_line_end_is_none():
    (line,) = describe_variables({"ddp": disturbances({"LD_PRELOAD": "a\n" * 5000}, [])})
    assert "\n" not in line and len(line) < 1000


@pytest.mark.slow
@pytest.mark.process
def test_a_run_without_a_driver_refuses_and_tells_too(tmp_path):
    disturbing = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "PYTHONMALLOC": "malloc"}
    command = (sys.executable, "-m", "runners.ddp", "--blocks", "1", "-o", tmp_path / "out")
    done = run(*command, **disturbing)
    assert done.returncode == 2, done.stderr
    first, second = done.stderr.splitlines()
    assert first == "warning: PYTHONMALLOC=malloc replaces Python's allocator"
    assert second.startswith("ringside: TORCH_DISTRIBUTED_DEBUG=DETAIL compares every collective")
