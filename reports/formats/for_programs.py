"""The figures of a result for programs: comparison.json, report.csv, comparison.prom, bencher.json,
otava.csv.

Trackers take theirs from here.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from measurement.errors import PlanError, in_report, unknown_name
from reports.base import Report
from reports.parts_schema import Estimate
from reports.schema import Comparison
from reports.tables.figures import (
    ARM,
    CASE,
    CHANGE,
    CREATED,
    EQUALITY,
    IDENTITY,
    OK,
    OUTCOME,
    RATIO,
    TRAINING,
    VERDICT,
    ArmRow,
    Figure,
    arm_rows,
    columns,
)

Labels = dict[str, str]
IN_LABELS = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class OpenmetricsReport(Report):
    """Gauges alone, which node_exporter's textfile collector reads, too."""

    file_name = "comparison.prom"
    is_customary = False

    def render(self, summary: Comparison) -> bytes:
        """The families one after another; all samples of one are together."""
        families: dict[Figure, list[str]] = {}
        for figure, labels, value in gauges(summary):
            texts = {
                name: in_report(text).translate(IN_LABELS)
                for name, text in {"plan": summary.name, **labels}.items()
            }
            shown = ",".join(f'{name}="{text}"' for name, text in texts.items())
            families.setdefault(figure, []).append(f"ringside_{figure.gauge}{{{shown}}} {value!r}")
        lines = []
        for figure, samples in families.items():
            name = f"ringside_{figure.gauge}"
            unit = [f"# UNIT {name} {figure.unit}"] if figure.unit else []
            lines += [f"# TYPE {name} gauge", *unit, f"# HELP {name} {figure.meaning}", *samples]
        return "\n".join([*lines, "# EOF\n"]).encode()


def gauges(summary: Comparison) -> Iterator[tuple[Figure, Labels, float]]:
    """Every figure that has a gauge, with its labels: the point, the arm, the case."""
    sources: list[tuple[Sequence[Figure], Any, Labels]] = [([CREATED], summary, {})]
    sources += [([OK, *ARM], row, _labels_of(row)) for row in arm_rows(summary)]
    for row in arm_rows(summary, by_case=True):
        sources.append(([*CASE, *RATIO], row, _labels_of(row)))
        verdict = row.result.verdict if row.result else ""
        sources.append(([VERDICT], row, _labels_of(row) | {"verdict": verdict}))
    for change in summary.against.changes if summary.against else []:
        figure_name = "ratio" if change.baseline else "throughput"
        named = _labels(change.point, change.arm, change.case)
        sources.append((CHANGE, change, named | {"figure": figure_name}))
    for figures, of, labels in sources:
        for figure in figures:
            value = figure.value(of) if figure.gauge else None
            if value is not None and isfinite(value):
                yield figure, labels, float(value)


def _labels_of(row: ArmRow) -> Labels:
    return _labels(row.place, row.arm.name, row.case.name if row.case else None)


def _labels(point: str | None, arm: str, case: str | None) -> Labels:
    named = {"point": point, "arm": arm, "case": case}
    return {name: text for name, text in named.items() if text}


class BencherReport(Report):
    """Bencher Metric Format (https://bencher.dev/docs/reference/bencher-metric-format): by
    benchmark and measure, with intervals.

    An arm without a figure is a benchmark without measures.
    """

    file_name = "bencher.json"
    is_customary = False

    def render(self, summary: Comparison) -> bytes:
        benchmarks: dict[str, dict[str, dict[str, float]]] = {}
        for place, measure, estimate in throughputs(summary):
            measures = benchmarks.setdefault(f"{in_report(summary.name)}/{place}", {})
            if estimate is not None:
                values = {
                    "value": estimate.value,
                    "lower_value": estimate.ci_low,
                    "upper_value": estimate.ci_high,
                }
                measures[measure] = {
                    name: value
                    for name, value in values.items()
                    if value is not None and isfinite(value)
                }
        return (json.dumps(benchmarks, indent=1) + "\n").encode()


