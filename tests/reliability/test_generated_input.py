"""Every reader with input that hypothesis makes: accepted, or refused in one line, soon.

Many more: ``benchmarks/bad_input.py``."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import HealthCheck, given, settings

from tests.kit.generated_input import judge, targets

INPUTS, LEAST = 40, 5


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name)
def test_any_input_is_accepted_or_refused_in_one_line(target, tmp_path_factory):
    folder, number = tmp_path_factory.mktemp("input"), max(LEAST, INPUTS // target.cost)

    @settings(
        max_examples=number,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(target.inputs)
    def take(value):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert judge(target, value, folder).wrong is None

    take()
