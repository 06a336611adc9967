"""Texts from templates: the method, what figures mean, sections with their tables and captions; and
the Markdown made of them.

report.md is the first screen and all else folded by question; pull-request.md is the first screen
as a comment. junit.xml is for programs that show or gate on test results.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple
from xml.sax import saxutils

from jinja2 import Environment, PackageLoader, StrictUndefined

from measurement.conditions.differences import Difference
from measurement.errors import in_report
from measurement.records.record import GATE_STEPS
from reports.base import Report
from reports.conclusions import disturbances
from reports.conclusions.step_terms import LIMIT
from reports.conclusions.training_results import MIN_SEEDS
from reports.conclusions.verdict import LOAD_POWER
from reports.schema import Comparison
from reports.statistics.budget import PILOTS
from reports.tables import arm_tables, figures
from reports.tables import sections as section_tables
from reports.tables.arm_tables import POINT, against_table, differences_table
from reports.tables.figures import arm_rows
from reports.tables.sections import ARM_TABLES, resource_table, what_if_table
from reports.tables.table import Table, table
from reports.wording import comparison_sentences, formatting
from reports.wording.first_screen import MAX_LINES, first_screen

SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#&~$"})


def method(shown: Comparison) -> list[str]:
    """The method section of a report, one paragraph an entry."""
    constants = {
        "gate_steps": GATE_STEPS,
        "pilots": PILOTS,
        "limit": LIMIT,
        "load_power": LOAD_POWER,
        "fewest_seeds": MIN_SEEDS,
    }
    paragraphs = re.split(
        r"\n\s*\n", render_text("method.md.j2", c=shown, d=disturbances, **constants).strip()
    )
    return [paragraph.replace("\n", " ") for paragraph in paragraphs]


def render_text(template: str, **shown: Any) -> str:
    """A template filled.

    What comes from users and programs it passes through its filter ``md``, which is ``escape``.
    """
    return _texts().get_template(template).render(shown)


def caption(name: str, shown: Comparison) -> str:
    """What the figures of a section mean, without a full stop; empty where they say it
    themselves.
    """
    macro = getattr(_texts().get_template("captions.md.j2").module, name, None)
    return macro(shown).strip().replace("\n", " ") if macro else ""


@cache
def templates(*, autoescape: bool) -> Environment:
    """Where templates are found. Strict Jinja: a name that is not known is an error."""
    environment = Environment(
        loader=PackageLoader("reports.formats"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "q": formatting,
        "tables": arm_tables,
        "of_points": comparison_sentences,
        "arm_rows": arm_rows,
        "caption": caption,
        "most_lines": MAX_LINES,
    }
    return environment


@cache
def _texts() -> Environment:
    texts = templates(autoescape=False)
    texts.filters |= {
        "md": escape,
        "xml": lambda text: saxutils.escape(in_report(str(text)), {'"': "&quot;"}),
    }
    texts.globals |= {"limits": section_tables}
    return texts


def escape(text: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    flat = " ".join(in_report(str(text)).split()).translate(SPECIAL)
    return flat.replace("://", ":\\/\\/")


class Section(NamedTuple):
    """A table with its heading; without one it continues the section before."""

    title: str
    table: Table
    caption: str
    """What the figures mean, without a full stop."""


def sections(c: Comparison) -> dict[str, Section]:
    """Those that have rows, by name, after the tables of the answer itself."""
    by_arm = {
        name: (arm_table.title, table([POINT, *arm_table.columns], arm_rows(c, arm_table.each)))
        for name, arm_table in ARM_TABLES.items()
    }
    made = by_arm | {
        "against": (f"Against {c.against.comparison_id}" if c.against else "", against_table(c)),
        "differences": (
            "What the arms do differently",
            differences_table(_differences(c, is_folded=False)),
        ),
        "notes": ("", differences_table(_differences(c, is_folded=True), in_words=False)),
        "what_if": ("Without one cause of lost time", what_if_table(c)),
        "resources": ("Per device, memory, energy", resource_table(c)),
    }
    return {
        name: Section(title, shown, caption(name, c))
        for name, (title, shown) in made.items()
        if shown.rows
    }


def _differences(c: Comparison, *, is_folded: bool) -> dict[str, list[Difference]]:
    """By point; those that a reader must know, or the notes that nobody asked for."""
    return {
        place: [row for row in point.differences if (row.is_note and not row.is_asked) == is_folded]
        for place, point in c.places.items()
    }


def content(shown: Comparison) -> dict[str, Any]:
    """What the templates of the page and of Markdown are filled with."""
    return {
        "c": shown,
        "screen": first_screen(shown),
        "method": method(shown),
        "sections": sections(shown),
    }


JOBS = (
    "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}",
    "{CI_JOB_URL}/artifacts/browse",
)
"""Where the files of a job are seen, by the variables of GitHub Actions and of GitLab."""
NOT_IN_MARKERS = re.compile(r"[^\w.+-]")


class MarkdownReport(Report):
    """GitHub's Markdown; what came from users and programs is escaped."""

    file_name = "report.md"

    def render(self, summary: Comparison) -> bytes:
        """The first screen in ten lines for three arms, then a fold for each question."""
        return render_text("report.md.j2", **content(summary)).encode()


class PullRequestReport(Report):
    """Markdown of GitHub and GitLab.

    Its first line is an invisible comment, the same for every result of a plan.
    """

    file_name = "pull-request.md"
    is_customary = False

    def render(self, summary: Comparison) -> bytes:
        """Some 15 lines."""
        return render_text(
            "pull-request.md.j2",
            c=summary,
            screen=first_screen(summary),
            against=summary.against,
            marker=NOT_IN_MARKERS.sub("_", summary.name),
            link=summary.link or _job(),
        ).encode()


def _job() -> str | None:
    """The page of the job that runs this; None outside of CI."""
    for page in JOBS:
        with suppress(KeyError):
            return page.format_map(os.environ)
    return None


class JunitReport(Report):
    """A candidate that failed or computed wrongly is a failure; its ratio is in the test case's
    properties.

    The baseline is a test case, too, if it is not ok, since nothing was compared then. A slower
    candidate is no failure: what to do about a ratio is for the reader to decide. Changes since an
    earlier result are another suite: every throughput and every ratio is a test case, and a failure
    where it lost more than was allowed.
    """

    file_name = "junit.xml"
    is_customary = False

    def render(self, summary: Comparison) -> bytes:
        shown = [
            row
            for row in arm_rows(summary, by_case=True)
            if row.arm.role == "candidate"
            or (row.arm.role == "baseline" and row.arm.status != "ok")
        ]
        suites = {
            ".".join(filter(None, [summary.name, place])): [
                row for row in shown if row.place == place
            ]
            for place in summary.places
        }
        return render_text(
            "junit.xml.j2", c=summary, suites=suites, figures=figures, columns=figures.columns
        ).encode()
