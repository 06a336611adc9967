"""A workload that writes into a file how many steps its process had taken when it built a model."""

from __future__ import annotations

import os
from pathlib import Path

from workloads.digits import Digits

FILE = "BUILDS_FILE"


class ToldBuilds(Digits):
    """Each line: the process, and its steps so far."""

    steps = 0

    def build_model(self):
        """Tell of it."""
        if FILE in os.environ:
            with Path(os.environ[FILE]).open("a") as told:
                told.write(f"{os.getpid()} {self.steps}\n")
        return super().build_model()

    def compute_loss(self, model, batch):
        """Count."""
        ToldBuilds.steps += 1
        return super().compute_loss(model, batch)
