"""Reports for programs in which teams follow their runs. One of your own is a class in one file: see docs/extending.md."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from measurement.errors import ReportError, cut
from reports.base import Report
from reports.formats.html import HtmlReport
from reports.formats.openmetrics import ARM_OK, CREATED, VERDICT, figures
from reports.schema import Comparison
from reports.study_schema import Study

SETTINGS = {"name", "workload", "baseline", "device", "world_size", "hosts", "local_batch_size", "global_batch_size", "seed"}
CREDENTIALS = re.compile(r"(?<=//)[^/@\s]+@")


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A comparison, or a study, as trackers see runs."""

    identity: str
    """Letters and digits that stay the same when the comparison is resumed or its reports are rebuilt."""
    name: str
    plan: str
    headline: str
    created_s: float | None
    """Seconds since 1970."""
    is_ok: bool
    """Whether no arm failed or is wrong."""
    settings: Mapping[str, Any]
    """What was compared, in plain JSON."""
    figures: Mapping[str, float]
    """By names such as ``horovod-mpi/throughput_ratio``; in a study the point comes first."""
    verdicts: Mapping[str, str]
    """By names such as ``horovod-mpi/verdict``."""
    page: str
    """HTML of report.html."""


class Tracker(Report):
    """A report that goes to another program. Its file is JSON and says where the run is found there."""

    is_customary = False
    package: ClassVar[str | None] = None
    """What is imported; None: nothing but Python's own."""
    requirement: ClassVar[str | None] = None
    """What has pip install it; None: the package's name."""

    @abstractmethod
    def send(self, run: TrackedRun) -> Mapping[str, Any]:
        """Make the run there, or bring it up to date; returns what the file says, the same for the same run.

        One of ``errors`` becomes a message that says what to do.
        """

    def errors(self) -> tuple[type[Exception], ...]:
        """What ``send`` may raise where the program cannot be reached or refuses the run."""
        return (OSError, ImportError)

    def lack(self) -> str | None:
        found = importlib.util.find_spec(self.package) if self.package else None
        if self.package is None or (found and found.origin):  # a folder of that name has no origin
            return None
        return (
            f"{self.file_name} needs the package {self.package}, which is not installed; run: pip install "
            f"'{self.requirement or self.package}', or leave the report out of the plan's 'reports'"
        )

    def render(self, comparison: Comparison) -> bytes:
        return self.told(tracked_run(comparison, HtmlReport().render(comparison)))

    def render_study(self, study: Study) -> bytes:
        return self.told(tracked_run(study, HtmlReport().render_study(study)))

    def told(self, run: TrackedRun) -> bytes:
        """Tell the program; returns the file. A failure is a ``ReportError`` that says what to do."""
        try:
            return json.dumps(self.send(run), indent=2).encode() + b"\n"
        except self.errors() as error:
            raise ReportError(
                f"{self.file_name} could not be made: {CREDENTIALS.sub('', cut(str(error)))}; what was measured and the other "
                "reports are written, and 'ringside report' with the folder tries again"
            ) from error


def tracked_run(summary: Comparison | Study, page: bytes) -> TrackedRun:
    """What trackers are told; ``page`` is report.html."""
    known, found = f"{summary.comparison_id} {summary.created_at}", list(figures(summary))
    verdicts = [labels for gauge, labels, _ in found if gauge == VERDICT]
    return TrackedRun(
        identity=hashlib.sha256(known.encode(errors="replace")).hexdigest()[:16],
        name=summary.comparison_id,
        plan=summary.name,
        headline=summary.headline,
        created_s=CREATED.of(summary),
        is_ok=all(value for gauge, _, value in found if gauge == ARM_OK),
        settings=summary.model_dump(mode="json", include=SETTINGS),
        figures={"/".join([*labels.values(), gauge.name]): value for gauge, labels, value in found if gauge != VERDICT},
        verdicts={"/".join([*list(labels.values())[:-1], "verdict"]): labels["verdict"] for labels in verdicts},
        page=page.decode(),
    )
