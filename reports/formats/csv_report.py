"""report.csv: one flat row per arm with its ratio, units in the column names; of a micro-benchmark, per arm and case."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

from measurement.records.block_steps import PHASES
from measurement.records.record import Case
from reports.base import Report
from reports.conclusions.step_terms import TERMS
from reports.parts_schema import QUANTITIES, Equality
from reports.schema import ArmSummary, Comparison, Study, StudyPoint


class CsvReport(Report):
    """For spreadsheets and data frames; an empty field means that there is no such figure."""

    file_name = "report.csv"

    def render(self, summary: Comparison | Study) -> bytes:
        if isinstance(summary, Study):
            rows = [_study_row(summary, point, arm) for point in summary.points for arm in point.arms]
        elif summary.cases:
            rows = [_case_row(summary, arm, case) for case in summary.cases for arm in summary.arms]
        else:
            rows = [_row(summary, arm) for arm in summary.arms]
        return csv_bytes(rows[0], rows)


def csv_bytes(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    """UTF-8 CSV with a header row; a missing value is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def figure_at(found: Any, path: str) -> Any:
    """What lies at a path of fields and keys, such as ``resources.mfu.value``; None where something on it is not there."""
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else getattr(found, part, None)
    return found


def _read(found: object, columns: Mapping[str, str]) -> dict[str, Any]:
    return {name: figure_at(found, path) for name, path in columns.items()}


def _bounded(name: str, path: str) -> dict[str, str]:
    """Columns of an estimate: its value and its bounds."""
    return {name: f"{path}.value", f"{name}_ci_low": f"{path}.ci_low", f"{name}_ci_high": f"{path}.ci_high"}


def _alike(*names: str) -> dict[str, str]:
    """Columns that are called as the fields that they are of."""
    return dict(zip(names, names, strict=True))


IDENTITY = {"arm": "name"} | _alike("role", "status", "backend", "transport", "launcher")
RATIO = _alike("baseline", "throughput_ratio", "ci_low", "ci_high", "equivalence_low", "equivalence_high", "confidence", "verdict")
RATIO |= _alike("launches", "pairs", "more_minutes")
TERM_COLUMNS = {name: path for term in TERMS for name, path in _bounded(f"{term}_s", f"step_terms_s.{term}").items()}
RESOURCES = {
    "peak_memory_bytes": "peak_memory_bytes",
    "flops_per_sample": "resources.flops_per_sample",
    **_bounded("per_device_per_s", "resources.per_device_per_s"),
    **_bounded("flops_per_device_per_s", "resources.flops_per_s"),
    **_bounded("mfu", "resources.mfu"),
    **_bounded("memory_bytes", "resources.memory_bytes"),
    "energy_per_sample_j": "energy_per_sample_j",
}
MEMORY_RATIO = _bounded("memory_ratio", "memory_ratio")
SCALING = {"scaling_efficiency": "scaling_efficiency.value", "scaling_baseline": "scaling_baseline"}
TRAINING = {
    "seeds": "seeds",
    **_bounded("final_top1", "final_top1"),
    **_bounded("final_top1_difference", "difference"),
    **_alike("convergence", "time_to_accuracy_s", "seeds_reached"),
    **_bounded("time_ratio", "time_ratio"),
}
CASE = _bounded("latency_s", "latency_s") | _bounded("algbw_bytes_per_s", "algbw_bytes_per_s")
CASE |= _bounded("busbw_bytes_per_s", "busbw_bytes_per_s")
"""Columns, and where their figures lie in an arm, its ratio, or its figures in a case."""


def _row(comparison: Comparison, arm: ArmSummary) -> dict[str, Any]:
    result, equality = comparison.result(arm.name), comparison.equality
    return {
        **_identity(comparison, arm),
        **_read(result, RATIO),
        **_read(arm, _bounded(f"throughput_{comparison.sample_unit}_per_s", "throughput_per_s")),
        **{f"step_time_{p}_s": arm.step_time_s.get(p) for p in ("p5", "p25", "p50", "p75", "p95")},
        **{f"phase_{phase}_s": arm.phases_s.get(phase) for phase in PHASES},
        **_read(arm, TERM_COLUMNS | RESOURCES),
        **_read(result, MEMORY_RATIO),
        **(_read(comparison.training.arm(arm.name), TRAINING) if comparison.training else {}),
        **(_equality(equality, arm.name) if equality else {}),
        **_read(arm, _bounded("time_to_train_s", "time_to_train_s") | SCALING),
        **_read(arm.parity, {"parity_passed": "passed", "gradient_error": "gradient_error"}),
        "error": " | ".join(error.message for error in arm.errors),
    }


