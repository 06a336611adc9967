"""``ringside history``: the table of a plan's results over time, and a page with charts that links each result's own report."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path

from reports.charts.frame import Figure, arm_style, curve_layout, error_bars, line, rule
from reports.estimate import Estimate
from reports.formats.html import headline_parts, render_page
from reports.regressions.history import History
from reports.schema import Comparison
from reports.tables.table import Entry, Row, Table, columns, row
from reports.wording.formatting import NONE, percent, rate, ratio

HEIGHT_PX = 340


def headline(history: History) -> str:
    """How many results there are, and the latest change of a level."""
    first, last = history.results[0], history.results[-1]
    found = f"{len(history.results)} results of {last.found.name} from {first.date[:10]} to {last.date[:10]}"
    places = [one.at for one in history.change_points]
    if not places:
        return f"{found}: no level changed beyond chance"
    return f"{found}: the last change of a level came on {history.results[max(places)].date}: {', '.join(history.marks(max(places)))}"


def method(history: History) -> list[str]:
    """How it is made, a sentence an entry."""
    last = history.results[-1].measured.plan.measurement
    return [
        f"A level changes where the means of the results before and after differ by more than chance, with {percent(last.confidence)} "
        "for all figures and places together (Worsley's test, then again on either side).",
        "What varies between results counts as chance, the machine's drift from day to day included. Four results are the fewest.",
        f"Changes below {percent(last.noise_threshold)} are not marked.",
        "Bars are the intervals of single results, from their launches. To hold two of them against each other: "
        "ringside report NEW --against OLD.",
    ]


def history_table(history: History) -> Table:
    """A row for each result, the earliest first."""
    unit = history.last.sample_unit
    titles = {name: f"{name}, {unit}/s" for name in history.arms} | {name: name for name in history.ratios}
    made = columns({"date": "date", **titles, "changed": "changed"}, numeric=titles, wraps=["changed"])
    return Table(columns=made, rows=[_row(history, index) for index in range(len(history.results))])


def _row(history: History, index: int) -> Row:
    marks = [f"level: {mark}" for mark in history.marks(index)]
    told = [text for text in (*marks, history.environments[index]) if text]
    figures = {name: rate(series[index]) for name, series in history.arms.items()}
    figures |= {name: ratio(one.value if (one := series[index]) else None) for name, series in history.ratios.items()}
    changed = Entry(text="; ".join(told), kind="undecided" if marks else "plain")
    return row({"date": history.results[index].date, **figures, "changed": changed})


def history_page(history: History, place: Path) -> bytes:
    """UTF-8 HTML of about 1.3 MB, nearly all of it Plotly; ``place``: where it will lie, for its links."""
    figures = {"throughput": _chart(history, history.arms, f"{html.escape(history.last.sample_unit)}/s")}
    if history.ratios:
        figures["ratios"] = _chart(history, history.ratios, f"ratio to {history.last.baseline}")
        rule(figures["ratios"]["layout"], y=1)
    return render_page(
        "history.html.j2",
        figures=figures,
        name=history.last.name,
        headline=headline_parts(headline(history)),
        table=history_table(history),
        links=[(one.date, _link(one.measured.folder.root, place)) for one in history.results],
        method=method(history),
    )


def _link(folder: Path, place: Path) -> str:
    return Path(os.path.relpath(folder / "report.html", place.parent)).as_posix()


def _chart(history: History, figures: dict[str, list[Estimate | None]], title: str) -> Figure:
    """A line with intervals for each figure; an upright rule before each result with which a level changes."""
    layout = curve_layout(HEIGHT_PX, "", title)
    layout["margin"]["t"] = 40
    dates = [one.date for one in history.results]
    layout["xaxis"] |= {"tickvals": list(range(len(dates))), "ticktext": dates}
    for at in sorted({one.at for one in history.change_points if one.figure in figures}):
        rule(layout, x=at - 0.5, colour="@muted", dash="dash")
    traces = [_trace(history.last, name, series, dates) for name, series in figures.items()]
    return {"data": traces, "layout": layout}


def _trace(last: Comparison, name: str, series: Sequence[Estimate | None], dates: Sequence[str]) -> Figure:
    known = [(index, one) for index, one in enumerate(series) if one is not None]
    return line(
        name=name,
        x=[index for index, _ in known],
        y=[one.value for _, one in known],
        error_y=error_bars([one for _, one in known], thickness=1.2, width=4),
        customdata=[dates[index] for index, _ in known],
        style=arm_style(last, name.partition(" over ")[0]),
        marker={"size": 7},
        hover=f"{name}, %{{customdata}}: %{{y:.4~g}}",
    )
