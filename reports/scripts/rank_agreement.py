"""Whether the ranks of one script agree: at the start, after the compared steps, and in their gradients after the exchange."""

from __future__ import annotations

from measurement.records.record import LaunchRecord


def ranks_apart(record: LaunchRecord) -> str | None:
    """How the ranks of an arm are apart, with the step at which that began; None where they agree or cannot be compared."""
    raise NotImplementedError
