"""``ringside history``: the table of a plan's results over time, and a page with charts that links each result's own report."""

from __future__ import annotations

import html
import os
from pathlib import Path

from reports.charts.frame import Figure, arm_style, curve_layout, error_bars, line, rule
from reports.formats.html import render_page
from reports.regressions.history import OVER, History
from reports.tables.table import Entry, Table, columns, row
from reports.wording.formatting import percent, rate, ratio

HEIGHT_PX = 340


def headline(history: History) -> str:
    """How many results there are, and the latest change of a level."""
    dates = history.dates
    found = f"{len(dates)} results of {history.last.found.name} from {dates[0][:10]} to {dates[-1][:10]}"
    at = max((at for at, levels in enumerate(history.levels) if levels), default=None)
    if at is None:
        return f"{found}: no level changed beyond chance"
    return f"{found}: the last change of a level came on {dates[at]}: {', '.join(history.levels[at].values())}"


def method(history: History) -> list[str]:
    """How it is made, a sentence an entry, without its full stop."""
    measure = history.last.measured.plan.measurement
    return [
        "A level changes where the means of the results before and after differ by more than chance (Worsley's test, then again on "
        f"either side), with {percent(measure.confidence)} for all figures and places together",
        "What varies between results counts as chance, the machine's drift from day to day included; four results are the fewest",
        f"Changes below {percent(measure.noise_threshold)} are not marked",
        "Bars are the intervals of single results; two are held against each other by ringside report NEW --against OLD",
    ]


def history_table(history: History) -> Table:
    """A row for each result, the earliest first."""
    unit = history.last.found.sample_unit
    titles = {name: name if OVER in name else f"{name}, {unit}/s" for name in history.figures}
    made = columns({"date": "date", **titles, "changed": "changed"}, numeric=titles, wraps=["changed"])
    rows = []
    for at, date in enumerate(history.dates):
        known = {name: series[at] for name, series in history.figures.items()}
        shown = {name: ratio(one.value if one else None) if OVER in name else rate(one) for name, one in known.items()}
        told = [*(f"level: {words}" for words in history.levels[at].values()), history.environments[at]]
        changed = Entry(text="; ".join(filter(None, told)), kind="undecided" if history.levels[at] else "plain")
        rows.append(row({"date": date, **shown, "changed": changed}))
    return Table(columns=made, rows=rows)


def history_page(history: History, place: Path) -> bytes:
    """UTF-8 HTML of about 0.6 MB, nearly all of it Plotly; ``place``: where it will lie, for its links."""
    found = history.last.found
    figures = {"throughput": _chart(history, f"{html.escape(found.sample_unit)}/s", are_ratios=False)}
    if found.results:
        figures["ratios"] = _chart(history, f"ratio to {html.escape(found.baseline)}", are_ratios=True)
    reports = [os.path.relpath(one.measured.folder.root / "report.html", place.parent) for one in history.results]
    return render_page(
        "history.html.j2",
        figures=figures,
        name=found.name,
        headline=headline(history),
        table=history_table(history),
        links=list(zip(history.dates, (Path(path).as_posix() for path in reports), strict=True)),
        method=method(history),
    )


def _chart(history: History, title: str, *, are_ratios: bool) -> Figure:
    """A line with intervals for each figure; an upright rule before each result with which a level changes."""
    layout, dates, traces = curve_layout(HEIGHT_PX, "", title), history.dates, []
    layout["margin"]["t"] = 40
    layout["xaxis"] |= {"tickvals": list(range(len(dates))), "ticktext": dates}
    for name in (name for name in history.figures if (OVER in name) == are_ratios):
        known = [(at, one) for at, one in enumerate(history.figures[name]) if one is not None]
        for at in (at for at, levels in enumerate(history.levels) if name in levels):
            rule(layout, x=at - 0.5, colour="@muted", dash="dash")
        traces.append(
            line(
                name=name,
                x=[at for at, _ in known],
                y=[one.value for _, one in known],
                error_y=error_bars([one for _, one in known], thickness=1.2, width=4),
                customdata=[dates[at] for at, _ in known],
                style=arm_style(history.last.found, name.partition(OVER)[0]),
                marker={"size": 7},
                hover=f"{name}, %{{customdata}}: %{{y:.4~g}}",
            )
        )
    return {"data": traces, "layout": layout}
