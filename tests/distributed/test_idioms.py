"""Ordinary idioms of training scripts pass the gate under every backend, do the same work in each,
and are timed."""

from __future__ import annotations

from functools import partial

import pytest

from runners.driver.gates import compare_state, drift_between, judge_parity
from runners.protocol import DriftReport, ParityReport
from tests.conftest import HAS_HOROVOD, needs_horovod
from tests.distributed.ranks import idioms
from tests.kit.commands import forked, seen_by_ranks
from tests.kit.comparisons import compare

pytestmark = pytest.mark.costly("idioms")

EVERYDAY = """
    Augmented AugmentedByWorkers OwnGenerators Distilled ChangesItsBatch KeepsHidden
    KeepsHiddenInModel Masked Odd Half Complex ClipsInStep ClipsInHook Normalised OpaqueBatches
"""
EVERYDAY_NAMES = [f"everyday:{name}" for name in EVERYDAY.split()]
USUAL = """
    Plain Scheduled TwoOptimizers Recommender Unused Tied Checkpointed Finite Uneven Compiled
"""
NAMES = [*USUAL.split(), *EVERYDAY_NAMES]
SKIPPING, DRIFTING = "LayerDrop", "Plateau"
WITH_HOROVOD = ["horovod"] * HAS_HOROVOD
BACKENDS = ["ddp", "naive", "fsdp2", *WITH_HOROVOD]
LEFT_OUT = {
    "fsdp2": {"Recommender", "Unused", "Compiled", "everyday:Complex"},
    "naive": {"Compiled", *EVERYDAY_NAMES},
    "horovod": {"everyday:Half", "everyday:Complex", "everyday:Odd"},
}
"""FSDP2 refuses sparse gradients, Horovod dtypes; the others are not their usual use, and compiling
takes long. The naive backend leaves a model as it is: what happens to everyday ones under DDP,
FSDP2 and Horovod cannot happen there."""


def names_of(backend):
    return [name for name in (*NAMES, SKIPPING) if name not in LEFT_OUT.get(backend, ())]


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """What each rank found, by backend and workload."""
    asked = [f"{backend}={','.join([*names_of(backend), DRIFTING])}" for backend in BACKENDS]
    seen = seen_by_ranks(partial(forked, 2, idioms), tmp_path_factory.mktemp("taken"), *asked)
    return {
        one.partition("=")[0]: {name: [rank[name] for rank in ranks] for name in ranks[0]}
        for one, ranks in seen.items()
    }


def gates(ranks):
    return [ParityReport.model_validate(rank["gate"]) for rank in ranks]


EACH = [
    pytest.param(backend, name, marks=needs_horovod if backend == "horovod" else ())
    for backend in ("ddp", "naive", "fsdp2", "horovod")
    for name in names_of(backend)
]


@pytest.mark.parametrize(("backend", "name"), EACH)
def test_it_computes_what_it_should_and_the_same_as_ddp(taken, backend, name):
    reports = gates(taken[backend][name])
    verdict = judge_parity(reports)
    assert verdict.passed, verdict.failures
    first = gates(taken["ddp"][name])
    assert compare_state(first[0], reports[0], first_arm="ddp").failures == []


def test_a_layer_that_some_steps_leave_out_is_a_note_where_libraries_differ(taken):
    """Steps without exchange came before some of them, which DDP would not survive by itself."""
    first = gates(taken["ddp"][SKIPPING])[0]
    assert first.in_some_steps == ["layer.bias", "layer.weight"]
    for backend in ["naive", *WITH_HOROVOD]:
        other = gates(taken[backend][SKIPPING])[0]
        assert (first.steps_zeros, other.steps_zeros) == (False, True)
        found = compare_state(first, other, first_arm="ddp")
        assert (found.failures, found.distance) == ([], None)
        assert found.notes[0].startswith(
            "state not compared with ddp's: 'layer.bias', 'layer.weight' take part in some steps only"
        )


@pytest.mark.parametrize("when", ["drift", "drift_with_local"])
def test_ranks_that_follow_their_own_loss_have_drifted_apart_and_no_others(taken, when):
    for backend in BACKENDS:
        for name, ranks in taken[backend].items():
            told = drift_between([DriftReport.model_validate(rank[when]) for rank in ranks])
            assert (told is None) == (name != DRIFTING), (backend, name, told)
            assert told is None or told.startswith("ranks have drifted apart: lr 0.0"), told


@pytest.mark.costly
@pytest.mark.parametrize(("name", "training"), [(DRIFTING, None), ("PlateauDigits", {"epochs": 1})])
def test_a_comparison_calls_them_wrong(tmp_path, name, training):
    measurement = {"local_every": 0, "control": False} if training else {}
    workload = f"{idioms.OUTSIDE}/idioms.py:{name}"
    ran = compare(tmp_path, workload=workload, training=training, measurement=measurement, code=1)
    assert set(ran.statuses.values()) == {"wrong"}
    assert ran.records["ddp"].error.message.startswith("ranks have drifted apart: lr 0.0")


def test_a_schedule_by_step_reaches_the_optimizer_that_steps(taken):
    for backend in BACKENDS:
        # the others have taken two steps without exchange besides
        steps = 10 if backend != "fsdp2" else 8
        for rank in taken[backend]["Scheduled"]:
            assert rank["rates"] == [pytest.approx(0.05 * 0.5**steps)], backend


def test_batches_that_end_are_begun_anew_and_counted(taken):
    """Five a rank: each block takes eight, two in an untimed step and two in each of three timed
    ones."""
    for backend in BACKENDS:
        assert taken[backend]["Finite"][0]["restarts"] == [1, 2], backend
