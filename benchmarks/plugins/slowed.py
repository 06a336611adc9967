"""Runs a script unmodified, with each of its optimizer's steps longer by a share: ``python
slowed.py SHARE SCRIPT ARGUMENTS``.

The share is of the time since the step before, and is spent in CPU time of the training thread, on
each rank alike. 0 changes nothing but has the same hook.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def slow_down(share: float) -> None:
    """Have each step of any optimizer be followed by the extra computation.

    Horovod calls hooks twice: the second finds no time.
    """
    matrix, ended = torch.rand(64, 64), [time.perf_counter()]

    def spend(*_: Any) -> None:
        until = time.thread_time() + share * (time.perf_counter() - ended[0])
        while time.thread_time() < until:
            matrix @ matrix
        ended[0] = time.perf_counter()

    register_optimizer_step_post_hook(spend)


if __name__ == "__main__":
    share, *sys.argv = sys.argv[1:]
    slow_down(float(share))
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
