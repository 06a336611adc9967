"""The fairness manifest: what the plan asked for may differ, what it did not may not."""

from __future__ import annotations

import pytest

from measurement.conditions.fairness import fairness_table, unasked_differences
from measurement.records.record import RankReport
from tests.kit.changed import changed
from tests.kit.results_factory import make_record


def arm(name, role="candidate", environment=None, **changes):
    fields = {"rank": 0, "local_rank": 0, "node_rank": 0, "world_size": 1, "local_world_size": 1, "launcher": "torchrun"}
    more = {"host": "h", "pid": 1, "device": "cpu", "threads": 1, "affinity": [0], "seed": 1, "local_batch_size": 4}
    rank = RankReport(**{**fields, **more, "micro_steps": 1, **changes})
    return make_record(arm=name, role=role, ranks=[rank], environment=environment or {})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"threads": 2}, "threads"),
        ({"affinity": [0, 1]}, "affinity"),
        ({"local_batch_size": 8}, "local_batch_size"),
        ({"optimizer": {"class": "Adam"}}, None),
        ({"optimizer": {"lr": 0.2}}, "optimizer.lr"),
        ({"fingerprint": {"torch": "2.0"}}, "host.torch"),
    ],
)
def test_unasked_differences(changes, field):
    found = unasked_differences(arm("a", role="baseline"), arm("b", **changes))
    assert [line.partition(" is ")[0] for line in found] == ([field] if field else [])


def test_variables_differ_only_where_asked_or_a_librarys_own():
    first = arm("a", role="baseline")
    other = make_record(arm="b", role="candidate", ranks=arm("b").ranks)
    other.ranks[0].environment = {"HOROVOD_CYCLE_TIME": "1", "OMP_NUM_THREADS": "4"}
    assert unasked_differences(first, other) == ["environment.OMP_NUM_THREADS is '4', a has None"]
    other.environment = {"OMP_NUM_THREADS": "4"}
    assert unasked_differences(first, other) == []
    assert {row["field"]: row["asked"] for row in fairness_table([first, other])} == {
        "environment.HOROVOD_CYCLE_TIME": True,
        "environment.OMP_NUM_THREADS": True,
    }


def test_what_a_rank_keeps_is_told_but_is_no_condition():
    """In sequential mode an arm that is done, and has optimizer state, meets one that has not stepped yet."""
    done, new = arm("a", role="control", kept_bytes={"optimizer_state": 8}), arm("b", role="baseline", kept_bytes={})
    assert unasked_differences(new, done) == []
    assert fairness_table([done, new]) == [{"field": "kept_bytes.optimizer_state", "values": {"a": 8, "b": None}, "asked": True}]


def test_a_control_is_nothing_but_its_baseline():
    found = unasked_differences(arm("a", role="baseline"), arm("c", role="control", backend={"bucket_cap_mb": 1}))
    assert found == ["backend.bucket_cap_mb is 1, a has None"]


def test_one_process_beside_many_has_what_follows_from_that_and_nothing_else():
    def many(name, role="candidate", **changes):
        made = arm(name, role, world_size=2, **changes)
        return changed(made, world_size=2)

    alone = changed(arm("alone", role="baseline", threads=2, local_batch_size=8), world_size=1)
    assert unasked_differences(alone, many("b")) == []
    assert unasked_differences(alone, many("b", seed=2)) == ["seed is 2, alone has 1"]
    assert all(row["asked"] for row in fairness_table([alone, many("b"), many("c")]))
    uneven = {row["field"]: row["asked"] for row in fairness_table([alone, many("b"), many("c", threads=4)])}
    assert (uneven["threads"], uneven["local_batch_size"]) == (False, True)
