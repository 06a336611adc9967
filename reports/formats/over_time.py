"""bencher.json and otava.csv: the figures of one result, for tools that follow figures over many results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isfinite

from measurement.errors import in_report
from reports.base import Report
from reports.estimate import Estimate
from reports.formats.csv_report import csv_bytes
from reports.schema import Comparison
from reports.study_schema import Study


class BencherReport(Report):
    """Bencher Metric Format (https://bencher.dev/docs/reference/bencher-metric-format): by benchmark and measure, with intervals.

    An arm without a figure is a benchmark without measures.
    """

    file_name = "bencher.json"
    is_customary = False

    def render(self, comparison: Comparison | Study) -> bytes:
        found: dict[str, dict[str, dict[str, float]]] = {}
        for place, measure, estimate in figures(comparison):
            measures = found.setdefault(f"{in_report(comparison.name)}/{place}", {})
            if estimate is not None:
                bounds = {"value": estimate.value, "lower_value": estimate.ci_low, "upper_value": estimate.ci_high}
                measures[measure] = {name: value for name, value in bounds.items() if value is not None and isfinite(value)}
        return (json.dumps(found, indent=1) + "\n").encode()

    def render_study(self, study: Study) -> bytes:
        return self.render(study)


class OtavaReport(Report):
    """A header and a row, as Apache Otava reads CSV (https://otava.apache.org): a time, and a column for each figure.

    Results of one plan have the same columns, so their rows can stand below each other. A missing figure is an empty field.
    """

    file_name = "otava.csv"
    is_customary = False

    def render(self, comparison: Comparison | Study) -> bytes:
        row: dict[str, str | float | None] = {"time": comparison.created_at, "comparison": in_report(comparison.comparison_id)}
        for place, measure, estimate in figures(comparison):
            row[f"{place}/{measure}"] = None if estimate is None else estimate.value
        return csv_bytes(row, [row])

    def render_study(self, study: Study) -> bytes:
        return self.render(study)


def figures(summary: Comparison | Study) -> Iterator[tuple[str, str, Estimate | None]]:
    """Each arm's throughput and ratio, at each point: where, of what, and how much; None: there is no timing.

    Of a micro-benchmark it is latencies and ratios, case by case.
    """
    for point in summary.points if isinstance(summary, Study) else [summary]:
        ratios = {(result.candidate, result.case): result.ratio for result in point.results}
        for arm in (arm for arm in point.arms if arm.role != "control"):
            cases = {case.case: case.latency_s for case in arm.cases}
            for case in cases or [None]:
                names = (point.name if isinstance(summary, Study) else None, arm.name, case)
                place = "/".join(name for name in names if name)
                yield (place, "throughput", arm.throughput_per_s) if case is None else (place, "latency-seconds", cases[case])
                if arm.role == "candidate":
                    yield place, "throughput-ratio", ratios.get((arm.name, case))