class OtavaReport(Report):
    """A header and a row, as Apache Otava reads CSV (https://otava.apache.org): a time, and a
    column for each figure.

    Results of one plan have the same columns, so their rows can be appended to one file. A missing
    figure is an empty field.
    """

    file_name = "otava.csv"
    is_customary = False

    def render(self, summary: Comparison) -> bytes:
        row: dict[str, str | float | None] = {
            "time": summary.created_at,
            "comparison": in_report(summary.comparison_id),
        }
        for place, measure, estimate in throughputs(summary):
            row[f"{place}/{measure}"] = None if estimate is None else estimate.value
        return csv_bytes(row, [row])


def throughputs(summary: Comparison) -> Iterator[tuple[str, str, Estimate | None]]:
    """Each arm's throughput and ratio, at each point: where, of what, and how much; None: there is
    no timing.

    Of a micro-benchmark it is latencies and ratios, case by case.
    """
    for row in arm_rows(summary, by_case=True):
        if row.arm.role != "control":
            place = "/".join(_labels_of(row).values())
            if row.figures:
                yield place, "latency-seconds", row.figures.latency_s
            else:
                yield place, "throughput", row.arm.throughput_per_s
            if row.arm.role == "candidate":
                yield place, "throughput-ratio", row.result.ratio if row.result else None


class CsvReport(Report):
    """For spreadsheets and data frames; an empty field means that there is no such figure."""

    file_name = "report.csv"

    def render(self, summary: Comparison) -> bytes:
        points = summary.places.values()
        figures = [Figure("point", "place")] if summary.points else []
        figures += [*IDENTITY, *RATIO, *(CASE if any(point.cases for point in points) else ARM)]
        figures += TRAINING if any(point.training for point in points) else ()
        figures += EQUALITY if any(point.equality for point in points) else ()
        rows = [
            columns([*figures, *OUTCOME], row, unit=summary.sample_unit)
            for row in arm_rows(summary, by_case=True)
        ]
        return csv_bytes(rows[0], rows)


def csv_bytes(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    """UTF-8 CSV with a header row; a missing value is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


class JsonReport(Report):
    """Everything that the other reports show, unrounded; ``reports.schema.Comparison`` reads it."""

    file_name = "comparison.json"

    def render(self, summary: Comparison) -> bytes:
        return (summary.model_dump_json(indent=1) + "\n").encode()


NAMED_BY = ("name", "candidate", "arm", "field", "scenario")
"""Keys by whose value a step of a path may choose an item of a list, where it is the only one."""


def value_at(summary: Comparison, path: str) -> str:
    """One value of comparison.json, as text: numbers unrounded, text as it is, the rest as JSON.

    ``path``: keys, and numbers or names of a list's items, with dots between:
    ``results.horovod.throughput_ratio``.

    Raises:
        PlanError: there is no such value; the message has what is there instead.
    """
    value, walked, rest = json.loads(JsonReport().render(summary)), "", path
    while rest:
        steps = _steps(value)
        step = max(
            (name for name in steps if f"{rest}.".startswith(f"{name}.")), key=len, default=None
        )
        if step is None:
            where = f" below '{walked[1:]}'" if walked else ""
            numbers = [f"0 to {len(value) - 1}"] if isinstance(value, list) and value else []
            shown = [*numbers, *(name for name in steps if not name.isdecimal())]
            raise PlanError(
                unknown_name(f"value{where} in comparison.json", rest.partition(".")[0], shown)
            )
        value, walked, rest = steps[step], f"{walked}.{step}", rest[len(step) + 1 :]
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)


def _steps(value: Any) -> Mapping[str, Any]:
    """What may follow in a path, with where it leads."""
    if not isinstance(value, list):
        return value if isinstance(value, dict) else {}
    named = [
        (str(item[key]), item)
        for item in value
        if isinstance(item, dict)
        for key in NAMED_BY
        if key in item
    ]
    names = [name for name, _ in named]
    return {str(number): item for number, item in enumerate(value)} | {
        name: item for name, item in named if names.count(name) == 1
    }
