"""The figures of a result for programs: comparison.prom, bencher.json, otava.csv. Trackers take theirs from here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from math import isfinite
from typing import Any, NamedTuple

from measurement.errors import in_report
from reports.base import Report
from reports.conclusions.step_terms import TERMS
from reports.estimate import Estimate
from reports.formats.csv_report import csv_bytes, figure_at
from reports.schema import Comparison, Study

Labels = dict[str, str]


class Gauge(NamedTuple):
    """One figure, of every arm, case, ratio or change alike."""

    name: str
    """Ends with the unit, if there is one."""
    unit: str
    meaning: str
    of: str | Callable[[Any], float | None]
    """Where the figure lies (``figure_at``), or what reads it."""

    def read(self, found: Any) -> float | None:
        """The figure; None: there is none."""
        value: float | None = figure_at(found, self.of) if isinstance(self.of, str) else self.of(found)
        return value


RATE = "samples_per_second"
CREATED = Gauge(
    "created_timestamp_seconds",
    "seconds",
    "When measuring began, since 1970.",
    lambda summary: datetime.fromisoformat(summary.created_at).timestamp() if summary.created_at else None,
)
ARM_OK = Gauge(
    "arm_ok",
    "",
    "1 where the arm ran and computes as it must, else 0.",
    lambda arm: None if arm.status == "not at this point" else float(arm.status == "ok"),
)
OF_ARMS = (
    ARM_OK,
    Gauge(f"throughput_{RATE}", RATE, "All samples over all seconds, stalls included.", "throughput_per_s.value"),
    Gauge("step_time_seconds", "seconds", "The median step of the slowest rank.", "step_time_s.p50"),
    *(
        Gauge(f"{term}_seconds", "seconds", f"What a step takes for {term.replace('_', ' ')}.", f"step_terms_s.{term}.value")
        for term in TERMS
    ),
    Gauge("peak_memory_bytes", "bytes", "The most memory of a rank.", "peak_memory_bytes"),
    Gauge("energy_per_sample_joules", "joules", "Energy of all hosts for one sample.", "energy_per_sample_j"),
    Gauge("scaling_efficiency_ratio", "ratio", "Speed-up over that of the compute units.", "scaling_efficiency.value"),
)
OF_CASES = (
    Gauge("latency_seconds", "seconds", "The median time of one message.", "latency_s.value"),
    Gauge("busbw_bytes_per_second", "bytes_per_second", "Bus bandwidth as in nccl-tests.", "busbw_bytes_per_s.value"),
    Gauge("loaded_samples_per_second", "samples_per_second", "All ranks' samples over time.", "samples_per_s.value"),
)
OF_RATIOS = (
    Gauge("throughput_ratio", "ratio", "The throughput over the baseline's.", "throughput_ratio"),
    Gauge("throughput_low_ratio", "ratio", "The lower end of that ratio's interval.", "ci_low"),
    Gauge("throughput_high_ratio", "ratio", "The upper end of that ratio's interval.", "ci_high"),
)
VERDICT = Gauge("verdict", "", "1 where the label verdict says what came out.", lambda result: result.throughput_ratio and 1.0)
OF_CHANGES = (
    Gauge("change_ratio", "ratio", "The figure over that of the earlier result.", "change.value"),
    Gauge("regressed", "", "1 where the figure lost more than was allowed, else 0.", "is_beyond"),
)


class OpenmetricsReport(Report):
    """Gauges alone, which node_exporter's textfile collector reads, too."""

    file_name = "comparison.prom"
    is_customary = False

    def render(self, summary: Comparison | Study) -> bytes:
        """The families one after another; all samples of one stand together."""
        families: dict[Gauge, list[str]] = {}
        for gauge, labels, value in figures(summary):
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in {"plan": summary.name, **labels}.items())
            families.setdefault(gauge, []).append(f"ringside_{gauge.name}{{{shown}}} {value!r}")
        lines = []
        for gauge, samples in families.items():
            name = f"ringside_{gauge.name}"
            unit = [f"# UNIT {name} {gauge.unit}"] if gauge.unit else []
            lines += [f"# TYPE {name} gauge", *unit, f"# HELP {name} {gauge.meaning}", *samples]
        return "\n".join([*lines, "# EOF\n"]).encode()


def figures(summary: Comparison | Study) -> Iterator[tuple[Gauge, Labels, float]]:
    """Every figure that there is, with what tells it from others: the point, the arm, the case."""
    found: list[tuple[Sequence[Gauge], Any, Labels]] = [((CREATED,), summary, {})]
    for point in summary.points if isinstance(summary, Study) else [summary]:
        place = {"point": point.name} if isinstance(summary, Study) else {}
        for arm in point.arms:
            found.append((OF_ARMS, arm, {**place, "arm": arm.name}))
            found += [(OF_CASES, case, {**place, "arm": arm.name, "case": case.case}) for case in arm.cases]
        for result in point.results:
            labels = {**place, "arm": result.candidate, **({"case": result.case} if result.case else {})}
            found += [(OF_RATIOS, result, labels), ((VERDICT,), result, {**labels, "verdict": result.verdict})]
    for change in summary.against.changes if isinstance(summary, Comparison) and summary.against else []:
        labels = {"arm": change.arm, **({"case": change.case} if change.case else {})}
        found.append((OF_CHANGES, change, {**labels, "figure": "ratio" if change.baseline else "throughput"}))
    for gauges, of, labels in found:
        for gauge in gauges:
            value = gauge.read(of)
            if value is not None and math.isfinite(value):
                yield gauge, labels, float(value)


def _escaped(text: str) -> str:
    return in_report(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class BencherReport(Report):
    """Bencher Metric Format (https://bencher.dev/docs/reference/bencher-metric-format): by benchmark and measure, with intervals.

    An arm without a figure is a benchmark without measures.
    """

    file_name = "bencher.json"
    is_customary = False

    def render(self, summary: Comparison | Study) -> bytes:
        found: dict[str, dict[str, dict[str, float]]] = {}
        for place, measure, estimate in throughputs(summary):
            measures = found.setdefault(f"{in_report(summary.name)}/{place}", {})
            if estimate is not None:
                bounds = {"value": estimate.value, "lower_value": estimate.ci_low, "upper_value": estimate.ci_high}
                measures[measure] = {name: value for name, value in bounds.items() if value is not None and isfinite(value)}
        return (json.dumps(found, indent=1) + "\n").encode()


class OtavaReport(Report):
    """A header and a row, as Apache Otava reads CSV (https://otava.apache.org): a time, and a column for each figure.

    Results of one plan have the same columns, so their rows can stand below each other. A missing figure is an empty field.
    """

    file_name = "otava.csv"
    is_customary = False

    def render(self, summary: Comparison | Study) -> bytes:
        row: dict[str, str | float | None] = {"time": summary.created_at, "comparison": in_report(summary.comparison_id)}
        for place, measure, estimate in throughputs(summary):
            row[f"{place}/{measure}"] = None if estimate is None else estimate.value
        return csv_bytes(row, [row])


def throughputs(summary: Comparison | Study) -> Iterator[tuple[str, str, Estimate | None]]:
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
