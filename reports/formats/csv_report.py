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
from reports.parts_schema import QUANTITIES, ArmTraining, Equality
from reports.schema import ArmSummary, Comparison, Estimate, RatioSummary
from reports.study_schema import Study, StudyPoint


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


def _row(comparison: Comparison, arm: ArmSummary) -> dict[str, Any]:
    return {
        **_arm(comparison, arm),
        **ratio_columns(comparison.result(arm.name)),
        **estimate_columns(f"throughput_{comparison.sample_unit}_per_s", arm.throughput_per_s),
        **{f"step_time_{p}_s": arm.step_time_s.get(p) for p in ("p5", "p25", "p50", "p75", "p95")},
        **{f"phase_{phase}_s": arm.phases_s.get(phase) for phase in PHASES},
        **term_columns(arm),
        "peak_memory_bytes": arm.peak_memory_bytes,
        **resource_columns(arm, comparison.result(arm.name)),
        **(training_columns(comparison.training.arm(arm.name)) if comparison.training else {}),
        **(equality_columns(comparison.equality, arm.name) if comparison.equality else {}),
        **estimate_columns("time_to_train_s", arm.time_to_train_s),
        "scaling_efficiency": arm.scaling_efficiency.value if arm.scaling_efficiency else None,
        "scaling_baseline": arm.scaling_baseline,
        "parity_passed": arm.parity.passed if arm.parity else None,
        "gradient_error": arm.parity.gradient_error if arm.parity else None,
        "error": " | ".join(error.message for error in arm.errors),
    }


def _case_row(comparison: Comparison, arm: ArmSummary, case: Case) -> dict[str, Any]:
    figures = arm.case(case.name)
    return {
        **_arm(comparison, arm),
        "case": case.name,
        "operation": case.operation,
        "message_bytes": case.message_bytes,
        "not_offered": figures.not_offered,
        **ratio_columns(comparison.result(arm.name, case.name)),
        **estimate_columns("latency_s", figures.latency_s),
        **estimate_columns("algbw_bytes_per_s", figures.algbw_bytes_per_s),
        **estimate_columns("busbw_bytes_per_s", figures.busbw_bytes_per_s),
        **(estimate_columns("samples_per_s", figures.samples_per_s) if case.samples else {}),
        "parity_passed": arm.parity.passed if arm.parity else None,
        "error": " | ".join(error.message for error in arm.errors),
    }


def resource_columns(arm: ArmSummary, result: RatioSummary | None) -> dict[str, Any]:
    """Figures per device, and what memory and energy an arm takes, as columns; empty ones where they are not known."""
    own, found = arm.resources, {"flops_per_sample": arm.resources.flops_per_sample if arm.resources else None}
    for name in ("per_device_per_s", "flops_per_s", "mfu", "memory_bytes"):
        found |= estimate_columns("flops_per_device_per_s" if name == "flops_per_s" else name, getattr(own, name, None))
    found["energy_per_sample_j"] = arm.energy_per_sample_j
    return found | estimate_columns("memory_ratio", result.memory_ratio if result else None)


def training_columns(arm: ArmTraining) -> dict[str, Any]:
    """How an arm converges, as columns; its curves are in curves.csv."""
    return {
        "seeds": arm.seeds,
        **estimate_columns("final_top1", arm.final_top1),
        **estimate_columns("final_top1_difference", arm.difference),
        "convergence": arm.convergence,
        "time_to_accuracy_s": arm.time_to_accuracy_s,
        "seeds_reached": arm.seeds_reached,
        **estimate_columns("time_ratio", arm.time_ratio),
    }


def equality_columns(equality: Equality, arm: str) -> dict[str, Any]:
    """Whether a script trains as the baseline, as columns; empty ones for the baseline."""
    compared = arm in equality.start
    loss = equality.loss.get(arm)
    return {
        "start": equality.start[arm].verdict if compared else None,
        "gradients": equality.gradients[arm].verdict if compared else None,
        "parameters": equality.parameters[arm].verdict if compared else None,
        "first_difference_step": equality.parameters[arm].first_difference_step if compared else None,
        "loss": loss.verdict if loss else None,
        **estimate_columns("loss_difference", loss.difference if loss else None),
    }


def _arm(comparison: Comparison, arm: ArmSummary) -> dict[str, Any]:
    """Columns that say what the arm is."""
    return {
        "comparison_id": comparison.comparison_id,
        "workload": comparison.workload,
        "world_size": arm.world_size,
        "hosts": " ".join(comparison.hosts),
        "arm": arm.name,
        "role": arm.role,
        "status": arm.status,
        "backend": arm.backend,
        "transport": arm.transport,
        "launcher": arm.launcher,
        "options": json.dumps(arm.options, sort_keys=True),
    }


def ratio_columns(result: RatioSummary | None) -> dict[str, Any]:
    """A ratio as columns; empty ones for the baseline."""
    fields = (
        "baseline",
        "throughput_ratio",
        "ci_low",
        "ci_high",
        "equivalence_low",
        "equivalence_high",
        "confidence",
        "verdict",
        "launches",
        "pairs",
        "more_minutes",
    )
    return {field: getattr(result, field) if result else None for field in fields}


def estimate_columns(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """A value and its bounds as columns."""
    return {
        name: estimate.value if estimate else None,
        f"{name}_ci_low": estimate.ci_low if estimate else None,
        f"{name}_ci_high": estimate.ci_high if estimate else None,
    }


def _study_row(study: Study, point: StudyPoint, arm: ArmSummary) -> dict[str, Any]:
    return {
        "point": point.name,
        "world_size": point.world_size,
        "hosts": point.hosts,
        "local_batch_size": point.local_batch_size,
        "arm": arm.name,
        "role": arm.role,
        "status": arm.status,
        **ratio_columns(point.result(arm.name)),
        **estimate_columns(f"throughput_{study.sample_unit}_per_s", arm.throughput_per_s),
        **estimate_columns("speed_up", arm.speed_up),
        "scaling_efficiency": arm.scaling_efficiency.value if arm.scaling_efficiency else None,
        "scaling_baseline": arm.scaling_baseline,
        **term_columns(arm),
        "peak_memory_bytes": arm.peak_memory_bytes,
        **resource_columns(arm, point.result(arm.name)),
        "link_sent_bytes_per_step": max((link.sent_bytes for link in arm.links), default=None),
        "link_needed_bytes_per_step": max((link.needed_bytes for link in arm.links), default=None),
        "error": " | ".join(error.message for error in arm.errors),
    }


def term_columns(arm: ArmSummary) -> dict[str, Any]:
    """Each term of the step, with its interval."""
    found = {term: arm.step_terms_s.of(term) if arm.step_terms_s else None for term in TERMS}
    return {name: value for term, one in found.items() for name, value in estimate_columns(f"{term}_s", one).items()}


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
