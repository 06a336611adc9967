"""Real scripts that write one training in many ways: what is said of each beside the plain one is
true, or is not said."""

from __future__ import annotations

import contextlib
import functools
import sys

import pytest

from measurement.records.block import PHASES
from reports.scripts.configuration import script_differences
from reports.scripts.equality import judge_equality
from tests.conftest import needs_horovod, no_process_stays
from tests.kit.script_factory import reported, script_plan
from tests.kit.scripts import ScriptDriver, two_ranks

pytestmark = pytest.mark.costly

COMMANDS = {
    "alone": [sys.executable, "ways.py"],
    "horovod": ["horovodrun", "--gloo", "-np", "2", "-H", "localhost:2", "python", "ways.py"],
}


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """What the ranks of a way report of their first steps, and of a block of four; each is started
    once."""

    @functools.cache
    def take(way, library="alone"):
        folder = tmp_path_factory.mktemp(way)
        words = [way] if library == "alone" else [way, library]
        is_ddp = library == "ddp"
        command = two_ranks("ways.py", *words) if is_ddp else [*COMMANDS[library], *words]
        with (
            no_process_stays(),
            contextlib.closing(ScriptDriver(folder, ranks=1 if library == "alone" else 2)) as arm,
        ):
            arm.start(*command)
            started, block = arm.receive(), arm.block(4)
            arm.finish()
        return [reply.script for reply in started], [reply.steps for reply in block]

    return take


def beside(old, new):
    """What is said of two scripts: the differences by field, and whether they train alike."""
    records = reported(old[0], new[0])
    return {one.field: one for one in script_differences(records)}, judge_equality(
        script_plan(), records
    )


@pytest.mark.parametrize(
    ("ways", "fields"),
    [
        (("plain", "looks_first"), set()),
        (("plain", "in_the_loop"), set()),
        (("adamw", "scaler_off"), {"optimizer.0.0.fused"}),
        (("plain", "module"), {"model.class"}),
        (("plain", "renamed"), {"model.class"}),
    ],
    ids="-".join,
)
def test_the_same_training_is_found_the_same_however_it_is_written(taken, ways, fields):
    differences, equality = beside(*map(taken, ways))
    assert differences.keys() == fields
    assert equality.sentence.startswith("new trains like old: equal start, and equal")
    assert equality.batches["new"] == "new reads the same batches as old"


@pytest.mark.parametrize("way", ["passes", "all_first"])
def test_a_step_in_parts_counts_all_its_batches_and_says_nothing_of_other_ones(taken, way):
    differences, equality = beside(taken("plain"), taken(way))
    assert (
        [one.samples for one in taken(way)[0][0].steps]
        == taken(way)[1][0].samples[:1] * 5
        == [16] * 5
    )
    assert {one.severity for one in differences.values()} == {"training"}
    assert "new" not in equality.batches and equality.unequal == []


def test_updates_that_round_away_and_a_warm_up_accuse_nobody(taken):
    assert "optimizer.left_out" not in beside(taken("small_rate"), taken("rounds_away"))[0]
    warm_up = beside(taken("plain"), taken("warm_up"))[0]
    said = "the learning rate of the first 5 steps: 0.0005 to 0.0025 in new (LambdaLR, stepped 4 times) and 0.05 in old (no schedule)"
    assert warm_up["schedule.lr"].sentence == said


@pytest.mark.parametrize(
    ("way", "library"),
    [
        ("averages", "ddp"),
        ("asks", "ddp"),
        ("meets", "ddp"),
        *(
            pytest.param(way, "horovod", marks=needs_horovod)
            for way in ("averages", "meets", "late", "late_clips")
        ),
    ],
)
def test_what_a_rank_waits_for_another_is_exchange_wherever_it_waits(taken, way, library):
    """Rank 1 rests in each step before it comes to the exchange."""
    first, late = (
        {name: sum(phase) for name, phase in zip(PHASES, own.phases_s.T, strict=True)}
        for own in taken(way, library)[1]
    )
    assert max(first, key=first.get) == "exchange", first
    assert max(late, key=late.get) == "forward", late
    for own in taken(way, library)[1]:
        assert own.phases_s.min() >= 0
        assert own.core_use.wall_s / 2 < own.phases_s.sum() <= own.core_use.wall_s, (
            "they add up to the steps"
        )
