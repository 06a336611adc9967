"""The interface of a report: from a ``Comparison`` to the bytes of one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from reports.schema import Comparison


class Report(ABC):
    """One format.

    A plan may name it under ``reports``, by ``module:Class`` or ``path/to/file.py:Class``; an entry
    point of the group ``ringside.reports`` gives it a name. The same input must give the same
    bytes: no clock, no randomness, no reading of files. One that goes to a tracker derives from
    ``reports.formats.tracker.Tracker``.
    """

    file_name: ClassVar[str]
    """The file that it is written to, inside the results folder."""
    is_customary: ClassVar[bool] = True
    """Whether it is written where a plan names no reports."""

    def lack(self) -> str | None:
        """What the report needs and is not here, with what to do; asked before anything is
        measured.
        """
        return None

    @abstractmethod
    def render(self, summary: Comparison) -> bytes:
        """The whole file."""
