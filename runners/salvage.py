"""A block whose replies were lost on the way, made whole from what every rank wrote down before it replied."""

from __future__ import annotations

from collections.abc import Mapping

from runners.job import BlockReport, Reply
from runners.spool import report_on, timings_name


def salvage(files: Mapping[str, bytes], *, number: int, world_size: int) -> list[Reply] | None:
    """Every rank's reply to the ``number``-th command, by rank; None unless all had finished it. Pure.

    Args:
        files: of the spool folders of all hosts, by name.
        number: of the command.
        world_size: ranks of the arm.
    """
    found = [report_on(files.get(timings_name(rank), b""), number) for rank in range(world_size)]
    if any(report is None for report in found):
        return None
    return [Reply(block=BlockReport.model_validate(report)) for report in found]
