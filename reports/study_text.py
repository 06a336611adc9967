"""A study's tables, and its reports in text: comparison.json, report.md, report.csv, the terminal."""

from __future__ import annotations

import csv
import io
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from reports.links import LINK_HEADER, link_caption, link_rows
from reports.markdown import escape, table
from reports.quantities import NONE, exposed, interval, percent, rate, ratio, with_interval
from reports.schema import ArmSummary, Estimate
from reports.study_schema import Study, StudyPoint
from reports.study_wording import cause_of
from reports.table import estimate_columns, ratio_columns
from reports.terminal import STYLES, verdict_word

METHOD = (
    "Each point is a comparison of its own by the whole method, with its own launches, control and parity gate; its report lies in "
    "points/NAME/. Ratios and verdicts are between arms that took turns at the same point.",
    "Speed-up: throughput over that of the baseline named beside it. Efficiency: speed-up over how many times the ranks. Points "
    "are measured one after another, so these, unlike the ratios, hold the machine's drift between points.",
    "Weak scaling: the batch of each rank is the same at all points. Strong scaling: the global batch is.",
    "Fastest: the candidate that is faster than the baseline by most. Candidates are not held against each other.",
)
SCALING = ("speed-up", "efficiency")
WORDS = ("point", "arm", "status", "verdict")
"""Columns that hold no figures."""


def study_json(study: Study) -> bytes:
    """Everything that the others show, unrounded."""
    return (study.model_dump_json(indent=1) + "\n").encode()


def points_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """What the points are."""
    header = ["point", "ranks", "hosts", "link rate", "batch per rank", "global batch", "its answer"]
    rows = [
        [
            point.name,
            str(point.world_size),
            point.hosts or "this machine",
            point.link_rate or ("as it is" if point.hosts else NONE),
            str(point.local_batch_size),
            str(point.global_batch_size),
            point.cause or point.headline or "not measured",
        ]
        for point in study.points
    ]
    return header, rows


def results_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """Every arm at every point; where there are no figures, why. Without scaling where all points have as many ranks."""
    unit = f"{study.sample_unit}/s"
    header = ["point", "arm", "status", unit, *SCALING, "ratio", interval_title(study), "verdict", "exposed ms", "cause"]
    rows = [_result_row(point, arm) for point in study.points for arm in point.arms]
    if bases(study):
        return header, rows
    kept = [index for index, title in enumerate(header) if title not in SCALING]
    return [header[index] for index in kept], [[row[index] for index in kept] for row in rows]


def interval_title(study: Study) -> str:
    """The column of the ratios' intervals."""
    return f"{percent(study.confidence)} interval"


def _result_row(point: StudyPoint, arm: ArmSummary) -> list[str]:
    result = point.result(arm.name)
    word = verdict_word(result) if result or arm.role == "baseline" else ""
    return [
        point.name,
        arm.name,
        arm.status,
        rate(arm.throughput_per_s),
        speed_up_words(arm.speed_up),
        NONE if arm.scaling_efficiency is None else f"{arm.scaling_efficiency:.0%}",
        ratio(result.throughput_ratio) if result else "",
        interval(result) if result else "",
        word,
        exposed(arm.exposed_comm_s),
        cause_of(arm),
    ]


def speed_up_words(estimate: Estimate | None) -> str:
    """A speed-up with its interval."""
    return with_interval(estimate, "{:.2f}".format)


def bases(study: Study) -> list[str]:
    """What each arm's scaling is relative to, one line each."""
    found = {arm.name: arm.scaling_baseline for point in study.points for arm in point.arms if arm.scaling_baseline}
    return [f"{arm}: relative to {base}" for arm, base in found.items()]


def links_table(study: Study) -> tuple[list[str], list[list[str]]]:
    """Bytes per link at every point of a lab."""
    rows = [[point.name, *row] for point in study.points for row in link_rows(point.arms)]
    return ["point", *LINK_HEADER], rows


def links_caption(study: Study) -> str:
    """What those figures mean."""
    return link_caption([arm for point in study.points for arm in point.arms])


def study_markdown(study: Study) -> bytes:
    """The answer, the tables, the method."""
    links = links_table(study)
    parts = [
        f"**{escape(study.headline)}.**\n",
        *(f"- {escape(line)}" for line in study.findings),
        *(f"- Note: {escape(line)}" for line in study.warnings),
        "\n## Results\n",
        *_escaped(results_table(study)),
        "",
        *(f"- {escape(line)}" for line in bases(study)),
        "\n## Points\n",
        *_escaped(points_table(study)),
        *(["\n## Bytes per link\n", f"{escape(links_caption(study))}.\n", *_escaped(links)] if links[1] else []),
        "\n## How to read it\n",
        *(f"- {escape(line)}" for line in METHOD),
        "",
    ]
    return "\n".join(parts).encode()


def _escaped(made: tuple[list[str], list[list[str]]]) -> list[str]:
    header, rows = made
    return table([escape(cell) for cell in header], [[escape(cell) for cell in row] for row in rows])


def study_csv(study: Study) -> bytes:
    """One row for each arm at each point, units in the column names."""
    rows = [_csv_row(study, point, arm) for point in study.points for arm in point.arms]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _csv_row(study: Study, point: StudyPoint, arm: ArmSummary) -> dict[str, Any]:
    return {
        "point": point.name,
        "world_size": point.world_size,
        "hosts": point.hosts,
        "link_rate": point.link_rate,
        "local_batch_size": point.local_batch_size,
        "arm": arm.name,
        "role": arm.role,
        "status": arm.status,
        **ratio_columns(point.result(arm.name)),
        **estimate_columns(f"throughput_{study.sample_unit}_per_s", arm.throughput_per_s),
        **estimate_columns("speed_up", arm.speed_up),
        "scaling_efficiency": arm.scaling_efficiency,
        "scaling_baseline": arm.scaling_baseline,
        **estimate_columns("exposed_comm_s", arm.exposed_comm_s),
        **{f"link_{way}_bytes_per_step": _most(arm, way) for way in ("sent", "needed")},
        "error": " | ".join(error.message for error in arm.errors),
    }


def _most(arm: ArmSummary, way: str) -> float | None:
    """Of the host that sends most."""
    return max((getattr(link, f"{way}_bytes") for link in arm.links), default=None)


def study_table(study: Study) -> Table:
    """For the terminal: the arms at every point, and below it all findings."""
    header, rows = results_table(study)
    shown = [index for index, title in enumerate(header) if title not in ("cause", interval_title(study))]
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for index in shown:
        made.add_column(Text(header[index]), justify="left" if header[index] in WORDS else "right", no_wrap=True)
    before = None
    for row in rows:
        if before not in (None, row[0]):
            made.add_section()
        texts = [Text(row[index].partition(" (")[0], style=STYLES.get(row[index], "")) for index in shown]
        made.add_row(*([Text(""), *texts[1:]] if before == row[0] else texts))
        before = row[0]
    below = [*study.findings, *study.warnings, *bases(study)]
    made.caption, made.caption_justify = Text("\n".join(below), style="none"), "left"
    return made
