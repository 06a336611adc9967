"""Reports that templates make: the page, Markdown, a comment on a pull request, and JUnit's XML.

report.html opens offline: Plotly (``plotly/``: its basic bundle 4.1.1, MIT) is inlined once, and
the page asks the network for nothing. report.md is the first screen and all else folded by
question; pull-request.md is the first screen as a comment. junit.xml is for programs that show or
gate on test results. Names, messages and logs are shown as text, whatever they hold.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax import saxutils

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from measurement.conditions.differences import Difference
from measurement.errors import in_report
from measurement.records.record import GATE_STEPS
from reports.base import Report
from reports.conclusions import machine
from reports.conclusions.ratios import LOAD_POWER
from reports.conclusions.scaling import has_own_units
from reports.conclusions.step_terms import LIMIT
from reports.conclusions.training_results import MIN_SEEDS
from reports.formats.charts import charts
from reports.formats.curves import CURVE_TITLES, MAX_REACH, curve_name, point_charts
from reports.schema import Comparison
from reports.statistics.budget import PILOTS
from reports.tables import Table, arm_tables, figures, table
from reports.tables import sections as section_tables
from reports.tables.arm_tables import POINT, against_table, differences_table
from reports.tables.figures import arm_rows
from reports.tables.sections import ARM_TABLES, resource_table, what_if_table
from reports.wording import comparison_sentences, formatting
from reports.wording.first_screen import MAX_LINES, Candidate, first_screen

SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#&~$"})


def method(shown: Comparison) -> list[str]:
    """The method section of a report, one paragraph an entry."""
    text = render_text(
        "method.md.j2",
        c=shown,
        d=machine,
        gate_steps=GATE_STEPS,
        pilots=PILOTS,
        limit=LIMIT,
        load_power=LOAD_POWER,
        fewest_seeds=MIN_SEEDS,
    )
    return [paragraph.replace("\n", " ") for paragraph in re.split(r"\n\s*\n", text.strip())]


def render_text(template: str, **shown: Any) -> str:
    """A template filled.

    What comes from users and programs it passes through its filter ``md``, which is ``escape``.
    """
    return templates().get_template(template).render(shown)


def caption(name: str, shown: Comparison) -> str:
    """What the figures of a section mean, without a full stop; empty where they say it
    themselves.
    """
    macro = getattr(templates().get_template("captions.md.j2").module, name, None)
    return macro(shown).strip().replace("\n", " ") if macro else ""


@cache
def templates(*, is_page: bool = False) -> Environment:
    """Where templates are found. Strict Jinja: a name that is not known is an error.

    ``is_page``: everything that a template is filled with is escaped for HTML.
    """
    environment = Environment(
        loader=PackageLoader("reports.formats"),
        autoescape=is_page,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_as_text if is_page else None,
    )
    environment.filters |= {
        "md": escape,
        "xml": lambda text: saxutils.escape(in_report(str(text)), {'"': "&quot;"}),
    }
    environment.globals |= {
        "q": formatting,
        "tables": arm_tables,
        "limits": section_tables,
        "figure_lists": figures,
        "of_points": comparison_sentences,
        "arm_rows": arm_rows,
        "caption": caption,
        "most_lines": MAX_LINES,
        "curve_name": curve_name,
        "curve_titles": CURVE_TITLES,
        "has_own_units": has_own_units,
        "interval_axis": interval_axis,
        "plain": formatting.plain,
    }
    return environment


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
        return render_text("junit.xml.j2", c=summary, suites=suites).encode()


class HtmlReport(Report):
    """A page for people, with charts; light and dark, fit for print."""

    file_name = "report.html"

    def render(self, summary: Comparison) -> bytes:
        """A page of about 0.6 MB, most of it Plotly (compressed), which draws the figures.

        Strict Jinja; everything is escaped.
        """
        plots = charts(summary) | point_charts(summary)
        drawn = {"figures": plots, "figures_json": script_json(plots), "plotly": _plotly()}
        return (
            templates(is_page=True)
            .get_template("report.html.j2")
            .render(**drawn, **content(summary))
            .encode()
        )


@cache
def _plotly() -> str:
    """Plotly, compressed, which takes a tenth of a second."""
    plotly = (Path(__file__).parent / "plotly" / "plotly-basic.min.js").read_bytes()
    return b64encode(gzip.compress(plotly, mtime=0)).decode()


def _as_text(value: Any) -> Any:
    """What a page shows of a value; markup of our own stays as it is."""
    return in_report(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def script_json(value: Any) -> str:
    """JSON for a script element; no text in it can end that element."""
    text = json.dumps(_in_figures(value), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _in_figures(value: Any) -> Any:
    if isinstance(value, str):
        return in_report(value)
    if isinstance(value, dict):
        return {key: _in_figures(part) for key, part in value.items()}
    return [_in_figures(part) for part in value] if isinstance(value, list | tuple) else value


TICKS = (
    0.001,
    0.01,
    0.1,
    0.2,
    0.5,
    0.75,
    0.9,
    0.95,
    0.98,
    0.99,
    1,
    1.01,
    1.02,
    1.05,
    1.1,
    1.25,
    1.5,
    2,
    5,
    10,
    100,
    1000,
)
MIN_TICK_DISTANCE = 14.0
"""Ticks are at least so far from each other."""


def interval_axis(candidates: Sequence[Candidate], *, threshold: float) -> dict[str, Any]:
    """The axis that holds all candidates, logarithmic, with 1 on it; intervals that reach far
    beyond the ratios end at its ends. ``threshold``: differences by less are of no practical
    interest.

    Returns:
        Places in percent: ``at_one``, ``band`` (left end and width of what is of no practical
        interest), ``ticks`` with their texts, and ``bars`` by candidate; None: it has no ratio.
    """
    ratios = [candidate.ratio for candidate in candidates if candidate.ratio]
    low, high = min([*ratios, 1.0]), max([*ratios, 1.0])
    bounds = [
        bound for candidate in candidates for bound in (candidate.low, candidate.high) if bound
    ]
    ends = [
        math.log(min(max(end, low / MAX_REACH), high * MAX_REACH))
        for end in (*ratios, *bounds, 1 - threshold, 1.01)
    ]
    first, room = min(ends), 0.06 * (max(ends) - min(ends))
    length = max(ends) - first + 2 * room

    def place(value: float) -> float:
        return round(min(max(100 * (math.log(value) - first + room) / length, 0.0), 100.0), 2)

    def bar(candidate: Candidate) -> dict[str, Any] | None:
        value = candidate.ratio
        if not value:
            return None
        interval = f"interval {candidate.interval}" if candidate.interval else "no interval"
        left, right = place(candidate.low or value), place(candidate.high or value)
        return {
            "dot": place(value),
            "left": left,
            "width": round(max(right - left, 0.3), 2) if candidate.interval else None,
            "text": f"ratio {formatting.ratio(value)}, {interval}",
        }

    ticks: dict[float, str] = {}
    for tick in sorted(TICKS, key=lambda tick: (tick != 1, tick > 1, abs(math.log(tick)))):
        at = place(tick)
        if 4 <= at <= 96 and all(abs(at - other) >= MIN_TICK_DISTANCE for other in ticks):
            ticks[at] = (
                "same" if tick == 1 else f"{tick - 1:+.0%}" if 0.1 < tick < 2 else f"{tick:g}x"
            )
    left, right = place(1 - threshold), place(1 + threshold)
    return {
        "bars": [bar(candidate) for candidate in candidates],
        "ticks": sorted(ticks.items()) if ratios else [],
        "at_one": place(1.0),
        "band": (left, round(right - left, 2)),
    }
