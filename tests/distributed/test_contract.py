"""What every backend must keep, on two real ranks (or one): a life from setup to teardown, held to
a float64 reference."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

import backends
from backends import backend_class
from backends.single import DataParallel
from measurement.agent.ringside_agent.place import World
from measurement.errors import PlanError
from tests.conftest import HAS_HOROVOD, REPOSITORY, needs_horovod
from tests.distributed.ranks import contract
from tests.kit.commands import seen_by_ranks, under_mpirun

ENGINE = f"{REPOSITORY / 'tests' / 'outside' / 'engine.py'}:EngineBackend"
LAUNCHES = [
    ["ddp=gloo", "naive=gloo", "fsdp2=gloo", "replicate=gloo", f"{ENGINE}=gloo", "ddp=mpi"],
    ["replicate=mpi"],
]
"""What shares its ranks. MPI comes last: with its group it is finalized, and cannot begin again."""
HOROVOD = [["horovod=gloo", "naive=mpi"], ["horovod=mpi", "fsdp2=mpi"]]
ALONE = "single="
EVERY = [
    ALONE,
    *(one for launch in LAUNCHES for one in launch),
    *(pytest.param(one, marks=needs_horovod) for launch in HOROVOD for one in launch),
]
EXACT = {"rtol": 1e-5, "atol": 1e-6}
"""Float32 beside float64."""


@pytest.fixture(scope="module")
def lives(tmp_path_factory):
    """What each rank saw, by backend and transport."""
    found = {ALONE: [contract.life(ALONE, World())]}
    for launch in LAUNCHES + HOROVOD * HAS_HOROVOD:
        found |= seen_by_ranks(
            partial(under_mpirun, contract), tmp_path_factory.mktemp("launch"), *launch
        )
    return found


def text_of(one):
    """``BACKEND=TRANSPORT`` of one of ``EVERY``."""
    return one if isinstance(one, str) else one.values[0]


def gradients_at(parameters, rank):
    """In float64, of one rank's batch."""
    model = contract.make_model(0).double()
    torch.nn.utils.vector_to_parameters(
        torch.tensor(parameters, dtype=torch.float64), model.parameters()
    )
    contract.compute_loss(model, rank).backward()
    return np.array(contract.gradients(model))


def assert_step(found, begun, wanted):
    """Of a rank: what it had before, the gradients it must have used, and what it must have made of
    them."""
    assert np.allclose(found["gradients"], wanted, **EXACT)
    assert np.allclose(
        found["parameters"], np.array(begun) - contract.LEARNING_RATE * wanted, **EXACT
    )


def test_every_backend_that_can_run_here_is_tested():
    """``dp`` is refused on CPUs: see below."""
    tested = set(map(text_of, EVERY))
    for name in set(backends.REGISTRY.table) - {"dp"}:
        transports = set(backend_class(name).transports)
        assert {f"{name}={transport}" for transport in (transports - {"nccl"} or {""})} <= tested


@pytest.mark.parametrize("one", EVERY)
def test_ranks_are_counted_and_all_begin_with_rank_zeros_parameters(lives, one):
    ranks = lives[one]
    assert [rank["counted"] for rank in ranks] == [
        [number, len(ranks)] for number in range(len(ranks))
    ]
    assert all(rank["started"] == contract.parameters(contract.make_model(0)) for rank in ranks)


@pytest.mark.parametrize("one", EVERY)
def test_a_step_is_that_of_the_mean_gradient(lives, one):
    ranks = lives[one]
    for rank in ranks:
        mean = np.mean(
            [gradients_at(rank["started"], number) for number in range(len(ranks))], axis=0
        )
        assert_step(rank["synced"], rank["started"], mean)


REFUSED = {
    "horovod": {"bfloat16", "complex64"},
    "fsdp2": {"channels_last", "transposed"},
    "replicate": {"channels_last", "transposed"},
}
"""Models that a backend says it cannot train; every other one it trains like all backends."""


@pytest.mark.parametrize("one", EVERY)
@pytest.mark.parametrize("kind", contract.ODD)
def test_a_model_is_trained_alike_or_refused_beforehand(lives, one, kind):
    tolerance = 2e-2 if kind == "bfloat16" else 1e-4
    for rank in lives[one]:
        found = rank["odd"][kind]
        if kind in REFUSED.get(one.partition("=")[0], ()):
            assert isinstance(found, str), found
        else:
            assert found["started"] == 0
            assert max(found["gradients"], found["step"]) < tolerance, found


def has_local_steps(one):
    return backend_class(text_of(one).rpartition("=")[0])().has_local_steps


@pytest.mark.parametrize("one", [one for one in EVERY if has_local_steps(one)])
def test_a_local_step_exchanges_nothing_and_the_next_one_does_again(lives, one):
    ranks = lives[one]
    for number, rank in enumerate(ranks):
        assert_step(rank["local"], rank["started"], gradients_at(rank["started"], number))
        mean = np.mean(
            [gradients_at(other["local"]["parameters"], n) for n, other in enumerate(ranks)], axis=0
        )
        assert_step(rank["after_local"], rank["local"]["parameters"], mean)
    if len(ranks) > 1:
        apart = np.subtract(*(rank["local"]["parameters"] for rank in ranks))
        assert np.abs(apart).max() > 0.01, "the ranks' batches differ, so their own steps do"


@pytest.mark.parametrize("one", EVERY)
def test_values_are_gathered_by_rank_and_rank_zeros_is_everybodys(lives, one):
    for rank in lives[one]:
        assert rank["gathered"] == [
            {"rank": number, "not a number": math.inf} for number in range(len(lives[one]))
        ]
        assert rank["told"] == [1 + 5 * number for number in range(len(lives[one]))]
        assert rank["broadcast"] == "from 0"


@pytest.mark.parametrize("one", EVERY)
def test_a_backend_describes_itself_in_plain_values_and_is_gone_after_teardown(lives, one):
    """The values have come through JSON."""
    library = {"single": "torch", "horovod": "horovod"}.get(
        one.rpartition("=")[0], "torch.distributed"
    )
    for rank in lives[one]:
        described = rank["described"]
        assert (described["library"], described["transport"]) == (
            library,
            one.rpartition("=")[2] or "none",
        )
        assert described["version"]
        assert not rank["is_connected"]


def test_data_parallel_is_refused_without_a_gpu():
    with pytest.raises(PlanError, match="this run is on the CPU; use 'ddp'"):
        DataParallel().check_device("cpu")
