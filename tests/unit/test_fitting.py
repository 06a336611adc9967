"""``fit: memory``: where the search ends, what counts as a lack of memory, and what plans are
refused."""

from __future__ import annotations

import pytest

from measurement.errors import PlanError
from measurement.records.record import Failure
from runners.compare_command import print_commands
from runners.driver.batch_search import MAX_DOUBLINGS, RESOLUTION, is_out_of_memory, largest
from runners.driver.compared_arms import ComparedArms
from tests.conftest import TINY
from tests.kit.plans import tiny
from tests.kit.results_factory import make_record

FITTED = {"ddp": {"backend": "ddp", "fit": "memory"}}
MEASUREMENT = {name: value for name, value in TINY["measurement"].items() if name != "mode"}


@pytest.mark.parametrize("start", [1, 3, 32])
@pytest.mark.parametrize("limit", [32, 33, 47, 63, 64, 95, 100, 127])
def test_the_search_comes_close_to_the_limit_in_few_tries(start, limit):
    tried = []

    def fits(size):
        tried.append(size)
        return size <= limit

    batch = largest(fits, start=start)
    assert batch <= limit <= batch + max(1, batch // RESOLUTION)
    assert batch in tried and len(tried) == len({*tried}) <= 12


def test_a_search_ends_where_it_cannot_begin_and_where_it_would_go_on_for_long():
    assert largest(lambda size: size < 8, start=8) is None
    assert largest(lambda _: True, start=8) == 8 << MAX_DOUBLINGS


@pytest.mark.parametrize(
    ("text", "is_full"),
    [
        ("rank 0: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", True),
        (
            "rank 1: RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory",
            True,
        ),
        ("rank 0: MemoryError: ", True),
        ("rank 0: RuntimeError: could not create a memory object", True),
        ("terminate called after throwing an instance of 'std::bad_alloc'", True),
        ("Signal 9 (SIGKILL) received by PID 17", True),
        ("rank 1 died without reporting an error; the launcher ended with code 137", True),
        (
            "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).",
            True,
        ),
        ("[1]<stderr>:Killed", True),
        ("[0]<stderr>:is killed by signal: Terminated", False),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0", True),
        ("rank 1 died without reporting an error; the launcher ended with code 1", False),
        (
            "rank 0: PlanError: local_batch_size 1024 x 2 ranks is more than the 1437 training samples",
            False,
        ),
        ("rank 0: RuntimeError: shape '[3]' is invalid for input of size 4", False),
    ],
)
def test_a_lack_of_memory_is_known_by_what_ranks_and_launchers_say(text, is_full):
    assert is_out_of_memory(make_record(status="failed", error=Failure(message=text))) == is_full
    assert (
        is_out_of_memory(
            make_record(
                status="failed", error=Failure(message="died", log_tail={"launcher.log": text})
            )
        )
        == is_full
    )
    assert not is_out_of_memory(make_record(status="timeout", error=Failure(message=text)))


@pytest.mark.parametrize(
    ("arm", "changes", "message"),
    [
        (
            {"local_batch_size": 8},
            {},
            "fit finds the local_batch_size of an arm, and a number is given too; leave one of them out",
        ),
        ({"fit": "card"}, {}, "memory"),
        (
            {},
            {"measurement": {**MEASUREMENT, "mode": "interleaved"}},
            "measurement.mode means nothing with fit: memory, which leaves",
        ),
        (
            {},
            {"measurement": {}, "training": {"epochs": 1}},
            "training means nothing where arms have batches of their own",
        ),
        (
            {},
            {"points": {"two": {"world_size": 2}}},
            "points means nothing where arms have batches of their own",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(arm, changes, message):
    with pytest.raises(PlanError, match=message):
        tiny(**{"arms": {"ddp": {**FITTED["ddp"], **arm}}, "measurement": MEASUREMENT, **changes})


def test_a_dry_run_says_that_batches_are_found_before_timing(capsys):
    print_commands(tiny(arms={**FITTED, "naive": {"backend": "naive"}}, measurement=MEASUREMENT))
    text = capsys.readouterr().out
    assert "ddp, with the largest batch that fits in memory:" in text and "naive:" in text


def test_a_command_is_not_fitted():
    with pytest.raises(PlanError, match="fit means nothing for arms by command"):
        tiny(arms={"a": {"command": "python x.py", "fit": "memory"}})


def test_arms_that_fill_the_memory_are_up_one_at_a_time_and_are_timed_in_what_was_found():
    plan = tiny(
        arms={**FITTED, "naive": {"backend": "naive", "fit": "memory"}}, measurement=MEASUREMENT
    )
    assert (plan.measurement.mode, plan.batches, plan.has_floor) == ("sequential", "fit", False)
    assert (
        tiny(arms={**FITTED, "naive": {"backend": "naive"}}, measurement=MEASUREMENT).batches
        == "own"
    )
    compared = ComparedArms(plan, say=print)
    compared.fit({"ddp": 40, "naive": 16})
    sizes = {
        name: (arm.plan.local_batch_size, arm.gate_batch_size)
        for name, arm in compared.arms.items()
    }
    assert sizes == {"ddp": (40, 4), "ddp-control": (40, 4), "naive": (16, 4)}
