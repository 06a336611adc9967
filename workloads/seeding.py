"""Seeds the generators that models and losses draw from: PyTorch's on every device, NumPy's and Python's."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_generators(seed: int) -> None:
    """Seed all three, those that belong to the process; generators of a workload's own stay as they are. Not collective."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
