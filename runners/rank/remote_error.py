"""Explains a rank's exception to the workload's author: the error, their line, and what to do."""

from __future__ import annotations

from measurement.agent.ringside_agent.users_lines import Described, describe
from measurement.errors import RingsideError, printable

FULL = (
    "see 'df -h /dev/shm', through which loader processes pass tensors (docker run --shm-size=8g"
    " gives more), TMPDIR and the results folder; or set loader_workers: 0"
)
REMEDIES = {
    "Expected to have finished reduction in the prior iteration": (
        "DDP waits for the gradients of parameters that took no part in the loss; give the arm"
        " options: {find_unused_parameters: true}, or set requires_grad = False if they are never"
        " trained"
    ),
    "mark a variable ready only once": (
        "DDP met a parameter twice in one backward pass; checkpoint with use_reentrant=False, or "
        "give the arm options: {static_graph: true}"
    ),
    "Expected all tensors to be on the same device": (
        "batches() must yield tensors on the device that it is given, where "
        "the runner moves the model"
    ),
    "No space left on device": FULL,
    "Read-only file system": FULL,
    "Cannot re-initialize CUDA in forked subprocess": (
        "loader processes must not touch the GPU; move batches there in batches()"
    ),
}
"""Remedies for errors of PyTorch that name none, or one for another interface."""


def describe_error(error: Exception) -> Described:
    """Describe the exception being handled: class, message, the user's line, and what to do."""
    if isinstance(error, RingsideError):  # its message has all of these
        first, *more = printable(str(error)).splitlines() or [""]
        return Described(f"{type(error).__name__}: {first}", more)
    remedy = next((f"; {remedy}" for text, remedy in REMEDIES.items() if text in str(error)), "")
    message, excerpt = describe(error)
    return Described(printable(message) + remedy, [printable(line) for line in excerpt])
