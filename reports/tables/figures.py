"""The registry of figures: where each is read, and its name in CSV files, in tables and in gauges.

A new figure of an arm, a ratio, a case or a change is shown by one entry here. Tables, CSV, gauges,
trackers and JUnit walk these lists. Where a figure that is not stored yet is measured: see
docs/architecture.md.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from measurement.records.record import Case
from reports.conclusions.step_terms import TERMS
from reports.parts_schema import ArmTraining
from reports.schema import ArmSummary, CaseFigures, Comparison, RatioSummary
from reports.wording.causes import TERM_NAMES
from reports.wording.formatting import gibibytes, milliseconds, rate, significant

UNITS = ("bytes_per_second", "samples_per_second", "seconds", "bytes", "joules", "ratio")
BOUNDS = ("ci_low", "ci_high")
Words = Callable[[Any], str]
Path = str | Callable[[Any], Any]
"""Where a figure is read (``figure_at``)."""


class Figure(NamedTuple):
    """One figure, wherever it is shown."""

    name: str = ""
    """Its column in CSV files, with its unit; ``{unit}`` is that of the samples. Empty: there it is
    not."""
    path: Path = ""
    """Where it is in an ``ArmRow``; empty: the field of its name."""
    title: str = ""
    """Its column in the table of its group; empty: it is not in it."""
    words: Words = str
    """How the table writes it."""
    gauge: str = ""
    """Its name in OpenMetrics and trackers, with its unit; empty: there it is not."""
    meaning: str = ""
    """What the gauge's help says."""
    bounded: bool = False
    """Whether it is an estimate."""

    def read(self, source: Any) -> Any:
        """The figure of a row, or of a change; None where there is none."""
        return figure_at(source, self.path or self.name)

    def value(self, source: Any) -> float | None:
        """As a number."""
        read = self.read(source)
        value: float | None = figure_at(read, "value") if self.bounded else read
        return value

    @property
    def unit(self) -> str:
        """The gauge's unit; empty: it has none."""
        return next((unit for unit in UNITS if self.gauge.endswith(unit)), "")


estimate = partial(Figure, bounded=True)
"""A figure with its interval."""


def figure_at(value: Any, path: Path) -> Any:
    """What a function reads, or the value at a path of fields and keys, such as
    ``resources.mfu.value``; None where a part of the path is missing.
    """
    if callable(path):
        return path(value)
    for part in path.split("."):
        if value is None:
            break
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part)
    return value


def columns(figures: Iterable[Figure], source: Any, *, unit: str = "") -> dict[str, Any]:
    """Columns of CSV files; estimates have two more, for their bounds."""
    made: dict[str, Any] = {}
    for figure in figures:
        name = figure.name.format(unit=unit)
        made[name] = figure.value(source)
        made |= {
            f"{name}_{end}": figure_at(figure.read(source), end) for end in BOUNDS if figure.bounded
        }
    return made


class ArmRow(NamedTuple):
    """An arm in one place, beside the baseline; of a micro-benchmark, in one case."""

    summary: Comparison
    place: str
    """The point's name; empty where there is but one."""
    point: Comparison
    arm: ArmSummary
    case: Case | None
    result: RatioSummary | None
    part: Any = None
    """A part of the arm, such as a host; None: the row is of the whole arm."""

    @property
    def figures(self) -> CaseFigures | None:
        """The arm's in the case."""
        return self.arm.case(self.case.name) if self.case else None

    @property
    def training(self) -> ArmTraining | None:
        """How the arm converges."""
        arms = self.point.training.arms if self.point.training else []
        return next((arm for arm in arms if arm.name == self.arm.name), None)

    @property
    def equality(self) -> dict[str, Any]:
        """Whether a script trains as the baseline does; empty for the baseline."""
        judged, arm = self.point.equality, self.arm.name
        return {name: getattr(judged, name).get(arm) for name in JUDGED} if judged else {}


