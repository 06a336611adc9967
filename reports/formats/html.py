"""report.html: one file that opens offline, the answer first.

Plotly (``plotly/``: its basic bundle 4.1.1, MIT) is inlined once; the page asks the network for nothing. Names, messages and logs
are shown as text, whatever they hold.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from measurement.errors import in_report
from reports.base import Report
from reports.charts.comparison_charts import CURVE_TITLES, charts, curve_name
from reports.charts.frame import Figure
from reports.charts.interval_axis import interval_axis
from reports.charts.study_charts import study_charts
from reports.charts.timeline import pair_stride
from reports.conclusions.study_conclusions import has_own_units
from reports.formats.sections import sections, study_sections
from reports.formats.texts import caption, method, templates
from reports.schema import Comparison, Study
from reports.tables.arm_tables import case_table, outcome_table, points_table, results_table, training_table, verdict_table
from reports.tables.table import Table
from reports.wording import formatting
from reports.wording.first_screen import first_screen
from reports.wording.study_sentences import bases, trained_to

FILES = [
    ("comparison.json", "every figure, for programs"),
    ("report.csv", "a row for each arm"),
    ("plan.yaml", "what was asked"),
    ("manifest.json", "what every rank reported of itself"),
    ("launch-000/", "of each launch and arm: record.json, steps.parquet with every step, logs"),
]
"""What lies beside the page; of standalone runs only what was concluded."""
STUDY_FILES = [*FILES[:4], ("points/", "the folder of each point, a comparison like any other")]


class HtmlReport(Report):
    """A page for people, with charts; light and dark, fit for print."""

    file_name = "report.html"

    def render(self, summary: Comparison | Study) -> bytes:
        """UTF-8 HTML, see ``render_page``."""
        return self._render_study(summary) if isinstance(summary, Study) else self._render_comparison(summary)

    def _render_comparison(self, comparison: Comparison) -> bytes:
        figures, screen = charts(comparison), first_screen(comparison)
        confidence, threshold = (comparison.measurement[name] for name in ("confidence", "noise_threshold"))
        return render_page(
            "report.html.j2",
            figures=figures,
            c=comparison,
            screen=screen,
            axis=interval_axis(screen.candidates, baseline=comparison.baseline, confidence=confidence, threshold=threshold),
            tables=_answer(comparison),
            divide=caption("arms", comparison),
            sections={section.name: section for section in sections(comparison)},
            curve_titles=CURVE_TITLES,
            curve_name=curve_name,
            explained=[r for r in comparison.results if r.role == "candidate" and r.term_differences_s],
            stride=pair_stride(comparison),
            method=method(comparison),
            plain=plain,
            environment=environment_rows(comparison),
            files=FILES[:2] if comparison.runs else FILES,
        )

    def _render_study(self, study: Study) -> bytes:
        figures, screen = study_charts(study), first_screen(study)
        return render_page(
            "study.html.j2",
            figures=figures,
            s=study,
            screen=screen,
            axis=interval_axis(screen.candidates, baseline=study.baseline, confidence=study.confidence),
            files=STUDY_FILES,
            results=results_table(study),
            points=points_table(study),
            sections={section.name: section for section in study_sections(study)},
            bases=bases(study),
            method=method(study),
            trained_to=trained_to(study.target_accuracy),
            has_ideal=has_own_units(study.points),
        )


def _answer(comparison: Comparison) -> dict[str, Table]:
    """The tables that the page shows in a way of their own, by name."""
    if comparison.cases:
        return {"outcomes": outcome_table(comparison), "cases": case_table(comparison)}
    verdicts = {"verdicts": verdict_table(comparison)}
    return verdicts | ({"training": training_table(comparison.training)} if comparison.training else {})


def render_page(template: str, *, figures: Mapping[str, Figure], **shown: Any) -> bytes:
    """A page of about 0.6 MB, most of it Plotly (compressed), which draws the figures. Strict Jinja; everything is escaped."""
    drawn = {"figures": figures, "figures_json": script_json(figures), "plotly": _plotly()}
    pages = templates(autoescape=True)
    pages.finalize = _as_text
    return pages.get_template(template).render(**drawn, **shown).encode()


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


def environment_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Hosts side by side: one row per property that any of them tells."""
    hosts = comparison.environment
    names = dict.fromkeys(name for host in hosts for name, value in host.items() if value not in (None, [], {}))
    return [(name, [plain(host.get(name)) for host in hosts]) for name in names]


def plain(value: Any) -> str:
    """A stored value as one reads it."""
    if value is None:
        return formatting.NONE
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
