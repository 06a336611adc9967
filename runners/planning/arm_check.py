"""Asks the arms' backends what they make of a model and its optimizer, where these have been built: beside the workload's trial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel
from torch import nn
from torch.optim import Optimizer

from backends import make_backend
from measurement.errors import PlanError
from runners.planning.arms import ArmSetup


class AskedArm(BaseModel):
    """An arm in plain values, for another process."""

    name: str | None
    """None: there is no other."""
    backend: str
    transport: str | None
    options: dict[str, Any]

    @classmethod
    def of(cls, setups: Iterable[ArmSetup]) -> list[AskedArm]:
        """The arms of a plan."""
        return [
            cls(name=one.name, backend=one.arm.backend, transport=one.backend.transport, options=dict(one.arm.options))
            for one in setups
        ]

    def ask(self, model: nn.Module, optimizer: Optimizer, *, missing: Sequence[str], sparse: Sequence[str]) -> list[str]:
        """What its backend does otherwise, see ``Backend.check_model``.

        Raises:
            PlanError: it cannot train the model.
        """
        own = f"arm '{self.name}': " if self.name is not None else ""
        backend = make_backend(self.backend, transport=self.transport, options=self.options, arm=self.name)
        try:
            notes = backend.check_model(model, optimizer, missing=missing, sparse=sparse)
        except PlanError as error:
            raise PlanError(f"{own}{error}") from error
        return [f"{own}{note}" for note in notes]
