"""The interface of a report: from a ``Comparison`` to the bytes of one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from reports.schema import Comparison


class Report(ABC):
    """One format. Register it in ``reports.REGISTRY``, or by an entry point of the group ``ringside.reports``."""

    file_name: ClassVar[str]
    """The file that it is written to, inside the results folder."""

    def has_content(self, comparison: Comparison) -> bool:
        """Whether there is anything of this comparison to write."""
        return True

    @abstractmethod
    def render(self, comparison: Comparison) -> bytes:
        """The whole file. The same bytes for the same comparison: no clock, no randomness, no reading of other files."""
