"""What is refused of a plug-in that does not keep its interface, in words that say what to
change."""

from __future__ import annotations

import pytest
import torch

from backends import backend_class
from measurement.errors import PlanError
from runners.rank.precision import StepPrecision
from tests.outside.engine import EnginePrepared

OTHERS = """
from backends.single import Single
from backends.base import Backend

class SaysNothing(Backend):
    def prepare(self, model, build_optimizer): ...
    setup = all_gather_bytes = barrier = describe = teardown = prepare

class OfTheFuture(Single):
    interface_version = 2
"""


@pytest.mark.parametrize(("name", "version"), [("SaysNothing", None), ("OfTheFuture", 2)])
def test_a_backend_for_another_version_is_refused_with_what_to_change(tmp_path, name, version):
    (tmp_path / "others.py").write_text(OTHERS)
    message = rf"is not written for version 1 of the interface: it has interface_version {version}; .* set interface_version = 1"
    with pytest.raises(PlanError, match=rf"backend '.*:{name}' \({name}\) {message}"):
        backend_class(f"{tmp_path / 'others.py'}:{name}")


@pytest.mark.parametrize(
    ("precision", "norm", "named"),
    [("fp32", 1.0, "max_gradient_norm"), ("amp-fp16", None, "amp-fp16")],
)
def test_what_comes_before_the_step_is_refused_by_a_backend_that_owns_it(precision, norm, named):
    step = StepPrecision(precision=precision, max_gradient_norm=norm, device=torch.device("cpu"))
    engine = torch.nn.Linear(1, 1)
    engine.module, engine.optimizer = engine, torch.optim.SGD(engine.parameters(), lr=0.1)
    with pytest.raises(
        PlanError, match=f"{named}.*this backend takes the optimizer step by itself"
    ):
        step.require_fit(EnginePrepared(engine))
