"""What scripts do differently, most important first: usual mistakes of a porting, other work, other settings."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from measurement.records.record import LaunchRecord
from reports.script_schema import ConfigurationDifference


def configuration_differences(records: Sequence[LaunchRecord], *, allow: Collection[str] = ()) -> list[ConfigurationDifference]:
    """In what the scripts of one launch differ.

    Args:
        records: of the launch's arms; the control's and those without reports are left out.
        allow: differences in work that do not withhold the verdict: names of fields, or ``all``.
    """
    raise NotImplementedError
