"""junit.xml: each candidate is a test case, for programs that show or gate on test results."""

from __future__ import annotations

from reports.base import Report
from reports.formats.texts import render_text
from reports.schema import Comparison
from reports.tables import figures


class JunitReport(Report):
    """A candidate that failed or computed wrongly is a failure; its ratio stands in the test case's properties.

    The baseline is a test case, too, if it is not ok, since nothing was compared then. A slower candidate is no failure: what to
    do about a ratio is for the reader to decide. Held against an earlier result, every throughput and every ratio is a test case of
    another suite, and a failure where it lost more than was allowed.
    """

    file_name = "junit.xml"
    is_customary = False

    def render(self, summary: Comparison) -> bytes:
        suites: dict[str, list[figures.ArmRow]] = {place: [] for place in summary.places}
        for row in figures.arm_rows(summary, by_case=True):
            if row.arm.role == "candidate" or (row.arm.role == "baseline" and row.arm.status != "ok"):
                suites[row.place].append(row)
        named = {".".join(filter(None, [summary.name, place])): rows for place, rows in suites.items()}
        return render_text("junit.xml.j2", c=summary, suites=named, figures=figures, columns=figures.columns).encode()
