"""report.md, the first screen and all else folded by question; pull-request.md, the first screen as a comment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from measurement.errors import in_report
from reports.base import Report
from reports.schema import ArmSummary, Comparison
from reports.study_schema import Study
from reports.tables.case_tables import case_table, outcome_table
from reports.tables.machine_tables import resource_caption, resource_table
from reports.tables.sections import DIVIDE, Section, sections
from reports.tables.study_tables import points_table, results_table, study_link_caption, study_link_table
from reports.tables.table import Table
from reports.tables.verdict_table import training_table, verdict_table
from reports.wording.first_screen import MOST_LINES, Candidate, FirstScreen, first_screen
from reports.wording.formatting import percent, percent_apart
from reports.wording.method import method
from reports.wording.study_sentences import bases

WHY = ("phases", "steps", "terms", "causes", "exchanges", "nccl", "threads", "ranks", "links")
DIFFERED = ("equality", "differences", "conditions")
SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#&~$"})


class MarkdownReport(Report):
    """GitHub's Markdown; what came from users and programs is escaped."""

    file_name = "report.md"

    def render(self, comparison: Comparison) -> bytes:
        """The first screen in ten lines for three arms, then a fold for each question."""
        found = sections(comparison)
        differed = [*_shown(found, DIFFERED), *_fairness(comparison)]
        sure = [
            *_listed(f"Note: {line}" for line in comparison.warnings),
            *_listed(comparison.sentences),
            *_answer(comparison),
            *_shown(found, ("machine",)),
        ]
        why = [*_listed([comparison.limit] if comparison.limit else []), *_shown(found, WHY)]
        against = [f"**{escape(comparison.against.headline)}.**", ""] if comparison.against else []
        parts = [
            *against,
            *screen_lines(first_screen(comparison), comparison.baseline, comparison.measurement["confidence"]),
            *_fold("What changed?", _shown(found, ("against",))),
            *_fold("What failed?", _errors(comparison.arms)),
            *_fold("Why?", why),
            *_fold("What if?", _shown(found, ("what_if",))),
            *_fold("How sure?", sure),
            *_fold("What does it take?", _shown(found, ("resources",))),
            *_fold("What differed?", differed),
            *_fold("How was it measured?", [*_listed(method(comparison)), *_shown(found, ("timings",))]),
        ]
        return "\n".join([*parts, ""]).encode()

    def render_study(self, study: Study) -> bytes:
        links, resources = study_link_table(study), resource_table(study)
        where = [*_listed(study.findings), "", *markdown_table(results_table(study)), "", *_listed(bases(study))]
        sure = [*_listed(f"Note: {line}" for line in study.warnings), "", *markdown_table(points_table(study))]
        parts = [
            *screen_lines(first_screen(study), study.baseline, study.confidence),
            *_fold("Who is faster where?", where),
            *_fold("Why?", _section("Bytes per link", links, study_link_caption(study)) if links.rows else []),
            *_fold("How sure?", sure),
            *_fold("What does it take?", _section("", resources, resource_caption(study)) if resources.rows else []),
            *_fold("How was it measured?", _listed(method(study))),
        ]
        return "\n".join([*parts, ""]).encode()


def screen_lines(screen: FirstScreen, baseline: str, confidence: float) -> list[str]:
    """The first screen: headline, a row for each candidate, then what was compared, the marks and what to do next."""
    header = ["arm", "verdict", f"against {baseline}", f"{percent(confidence)} interval", "why"]
    rows = [
        [f"{one.arm} {one.point}".strip(), one.verdict, one.percent, one.interval, one.cause]
        for one in screen.candidates[:MOST_LINES]
    ]
    below = [escape(screen.compared), marks_line(screen)]
    below += [f"{escape(line)}." for line in screen.alike]
    below += [f"**Next:** {escape(screen.next_step)}"] if screen.next_step else []
    table = _lines([escape(title) for title in header], [[escape(text) for text in row] for row in rows]) if rows else []
    return [f"**{escape(screen.headline)}.**", "", *table, *([""] if table else []), "<br>\n".join(below)]


def marks_line(screen: FirstScreen) -> str:
    """The marks, each with its word."""
    return " · ".join(f"{'✓' if mark.ok else '⚠'} {escape(mark.name)}: **{escape(mark.word)}**" for mark in screen.marks)


def _fold(question: str, lines: Sequence[str]) -> list[str]:
    """Lines behind a question; nothing without any."""
    return ["", f"<details><summary>{question}</summary>", "", *lines, "", "</details>"] if any(lines) else []


def _listed(sentences: Iterable[str]) -> list[str]:
    return [f"- {escape(sentence)}" for sentence in sentences]


def _shown(found: Sequence[Section], names: Collection[str]) -> list[str]:
    return [line for section in found if section.name in names for line in _section(section.title, section.table, section.caption)]


