"""What shards must come to the same as DDP, with less on each rank."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.distributed.ranks import sharded
from tests.kit.commands import forked, seen_by_ranks
from tests.kit.dataset_files import write_data

pytestmark = [pytest.mark.costly("sharded"), pytest.mark.usefixtures("no_processes_left")]
SHARDED = [name for name in sharded.OPTIONS if name != "ddp"]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What rank 0 saw, by number of ranks and backend; and of ZeRO what each of three ranks saw."""
    text = write_data("language_model", tmp_path_factory.mktemp("data"))["data_dir"]
    found = {}
    for ranks in (2, 3):
        seen = seen_by_ranks(
            partial(forked, ranks, sharded), tmp_path_factory.mktemp("sharded"), text
        )
        found[ranks] = {name: first for name, (first, *_) in seen.items()}
    return found | {"zeros_ranks": seen["zero"]}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", SHARDED)
def test_gradients_and_parameters_are_ddps(seen, ranks, name):
    for what in ("gradients", "parameters"):
        ours, ddps = np.array(seen[ranks][name][what]), np.array(seen[ranks]["ddp"][what])
        assert np.linalg.norm(ours - ddps) < 1e-4 * np.linalg.norm(ddps), what


@pytest.mark.parametrize("name", ["fsdp2", "fsdp2-whole", "fsdp2-blocks"])
def test_what_a_rank_keeps_falls_with_the_number_of_ranks(seen, name):
    whole = 4 * seen[2][name]["elements"]
    for ranks in (2, 3):
        kept = seen[ranks][name]["kept_bytes"]
        assert kept["parameters"] == pytest.approx(whole / ranks, rel=0.1)
        assert kept["optimizer_state"] == pytest.approx(2 * whole / ranks, rel=0.1), (
            "Adam keeps two for each"
        )


@pytest.mark.parametrize("ranks", [2, 3])
def test_zero_spreads_the_optimizer_state_alone(seen, ranks):
    kept, whole = seen[ranks]["zero"]["kept_bytes"], 4 * seen[2]["zero"]["elements"]
    assert kept["parameters"] == whole
    assert 0 < kept["optimizer_state"] < 2 * whole * 0.75, (
        "whole parameters are shared out, so not evenly"
    )


def test_a_step_of_zero_without_exchange_broadcasts_no_parameters(seen):
    """Its broadcast was called overhead of the library, since steps without exchange had it,
    too."""
    sums = {
        kind: {rank[kind] for rank in seen["zeros_ranks"]} for kind in ("after_local", "after_both")
    }
    assert len(sums["after_local"]) == 3, "each rank has stepped its own share"
    assert len(sums["after_both"]) == 1


def test_the_sharding_units_are_those_asked_for(seen):
    units = {name: seen[2][name]["described"].get("sharding_units") for name in SHARDED}
    assert units["fsdp2"] == units["fsdp2-blocks"] == 4, "three blocks and the whole"
    assert units["fsdp2-whole"] == 1
    assert seen[2]["fsdp2"]["ahead"] == [0, 0, 0, 0]
    assert seen[2]["fsdp2-ahead"]["ahead"] == [2, 2, 1, 0]
