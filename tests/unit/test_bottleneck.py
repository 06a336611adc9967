"""What holds training back, from shares of known truth: the definitions, the threshold and what the
reports say."""

from __future__ import annotations

import pandas as pd
import pytest

from reports.conclusions.step_terms import LIMIT, bottleneck_of, data_wait_share, step_shares
from reports.schema import Estimate, StepShares, StepTerms
from reports.wording.causes import limit_sentence


def shares(data_wait, exposed_exchange=None, **others):
    return StepShares(data_wait=data_wait, exposed_exchange=exposed_exchange, **others)


def test_the_rank_that_waits_most_counts_over_all_its_steps():
    steps = pd.DataFrame(
        {"rank": [0, 0, 1, 1], "data_wait_s": [0.0, 0.1, 0.5, 0.1], "step_s": [1.0, 1.0, 1.0, 2.0]}
    )
    assert data_wait_share(steps) == pytest.approx(0.6 / 3)


@pytest.mark.parametrize(
    ("share", "limit"),
    [
        (shares(LIMIT, 0.0), "data_wait"),
        (shares(0.0, LIMIT), "exposed_exchange"),
        (shares(LIMIT - 0.01, LIMIT - 0.01), "computing"),
        (shares(0.1, 0.1, library_overhead=LIMIT), "library_overhead"),
        (shares(0.1, 0.1, imbalance=0.6), "imbalance"),
        (shares(0.6), "data_wait"),
        (shares(0.1), "not the input"),
    ],
)
def test_the_larger_share_is_the_limit_from_the_threshold_on(share, limit):
    assert bottleneck_of(share) == limit


def test_overhead_that_steps_with_exchange_do_not_have_is_no_bottleneck():
    """As of Horovod over MPI, whose thread polls while there is nothing to exchange."""
    terms = {
        "compute": 6.4,
        "data_wait": 0.4,
        "library_overhead": 3.2,
        "imbalance": 1.6,
        "exposed_exchange": -1.3,
        "step": 10.3,
        "in_forward": 0.0,
    }
    sync = pd.DataFrame({"rank": [0], "data_wait_s": [0.4], "step_s": [10.3]})
    means = {name: Estimate(value=ms, ci_low=None, ci_high=None) for name, ms in terms.items()}
    found = step_shares(sync, StepTerms(**means))
    assert found.library_overhead == pytest.approx((3.2 - 1.3) / 10.3)
    assert found.imbalance == pytest.approx(1.6 / 10.3), "taken off once: terms add up to the step"
    assert bottleneck_of(found) == "computing"
    assert limit_sentence({"mpi": found}) == (
        "Computing takes most of the step in mpi: 4% is waiting for data, 18% overhead and"
        " exchange, 16% waiting for the slowest rank"
    )
