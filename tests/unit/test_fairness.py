"""Conditions of arms: what the plan asked for may differ, what it did not may not."""

from __future__ import annotations

import pytest

from measurement.conditions.differences import arm_differences
from measurement.records.record import RankReport
from tests.kit.changed import changed
from tests.kit.results_factory import make_record


def refused(*records):
    """What of their differences nobody asked for."""
    return [row for row in arm_differences(records) if not row.allowed]


def arm(name, role="candidate", environment=None, **changes):
    """A record whose one rank reports this of itself."""
    rank = RankReport(
        **{
            **dict.fromkeys(("rank", "local_rank", "node_rank"), 0),
            **dict.fromkeys(("world_size", "local_world_size", "micro_steps", "threads"), 1),
            "launcher": "torchrun",
            "host": "h",
            "pid": 1,
            "device": "cpu",
            "affinity": [0],
            "seed": 1,
            "local_batch_size": 4,
            **changes,
        }
    )
    return make_record(arm=name, role=role, ranks=[rank], environment=environment or {})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"threads": 2}, "threads"),
        ({"optimizer": {"class": "Adam"}}, None),
        ({"optimizer": {"lr": 0.2}}, "optimizer.lr"),
        ({"fingerprint": {"torch": "2.0"}}, "host.torch"),
    ],
)
def test_differences_that_nobody_asked_for_are_found(changes, field):
    differences = refused(arm("a", role="baseline"), arm("b", **changes))
    assert [row.field for row in differences] == ([field] if field else [])


def test_what_the_plan_asks_for_is_told_from_what_follows_and_what_a_library_brings():
    """Threads that follow from the ranks were said to be asked for, and a transport was not."""
    own = {"transport": "mpi", "bucket_cap_bytes": 1, "cache": 1}
    first = arm("a", role="baseline", backend={"transport": "gloo", "bucket_cap_bytes": 2})
    other = arm("b", backend=own, world_size=2, local_world_size=2, threads=2)
    other = changed(other, options={"bucket_cap_mb": 1}, world_size=2)
    rows = {row.field: (row.is_asked, row.is_default) for row in arm_differences([first, other])}
    assert rows == {
        "world_size": (True, False),
        "threads": (False, False),
        "backend.transport": (True, False),
        "backend.bucket_cap_bytes": (True, False),
        "backend.cache": (False, True),
    }


def test_variables_differ_only_where_asked_or_a_librarys_own():
    first = arm("a", role="baseline")
    other = arm("b")
    other.ranks[0].environment = {"HOROVOD_CYCLE_TIME": "1", "OMP_NUM_THREADS": "4"}
    assert [row.sentence for row in refused(first, other)] == [
        "environment.OMP_NUM_THREADS: not set in a, 4 in b"
    ]
    other.environment = {"OMP_NUM_THREADS": "4"}
    rows = {row.field: (row.allowed, row.is_default) for row in arm_differences([first, other])}
    assert rows == {
        "environment.HOROVOD_CYCLE_TIME": (True, True),
        "environment.OMP_NUM_THREADS": (True, False),
    }


def test_what_a_rank_keeps_is_told_but_is_no_condition():
    """In sequential mode an arm that is done, and has optimizer state, meets one that has not
    stepped yet."""
    done = arm("a", role="control", kept_bytes={"optimizer_state": 8})
    (row,) = arm_differences([done, arm("b", role="baseline")])
    assert (row.field, row.allowed, row.is_note) == ("kept_bytes.optimizer_state", True, True)


def test_a_control_is_nothing_but_its_baseline():
    differences = refused(
        arm("a", role="baseline"), arm("c", role="control", backend={"bucket_cap_mb": 1})
    )
    assert [row.sentence for row in differences] == ["backend.bucket_cap_mb: not set in a, 1 in c"]


def test_one_process_beside_many_has_what_follows_from_that_and_nothing_else():
    def many(name, **changes):
        return changed(arm(name, world_size=2, **changes), world_size=2)

    alone = arm("alone", role="baseline", threads=2, local_batch_size=8)
    assert refused(alone, many("b"), many("c")) == []
    differing = refused(alone, many("b"), many("c", threads=4, seed=2))
    assert {row.field for row in differing} == {"threads", "seed"}


def test_defaults_of_libraries_that_move_the_answer_are_no_notes():
    ours = arm("a", role="baseline", backend={"bucket_cap_bytes": 1, "op": "a"})
    rows = arm_differences([ours, arm("b", backend={"op": "b"})])
    assert [(row.is_note, row.is_default) for row in rows] == [(False, True), (True, True)]


@pytest.mark.parametrize(("buffer_bytes", "severity"), [(64, "training"), (0, "speed")])
def test_broadcast_buffers_change_a_training_where_there_are_buffers(buffer_bytes, severity):
    """They were a matter of speed in workloads, and of training in scripts."""
    model = {"buffer_bytes": buffer_bytes}
    first = arm("a", role="baseline", model=model, backend={"broadcast_buffers": True})
    (row,) = arm_differences([first, arm("b", model=model)])
    assert row.severity == severity
