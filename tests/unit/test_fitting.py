"""``fit: memory``: where the search ends, what counts as a lack of memory, and what plans are
refused."""

from __future__ import annotations

import pytest

from measurement.errors import PlanError
from measurement.records.record import Failure
from runners.driver.compared_arms import ComparedArms
from runners.driver.preparation import MAX_DOUBLINGS, RESOLUTION, is_out_of_memory, largest
from tests.conftest import TINY
from tests.kit.plans import tiny
from tests.kit.results_factory import make_record

FITTED = {"ddp": {"backend": "ddp", "fit": "memory"}}
MEASUREMENT = {name: value for name, value in TINY["measurement"].items() if name != "mode"}


@pytest.mark.parametrize("start", [1, 3, 32])
@pytest.mark.parametrize("limit", [32, 47, 64, 127])
def test_the_search_comes_close_to_the_limit_in_few_tries(start, limit):
    tried = []
    batch = largest(lambda size: tried.append(size) or size <= limit, start=start)
    assert batch <= limit <= batch + max(1, batch // RESOLUTION)
    assert batch in tried and len(tried) == len({*tried}) <= 12


def test_a_search_ends_where_it_cannot_begin_and_where_it_would_go_on_for_long():
    assert largest(lambda size: size < 8, start=8) is None
    assert largest(lambda _: True, start=8) == 8 << MAX_DOUBLINGS


@pytest.mark.parametrize(
    ("text", "is_full"),
    [
        ("rank 0: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("rank 1: RuntimeError: DefaultCPUAllocator: can't allocate memory", True),
        ("rank 0: MemoryError: ", True),
        ("terminate called after throwing an instance of 'std::bad_alloc'", True),
        ("rank 1 died without reporting an error; the launcher ended with code 137", True),
        ("process rank 1 with PID 0 on node vm exited on signal 9 (Killed).", True),
        ("[1]<stderr>:Killed", True),
        ("[0]<stderr>:is killed by signal: Terminated", False),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0", True),
        ("rank 1 died without reporting an error; the launcher ended with code 1", False),
    ],
)
def test_a_lack_of_memory_is_known_by_what_ranks_and_launchers_say(text, is_full):
    said, logged = Failure(message=text), Failure(message="died", log_tail={"launcher.log": text})
    for error in (said, logged):
        assert is_out_of_memory(make_record(status="failed", error=error)) == is_full
    assert not is_out_of_memory(make_record(status="timeout", error=said))


@pytest.mark.parametrize(
    ("arm", "measurement", "message"),
    [
        (
            {"backend": "ddp", "local_batch_size": 8},
            {},
            "fit finds the local_batch_size of an arm, and a number is given too; leave one of them out",
        ),
        ({"backend": "ddp"}, {"mode": "interleaved"}, "mode means nothing with fit: memory"),
        ({"command": "python x.py"}, {}, "fit means nothing for arms by command"),
    ],
)
def test_what_cannot_be_fitted_is_refused(arm, measurement, message):
    with pytest.raises(PlanError, match=message):
        tiny(arms={"a": {**arm, "fit": "memory"}}, measurement={**MEASUREMENT, **measurement})


def test_arms_that_fill_the_memory_are_up_one_at_a_time_and_are_timed_in_what_was_found():
    both = {**FITTED, "naive": {"backend": "naive", "fit": "memory"}}
    plan = tiny(arms=both, measurement=MEASUREMENT)
    assert (plan.measurement.mode, plan.batches, plan.has_floor) == ("sequential", "fit", False)
    compared = ComparedArms(plan, say=print)
    compared.fit({"ddp": 40, "naive": 16})
    sizes = {
        name: (arm.plan.local_batch_size, arm.gate_batch_size)
        for name, arm in compared.arms.items()
    }
    assert sizes == {"ddp": (40, 4), "ddp-control": (40, 4), "naive": (16, 4)}
