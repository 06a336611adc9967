"""What is timed is the first model of its process, as in a user's own training: what an earlier one
leaves makes it faster.

Which arm's comes first is drawn in each launch: Horovod's first arm tended to be the fastest.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.conftest import REPOSITORY
from tests.distributed.plugins.told_builds import FILE
from tests.kit.comparisons import compare

WORKLOAD = f"{REPOSITORY}/tests/distributed/plugins/told_builds.py:ToldBuilds"


def lines_of(told, kind):
    """What each line of a kind says: the process and a value."""
    return [line.split()[1:] for line in told.read_text().splitlines() if line.startswith(kind)]


def steps_before_builds(told):
    """By process: how many steps it had taken at each ``build_model``."""
    found = defaultdict(list)
    for process, steps in lines_of(told, "built"):
        found[process].append(int(steps))
    return list(found.values())


@pytest.mark.costly
def test_under_a_driver(tmp_path):
    told = tmp_path / "builds"
    ran = compare(tmp_path, workload=WORKLOAD, environment={FILE: str(told)}, seed=2, world_size=1)
    records = ran.records.values()
    assert [record.role for record in records] == ["baseline", "control"]
    for record in records:
        assert record.parity.passed and len(record.blocks) == 4
    trial, warmup = 4, 2
    steps = warmup + trial + 4 * (warmup + 3)
    trained = [builds for builds in steps_before_builds(told) if builds[-1] >= steps]
    # the build after all its steps is the gate's
    assert [sum(before < steps for before in builds) for builds in trained] == [1, 1]
    began = [arm for _, arm in lines_of(told, "began")]
    assert began == ["ddp-control", "ddp"], "the baseline is not always the first"
