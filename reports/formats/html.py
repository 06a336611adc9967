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

from jinja2 import Environment
from markupsafe import Markup

from measurement.errors import in_report
from reports.base import Report
from reports.charts.comparison_charts import CURVE_TITLES, charts, curve_name
from reports.charts.frame import Figure
from reports.charts.interval_axis import interval_axis
from reports.charts.study_charts import study_charts
from reports.charts.timeline import pair_stride
from reports.conclusions.study_conclusions import has_own_units
from reports.formats.texts import content, templates
from reports.schema import Comparison, Study
from reports.wording import formatting

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
        if isinstance(summary, Study):
            return render_page("study.html.j2", figures=study_charts(summary), files=STUDY_FILES, **content(summary))
        files = FILES[:2] if summary.runs else FILES
        return render_page("report.html.j2", figures=charts(summary), files=files, **content(summary))


def render_page(template: str, *, figures: Mapping[str, Figure], **shown: Any) -> bytes:
    """A page of about 0.6 MB, most of it Plotly (compressed), which draws the figures. Strict Jinja; everything is escaped."""
    drawn = {"figures": figures, "figures_json": script_json(figures), "plotly": _plotly()}
    return _pages().get_template(template).render(**drawn, **shown).encode()


@cache
def _pages() -> Environment:
    pages = templates(autoescape=True)
    pages.finalize = _as_text
    used = (curve_name, environment_rows, has_own_units, interval_axis, pair_stride, plain)
    pages.globals |= {function.__name__: function for function in used} | {"curve_titles": CURVE_TITLES}
    return pages


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