def escape(text: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    flat = " ".join(in_report(str(text)).split()).translate(SPECIAL)
    return flat.replace("://", ":\\/\\/")


def markdown_table(table: Table) -> list[str]:
    """The lines of a table, everything in it escaped."""
    rows = [[escape(entry.text) for entry in line] for line in table.lines()]
    return _lines([escape(column.title) for column in table.columns], rows)


def _lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose texts are escaped already."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _answer(comparison: Comparison) -> list[str]:
    """The tables of the arms; of a micro-benchmark also one for each operation, sizes down, arms across."""
    if comparison.cases:
        lines = ["\n### Arms\n", *markdown_table(outcome_table(comparison))]
        for operation, table in case_table(comparison).groups().items():
            lines += [f"\n### {escape(operation)}\n", *markdown_table(table)]
        return lines
    convergence = ["\n### Convergence\n", *markdown_table(training_table(comparison.training))] if comparison.training else []
    verdicts = verdict_table(comparison).without("exposed", "pairs", "note")
    return [*convergence, *_section("Arms", verdicts, DIVIDE)]


def _section(title: str, table: Table, caption: str = "") -> list[str]:
    """A heading where there is one, the caption, the table."""
    return [f"\n### {title}\n" if title else "", *([f"{escape(caption)}.\n"] if caption else []), *markdown_table(table)]


def _errors(arms: Sequence[ArmSummary]) -> list[str]:
    lines = []
    for arm in arms:
        for error in arm.errors:
            ranks = f", rank {', '.join(map(str, error.ranks))}" if error.ranks else ""
            lines.append(f"- {escape(arm.name)}, launch {error.launch}{ranks}: {error.status}: {escape(error.message)}")
    return lines


def _fairness(comparison: Comparison) -> list[str]:
    """What the plan did not ask for in full, of the rest the fields."""
    unasked = [entry for entry in comparison.fairness if not entry.get("asked")]
    asked = [escape(entry.get("field", "")) for entry in comparison.fairness if entry.get("asked")]
    rows = [[escape(entry.get("field", "")), escape(_values(entry.get("values")))] for entry in unasked]
    table = ["", *_lines(["field, not asked for", "values"], rows)] if rows else []
    rest = [f"\nAsked for, or come with the arm's library and launcher: {', '.join(asked)}"] if asked else []
    return [*table, *rest]


def _values(values: Any) -> str:
    if not isinstance(values, dict):
        return json.dumps(values)
    return "; ".join(f"{arm}: {value if isinstance(value, str) else json.dumps(value)}" for arm, value in values.items())


JOBS = ("{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}", "{CI_JOB_URL}/artifacts/browse")
"""Where the files of a job are seen, by the variables of GitHub Actions and of GitLab."""
NOT_IN_MARKERS = re.compile(r"[^\w.+-]")


class PullRequestReport(Report):
    """Markdown of GitHub and GitLab. Its first line is a comment that nobody sees, the same for every result of a plan."""

    file_name = "pull-request.md"
    is_customary = False

    def render(self, comparison: Comparison | Study) -> bytes:
        return _text(comparison)

    def render_study(self, study: Study) -> bytes:
        return self.render(study)


def _text(shown: Comparison | Study) -> bytes:
    screen = first_screen(shown)
    against = shown.against if isinstance(shown, Comparison) else None
    changes = {one.arm: one for one in against.changes if one.baseline is None and one.case is None} if against else {}
    rows = [_row(one) for one in screen.candidates[:MOST_LINES]]
    header = ["arm", "verdict", f"against {escape(shown.baseline)}", "interval", "cause", *(["since then"] if changes else [])]
    for row, candidate in zip(rows if changes else [], screen.candidates, strict=False):
        change = changes.get(candidate.arm)
        row.append(escape(f"{change.verdict}: {percent_apart(change.change.value)}") if change else "")
    left, link = len(screen.candidates) - len(rows), shown.link or _job()
    lines = [
        f"<!-- ringside: {NOT_IN_MARKERS.sub('_', shown.name)} -->",
        f"### {escape(against.headline if against else screen.headline)}\n",
        *(f"| {' | '.join(row)} |" for row in ([header, ["---"] * len(header), *rows] if rows else [])),
        "",
        *([f"- and {left} more in the report"] if left > 0 else []),
        *([f"- Now: {escape(screen.headline)}", f"- {escape(against.remedy)}"] if against else []),
        *([f"- {marks_line(screen)}"] if screen.marks else []),
        f"- {escape(screen.compared)}",
        *([f"- Next: {escape(screen.next_step)}"] if screen.next_step else []),
        *([f"- [The whole report](<{link}>)"] if link else []),
        "",
    ]
    return "\n".join(lines).encode()


def _row(candidate: Candidate) -> list[str]:
    ends = [percent_apart(bound) for bound in (candidate.low, candidate.high) if bound is not None]
    arm = f"{candidate.arm} at {candidate.point}" if candidate.point else candidate.arm
    shown = [escape(text) for text in (candidate.verdict, candidate.percent, " to ".join(ends), candidate.cause)]
    return [escape(arm), f"**{shown[0]}**", *shown[1:]]


def _job() -> str | None:
    """The page of the job that runs this; None outside of CI."""
    for page in JOBS:
        try:
            return page.format_map(os.environ)
        except KeyError:
            continue
    return None
