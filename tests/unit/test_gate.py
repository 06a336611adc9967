"""A gate that knows its power: the minutes it promises, and refuses to go below.

Noise that is known, nothing is started."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gate import noise, passed
from measurement.errors import PlanError
from runners.scripts.gate_command import Noise, minutes_for, minutes_to_spend
from tests.kit.budgets import REGIMES

QUIET = Noise(start_s=10, round_s=0.5, round_variance=1e-4, launch_variance=1e-5, degrees=8)
NOISY = Noise(start_s=10, round_s=0.5, round_variance=1e-2, launch_variance=1e-3, degrees=8)


def test_a_smaller_loss_and_a_noisier_runner_take_longer():
    quiet, noisy = minutes_for([QUIET], slower=0.05), minutes_for([NOISY], slower=0.05)
    assert quiet and noisy and quiet < noisy < minutes_for([NOISY], slower=0.03)
    assert minutes_for([QUIET, NOISY], slower=0.05) < noisy
    assert minutes_for([NOISY], slower=0.0) is None


def test_fewer_minutes_than_it_takes_are_refused_with_the_number(tmp_path, capsys):
    file = tmp_path / "noise.json"
    assert minutes_to_spend(file, slower="5%", asked=None) == 5
    assert "nothing is known of this runner" in capsys.readouterr().err
    file.write_text(f"[{NOISY.model_dump_json()}]")
    needed = minutes_to_spend(file, slower="5%", asked=None)
    said = f"to detect a loss of 5% takes {needed:.0f} minutes"
    assert said in capsys.readouterr().err
    assert minutes_to_spend(file, slower="5%", asked=needed + 1) == needed + 1
    with pytest.raises(PlanError, match=f"{said}, .*; give as many --minutes"):
        minutes_to_spend(file, slower="5%", asked=needed / 2)


@pytest.mark.slow
def test_pull_requests_on_a_noisy_runner_come_out_as_promised():
    """``benchmarks/gate.py`` has 200 of them in all regimes."""
    random, regime = np.random.default_rng(7), REGIMES[5]
    minutes = minutes_for([noise(regime, random) for _ in range(3)], slower=0.05)
    assert minutes
    alike = [passed(regime, minutes, random, lost=0, slower=0.05) for _ in range(40)]
    worse = [passed(regime, minutes, random, lost=0.05, slower=0.05) for _ in range(40)]
    assert sum(alike) >= 30 and sum(worse) <= 5
