"""What the trial of a command has shown, for each later start of the arm."""

from __future__ import annotations

from measurement.records.record import LaunchRecord
from measurement.records.record_types import Written
from measurement.records.script_report import LineUse


class TrialFacts(Written):
    """Facts about a command that has taken its compared steps once, alone."""

    ranks: int
    """Number of ranks that it starts, by their own count."""
    first_steps_s: float
    """Seconds from its start to the end of the compared steps."""
    ports: tuple[int, ...] = ()
    """Ports that its processes asked for, launchers included, and at which ranks meet."""
    lines: tuple[list[LineUse], ...] = ()
    """Lines of its training loop, by rank, timed while it ran alone."""

    @classmethod
    def from_record(cls, record: LaunchRecord) -> TrialFacts:
        """Take it from the record of an arm's trial."""
        ports = {port for report in record.scripts for port in report.ports}
        return cls(
            ranks=record.world_size,
            first_steps_s=record.start_s or 0.0,
            ports=tuple(sorted(ports)),
            lines=tuple(report.lines for report in record.scripts),
        )