def _case_row(comparison: Comparison, arm: ArmSummary, case: Case) -> dict[str, Any]:
    figures = arm.case(case.name)
    return {
        **_identity(comparison, arm),
        "case": case.name,
        **_read(case, _alike("operation", "message_bytes")),
        "not_offered": figures.not_offered,
        **_read(comparison.result(arm.name, case.name), RATIO),
        **_read(figures, CASE | (_bounded("samples_per_s", "samples_per_s") if case.samples else {})),
        **_read(arm.parity, {"parity_passed": "passed"}),
        "error": " | ".join(error.message for error in arm.errors),
    }


def _study_row(study: Study, point: StudyPoint, arm: ArmSummary) -> dict[str, Any]:
    result = point.result(arm.name)
    return {
        "point": point.name,
        **_read(point, _alike("world_size", "hosts", "local_batch_size")),
        **_read(arm, {"arm": "name"} | _alike("role", "status")),
        **_read(result, RATIO),
        **_read(arm, _bounded(f"throughput_{study.sample_unit}_per_s", "throughput_per_s") | _bounded("speed_up", "speed_up")),
        **_read(arm, SCALING | TERM_COLUMNS | RESOURCES),
        **_read(result, MEMORY_RATIO),
        "link_sent_bytes_per_step": max((link.sent_bytes for link in arm.links), default=None),
        "link_needed_bytes_per_step": max((link.needed_bytes for link in arm.links), default=None),
        "error": " | ".join(error.message for error in arm.errors),
    }


def _identity(comparison: Comparison, arm: ArmSummary) -> dict[str, Any]:
    """Columns that say what the arm is."""
    where = {"world_size": arm.world_size, "hosts": " ".join(comparison.hosts)}
    options = {"options": json.dumps(arm.options, sort_keys=True)}
    return _read(comparison, _alike("comparison_id", "workload")) | where | _read(arm, IDENTITY) | options


def _equality(equality: Equality, arm: str) -> dict[str, Any]:
    """Whether a script trains as the baseline, as columns; empty ones for the baseline."""
    found = {name: getattr(equality, name).get(arm) for name in ("start", "gradients", "parameters", "loss")}
    columns = {name: f"{name}.verdict" for name in ("start", "gradients", "parameters")}
    columns |= {"first_difference_step": "parameters.first_difference_step", "loss": "loss.verdict"}
    return _read(found, columns | _bounded("loss_difference", "loss.difference"))


class JsonReport(Report):
    """Everything that the other reports show, unrounded; ``reports.schema.Comparison`` reads it."""

    file_name = "comparison.json"

    def render(self, summary: Comparison | Study) -> bytes:
        return (summary.model_dump_json(indent=1) + "\n").encode()


class CurvesReport(Report):
    """For spreadsheets and data frames; an empty field means that there is no such figure."""

    file_name = "curves.csv"

    def render(self, summary: Comparison | Study) -> bytes | None:
        if isinstance(summary, Study) or summary.training is None:
            return None
        columns = ["comparison_id", "arm", "seed", "launch", "finished", "epochs_done", "train_s", *QUANTITIES]
        rows = [
            {
                "comparison_id": summary.comparison_id,
                "arm": arm.name,
                **curve.model_dump(include={"seed", "launch", "finished"}),
                "epochs_done": epoch + 1,
                "train_s": train_s,
                **{quantity: curve.figures[quantity][epoch] for quantity in QUANTITIES},
            }
            for arm in summary.training.arms
            for curve in arm.by_seed
            for epoch, train_s in enumerate(curve.train_s)
        ]
        return csv_bytes(columns, rows)
