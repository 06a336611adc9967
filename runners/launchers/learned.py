"""What the trial of a command has shown. Each later start of the arm is given it."""

from __future__ import annotations

from typing import Any

from measurement.records.record import LaunchRecord
from measurement.records.record_types import Written
from measurement.records.script_report import LineUse


class Learned(Written):
    """What is known of a command that has taken its compared steps once, alone."""

    ranks: int
    """That it starts, as they count themselves."""
    first_steps_s: float
    """Seconds from its start to the end of the compared steps."""
    ports: tuple[int, ...] = ()
    """That its processes asked for, launchers included, and at which ranks meet."""

    lines: tuple[list[LineUse], ...] = ()
    """Those of its loop, by rank: it was alone, as it is in no launch."""

    @classmethod
    def of(cls, record: LaunchRecord) -> Learned:
        """Take it from the record of an arm's trial."""
        ports = {port for report in record.scripts for port in report.ports}
        told: dict[str, Any] = {"ports": tuple(sorted(ports)), "lines": tuple(one.lines for one in record.scripts)}
        return cls(ranks=record.world_size, first_steps_s=record.start_s or 0.0, **told)
