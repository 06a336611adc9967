"""A workload that writes into a file when its process builds a model, and when it takes its first
step."""

from __future__ import annotations

import os
from pathlib import Path

from measurement.agent.ringside_agent import settings
from workloads.digits import Digits

FILE = "BUILDS_FILE"


class ToldBuilds(Digits):
    """Lines: ``built PROCESS STEPS``, with the process's steps so far; ``began PROCESS ARM``, where
    a driver started it."""

    steps = 0

    def build_model(self):
        """Tell of it."""
        tell("built", self.steps)
        return super().build_model()

    def compute_loss(self, model, batch):
        """Count, and tell of the first."""
        told = settings.read()
        if not ToldBuilds.steps and told:  # a driver's rank
            tell("began", told.arm)
        ToldBuilds.steps += 1
        return super().compute_loss(model, batch)


def tell(what, value):
    """Write a line, where there is a file for it."""
    if FILE in os.environ:
        with Path(os.environ[FILE]).open("a") as told:
            told.write(f"{what} {os.getpid()} {value}\n")
