"""Hooks that a workload puts on its model and optimizer run under every backend as often as in a
single process."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.conftest import HAS_HOROVOD, needs_horovod
from tests.distributed.ranks import hooked
from tests.kit.commands import forked, seen_by_ranks

pytestmark = pytest.mark.usefixtures("no_processes_left")
TRAINED = ["ddp", "zero", "naive", "fsdp2", "engine", pytest.param("horovod", marks=needs_horovod)]
HOROVOD = ["horovod"] * HAS_HOROVOD
PASSES = hooked.MICRO_STEPS * hooked.STEPS


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What both ranks saw, by backend; ``single`` is one process with the batches of both.

    It is a process of its own: where a class's ``step`` calls its parent's, PyTorch runs hooks
    twice if the parent was used before.
    """
    found, names = {}, ["ddp", "zero", "naive", "fsdp2", "engine", *HOROVOD]
    for ranks, backends in ((1, ["single"]), (2, names)):
        start = partial(forked, ranks, hooked)
        found |= seen_by_ranks(start, tmp_path_factory.mktemp("launch"), *backends)
    return found


@pytest.mark.costly
def test_a_single_process_runs_each_hook_once(found):
    ran = found["single"][0]["plain"]["steps"]
    assert ran["step pre"] == ran["step post"] == hooked.STEPS
    assert ran["model forward"] == ran["layer backward"] == PASSES


@pytest.mark.parametrize("name", TRAINED)
def test_every_backend_runs_each_hook_as_often(found, name):
    single = found["single"][0]["plain"]
    for rank in found[name]:
        ran = rank["plain"]
        assert ran["steps"] == single["steps"]
        assert ran["rates"] == single["rates"], (
            "a schedule in a hook changes the rate that the step uses"
        )
        assert ran["groups"] == single["groups"], "the hook's optimizer has all parameters"


@pytest.mark.parametrize("name", TRAINED)
def test_hooks_see_averaged_gradients_and_steps_are_those_of_a_single_process(found, name):
    """Among them what an attribute of the optimizer says."""
    for case in ("plain", "clipped"):
        single = found["single"][0][case]
        for rank in found[name]:
            if case in rank:
                assert rank[case]["steps"] == single["steps"]
                assert np.allclose(rank[case]["norms"], single["norms"], rtol=1e-4)
                assert np.allclose(
                    rank[case]["parameters"], single["parameters"], rtol=1e-4, atol=1e-6
                )


@pytest.mark.parametrize("name", [name for name in TRAINED if name != "fsdp2"])
def test_hooks_of_parameters_run_as_often(found, name):
    single = found["single"][0]["parameter"]["steps"]
    assert single["gradient"] == single["accumulated gradient"] == PASSES
    assert all(rank["parameter"]["steps"] == single for rank in found[name])