def arm_rows(summary: Comparison, each: Path = "", *, by_case: bool = False) -> list[ArmRow]:
    """All arms, in the plan's order, at each point.

    ``each``: what a row is of. Arms without it have no row; a list gives a row for each part.
    """
    rows = []
    for place, point in summary.places.items():
        cases: Sequence[Case | None] = point.cases if by_case and point.cases else [None]
        for case, arm in itertools.product(cases, point.arms):
            result = point.result(arm.name, case.name if case else None)
            rows.append(ArmRow(summary, place, point, arm, case, result))
    if not each:
        return rows
    parts = [(row, figure_at(row, each)) for row in rows]
    return [
        row._replace(part=part)
        for row, of in parts
        if of
        for part in (of if isinstance(of, list) else [of])
    ]


def _same_names(place: str, *names: str) -> tuple[Figure, ...]:
    """Figures that are called as their fields are."""
    return tuple(Figure(name, f"{place}.{name}") for name in names)


JUDGED = ("start", "gradients", "parameters", "loss")
IDENTITY = (
    *_same_names("summary", "comparison_id", "workload"),
    Figure("arm", "arm.name"),
    *_same_names("arm", "role", "status", "backend", "transport", "launcher", "world_size"),
    Figure("hosts", lambda row: " ".join(row.point.hosts)),
    Figure("local_batch_size", lambda row: row.arm.local_batch_size or row.point.local_batch_size),
    Figure("options", lambda row: json.dumps(row.arm.options, sort_keys=True)),
)
RATIO = (
    Figure("baseline", "result.baseline"),
    Figure(
        "throughput_ratio",
        "result.throughput_ratio",
        gauge="throughput_ratio",
        meaning="The throughput over the baseline's.",
    ),
    Figure(
        "ci_low",
        "result.ci_low",
        gauge="throughput_low_ratio",
        meaning="The lower end of that ratio's interval.",
    ),
    Figure(
        "ci_high",
        "result.ci_high",
        gauge="throughput_high_ratio",
        meaning="The upper end of that ratio's interval.",
    ),
    *_same_names(
        "result",
        "equivalence_low",
        "equivalence_high",
        "confidence",
        "verdict",
        "launches",
        "pairs",
        "more_minutes",
    ),
)
TERM = tuple(
    estimate(
        f"{term}_s",
        f"arm.step_terms_s.{term}",
        TERM_NAMES[term],
        milliseconds,
        f"{term}_seconds",
        f"What a step takes for {term.replace('_', ' ')}.",
    )
    for term in TERMS
)
THROUGHPUT = estimate(
    "throughput_{unit}_per_s",
    "arm.throughput_per_s",
    "{unit}/s",
    rate,
    "throughput_samples_per_second",
    "All samples over all seconds, stalls included.",
)
SPEED = (
    THROUGHPUT,
    *(Figure(f"step_time_p{q}_s", f"arm.step_time_s.p{q}") for q in (5, 25)),
    Figure(
        "step_time_p50_s",
        "arm.step_time_s.p50",
        gauge="step_time_seconds",
        meaning="The median step of the slowest rank.",
    ),
    *(Figure(f"step_time_p{q}_s", f"arm.step_time_s.p{q}") for q in (75, 95)),
)
RESOURCE_COLUMNS = (
    Figure("samples_per_step", "arm.samples_per_step", "samples per step", "{:,}".format),
    Figure("flops_per_sample", "arm.resources.flops_per_sample"),
    estimate(
        "per_device_per_s",
        "arm.resources.per_device_per_s",
        "{unit}/s per {device}",
        rate,
    ),
    estimate(
        "flops_per_device_per_s",
        "arm.resources.flops_per_s",
        "GFLOP/s per {device}",
        lambda flops_per_s: rate(flops_per_s / 1e9),
    ),
    estimate("mfu", "arm.resources.mfu", "MFU", "{:.1%}".format),
    estimate(
        "memory_bytes",
        "arm.resources.memory_bytes",
        "peak GiB",
        lambda size: gibibytes(round(size)),
        "peak_memory_bytes",
        "Peak memory of the rank that takes most, mean over launches.",
    ),
    Figure(
        "energy_per_sample_j",
        "arm.energy_per_sample_j",
        "J per sample",
        significant,
        "energy_per_sample_joules",
        "Energy of all hosts for one sample.",
    ),
)
SPEED_UP = estimate("speed_up", "arm.speed_up", "speed-up", "{:.2f}".format)
EFFICIENCY = estimate(
    "scaling_efficiency",
    "arm.scaling_efficiency",
    "efficiency",
    "{:.0%}".format,
    "scaling_efficiency_ratio",
    "Speed-up over that of the compute units.",
)
TIME_TO_TRAIN = estimate(
    "time_to_train_s",
    "training.time_to_train_s",
    "seconds to {end}, geometric mean",
    "{:.3g}".format,
)
LINKS = (
    Figure(
        "link_sent_bytes_per_step",
        lambda row: max((link.sent_bytes for link in row.arm.links), default=None),
    ),
    Figure(
        "link_needed_bytes_per_step",
        lambda row: max((link.needed_bytes for link in row.arm.links), default=None),
    ),
)
ARM = (
    *SPEED,
    *TERM,
    *RESOURCE_COLUMNS,
    SPEED_UP,
    EFFICIENCY,
    *_same_names("arm", "scaling_baseline"),
    TIME_TO_TRAIN,
    *LINKS,
)
OUTCOME = (
    Figure("parity_passed", "arm.parity.passed"),
    Figure("gradient_error", "arm.parity.gradient_error"),
    Figure("error", lambda row: " | ".join(error.message for error in row.arm.errors)),
)
TRAINING = (
    *_same_names("training", "seeds"),
    estimate("final_top1", "training.final_top1"),
    estimate("final_top1_difference", "training.difference"),
    *_same_names("training", "convergence", "time_to_accuracy_s", "seeds_reached"),
    estimate("time_ratio", "training.time_ratio"),
)
EQUALITY = (
    *(Figure(name, f"equality.{name}.verdict") for name in JUDGED),
    Figure("first_difference_step", "equality.parameters.first_difference_step"),
    estimate("loss_difference", "equality.loss.difference"),
)
CASE = (
    Figure("case", "case.name"),
    *_same_names("case", "operation", "message_bytes"),
    *_same_names("figures", "not_offered"),
    estimate(
        "latency_s",
        "figures.latency_s",
        gauge="latency_seconds",
        meaning="The median time of one message.",
    ),
    estimate("algbw_bytes_per_s", "figures.algbw_bytes_per_s"),
    estimate(
        "busbw_bytes_per_s",
        "figures.busbw_bytes_per_s",
        gauge="busbw_bytes_per_second",
        meaning="Bus bandwidth as in nccl-tests.",
    ),
    estimate(
        "samples_per_s",
        "figures.samples_per_s",
        gauge="loaded_samples_per_second",
        meaning="All ranks' samples over time.",
    ),
)
CHANGE = (
    *map(Figure, ("before", "after", "verdict", "launches_before", "launches_after")),
    estimate(
        "change",
        gauge="change_ratio",
        meaning="The figure over that of the earlier result.",
    ),
    Figure(
        "is_beyond",
        gauge="regressed",
        meaning="1 where the figure lost more than was allowed, else 0.",
    ),
)
OK = Figure(
    path=lambda row: (
        None if row.arm.status == "not at this point" else float(row.arm.status == "ok")
    ),
    gauge="arm_ok",
    meaning="1 where the arm ran and computes as it must, else 0.",
)
VERDICT = Figure(
    path=lambda row: 1.0 if row.result and row.result.throughput_ratio else None,
    gauge="verdict",
    meaning="1 where the label verdict says what came out.",
)
CREATED = Figure(
    path=lambda summary: (
        datetime.fromisoformat(summary.created_at).timestamp() if summary.created_at else None
    ),
    gauge="created_timestamp_seconds",
    meaning="When measuring began, since 1970.",
)
