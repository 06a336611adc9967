"""The charts of why: what each arm's step is made of, and from term to term how a candidate's step differs from the baseline's."""

from __future__ import annotations

import itertools

from reports.charts.frame import Figure, arm_layout, stacked_bars
from reports.conclusions.step_terms import TERMS
from reports.schema import Comparison, Estimate, RatioSummary
from reports.wording.causes import TERM_NAMES
from reports.wording.formatting import bounds_text, milliseconds


def terms_chart(comparison: Comparison) -> Figure | None:
    """One stacked bar per arm; a term that no arm has is left out."""
    found = {arm.name: arm.step_terms_s for arm in comparison.arms if arm.step_terms_s}
    by_term = {term: [terms.of(term) for terms in found.values()] for term in TERMS}
    parts = [
        (TERM_NAMES[term], f"@term-{number}", [value.value if value else 0.0 for value in values])
        for number, (term, values) in enumerate(by_term.items())
        if any(values)
    ]
    return stacked_bars(list(found), parts) if found else None


def difference_charts(comparison: Comparison) -> dict[str, Figure]:
    """A waterfall for each candidate with known terms, as ``difference-<number>``."""
    shown = [result for result in comparison.results if result.role == "candidate" and result.term_differences_s]
    return {f"difference-{number}": _waterfall(result) for number, result in enumerate(shown)}


def _waterfall(result: RatioSummary) -> Figure:
    """From the baseline's step to the candidate's: what each term adds, and their sum."""
    found = result.term_differences_s
    names = [*(TERM_NAMES[term] for term in found), "step"]
    values = [1e3 * one.value for one in found.values()]
    total = sum(values)
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "base": [0.0, *itertools.accumulate(values[:-1]), 0.0],
        "x": [*values, total],
        "text": [f"{value:+.2f}" for value in (*values, total)],
        "textposition": "outside",
        "cliponaxis": False,
        "customdata": [*map(_bounds, found.values()), ""],
        "marker": {"color": [*("@slower" if value > 0 else "@faster" for value in values), "@muted"]},
        "hovertemplate": "%{y}: %{text} ms%{customdata}<extra></extra>",
    }
    layout = arm_layout(len(names), "ms per step")
    ends = [0.0, total, *itertools.accumulate(values)]
    room = 0.3 * (max(ends) - min(ends)) or 1.0  # for what stands beside the bars
    layout["xaxis"] |= {"zeroline": True, "range": [min(ends) - room, max(ends) + room]}
    layout |= {"bargap": 0.35}
    return {"data": [trace], "layout": layout}


def _bounds(difference: Estimate) -> str:
    bounds = bounds_text(difference.ci_low, difference.ci_high, milliseconds, none="")
    return f" ({bounds})" if bounds else ""
