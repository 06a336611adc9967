"""report.html: one file that opens offline, the answer first.

Plotly is inlined once; the page asks the network for nothing. Names, messages and logs are shown as text, whatever they hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from reports import quantities
from reports.base import Report
from reports.cells import NO_TIMING, NOT_OFFERED, VERDICTS, tally
from reports.cells_chart import size_text
from reports.cells_table import cell_verdict
from reports.charts import charts
from reports.limits import LIMIT
from reports.links import LINK_HEADER, link_caption, link_rows
from reports.method import method
from reports.pairs_chart import pair_stride
from reports.ranks import rank_caption, rank_rows
from reports.schema import ArmSummary, Comparison
from reports.terminal import note, verdict_word
from reports.training_charts import CURVE_TITLES, curve_name
from reports.training_table import training_header, training_rows
from reports.wording import control_failed


class HtmlReport(Report):
    """A page for people, with charts; light and dark, fit for print."""

    file_name = "report.html"

    def render(self, comparison: Comparison) -> bytes:
        """UTF-8 HTML of about 5 MB, nearly all of it Plotly."""
        page = pages()
        page.globals |= {"tally": tally, "tallied": (*VERDICTS, NOT_OFFERED, NO_TIMING), "size_text": size_text}
        page.globals |= {"cell_verdict": cell_verdict}
        page.globals |= {"rank_rows": rank_rows, "rank_caption": rank_caption}
        page.globals |= {"link_header": LINK_HEADER, "link_rows": link_rows, "link_caption": link_caption}
        page.globals |= {"training_header": training_header, "training_rows": training_rows}
        page.globals |= {"curve_titles": CURVE_TITLES, "curve_name": curve_name}
        figures = charts(comparison)
        text = page.get_template("report.html.j2").render(
            c=comparison,
            failed_control=any(r.role == "control" and not r.case and control_failed(r) for r in comparison.results),
            headline=headline_parts(comparison.headline),
            figures=figures,
            figures_json=script_json(figures),
            limit_share=LIMIT,
            plotly=Markup(get_plotlyjs()),
            stride=pair_stride(comparison),
            method=method(comparison),
            fairness=[fairness_row(entry) for entry in comparison.fairness],
            described=described_rows(comparison.arms),
            environment=environment_rows(comparison),
        )
        return text.encode()


def pages() -> Environment:
    """Jinja, strict and escaping, with what all pages use."""
    page = Environment(
        loader=PackageLoader("reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page.globals |= {"q": quantities, "verdict_word": verdict_word, "note": note}
    return page


def headline_parts(headline: str) -> list[str]:
    """The headline cut before and after its brackets, so that the figures in them can be set smaller."""
    return [part for part in re.split(r"(\([^()]*\)[.,;]?)", f"{headline}.") if part]


def script_json(value: Any) -> Markup:
    """JSON that no text inside can end the script element of."""
    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def fairness_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A field that differs between arms: each value once, with the arms that have it."""
    values = entry.get("values", {})
    arms: dict[str, list[str]] = {}
    for arm, value in values.items() if isinstance(values, Mapping) else []:
        arms.setdefault(plain(value), []).append(str(arm))
    return {"field": entry.get("field", ""), "asked": bool(entry.get("asked")), "values": list(arms.items())}


def described_rows(arms: Sequence[ArmSummary]) -> list[tuple[str, list[str]]]:
    """What each library says is in force: one row per property, one cell per arm."""
    names = dict.fromkeys(name for arm in arms for name in arm.described)
    return [(name, [plain(arm.described[name]) if name in arm.described else "" for arm in arms]) for name in names]


def environment_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Hosts side by side: one row per property that any of them tells."""
    hosts = comparison.environment
    names = dict.fromkeys(name for host in hosts for name, value in host.items() if value not in (None, [], {}))
    return [(name, [plain(host.get(name)) for host in hosts]) for name in names]


def plain(value: Any) -> str:
    """A stored value as one reads it."""
    if value is None:
        return quantities.NONE
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
