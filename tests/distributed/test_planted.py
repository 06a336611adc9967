"""Backends that compute wrongly are wrong for every kind of model: the gate's tolerances hide none
of them."""

from __future__ import annotations

from functools import partial

import pytest

from runners.driver.gates import compare_state, judge_parity
from runners.protocol import ParityReport
from tests.distributed.ranks import planted
from tests.kit.commands import forked, seen_by_ranks

pytestmark = pytest.mark.usefixtures("no_processes_left")
FAULTS = [one.__name__ for one in planted.FAULTS]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """By kind of model and backend: the ranks' reports, by rank."""
    seen = seen_by_ranks(partial(forked, 2, planted), tmp_path_factory.mktemp("planted"))
    return {
        kind: {
            name: [ParityReport.model_validate(rank[name]) for rank in ranks] for name in ranks[0]
        }
        for kind, ranks in seen.items()
    }


def failures(reports, kind, name):
    """Of the arm by itself, and compared with the right one."""
    found = reports[kind][name]
    alone = judge_parity(found).failures
    return alone + compare_state(reports[kind]["Right"][0], found[0], first_arm="right").failures


@pytest.mark.parametrize("kind", planted.KINDS)
def test_the_right_one_passes(reports, kind):
    assert failures(reports, kind, "Right") == []


@pytest.mark.parametrize("kind", planted.KINDS)
@pytest.mark.parametrize("name", FAULTS)
def test_what_computes_wrongly_is_wrong(reports, kind, name):
    """A bfloat16 model's gradients are exchanged in bfloat16 rightly."""
    assert bool(failures(reports, kind, name)) == ((kind, name) != ("bf16", "InHalf"))
