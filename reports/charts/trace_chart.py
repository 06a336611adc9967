"""The picture of a typical step of each arm: phases and collectives rank by rank, and the terms of the timed steps."""

from __future__ import annotations

from reports.charts.frame import HEAD_PX, ROW_PX, Figure, base_layout, legend_above
from reports.conclusions.step_terms import TERMS
from reports.schema import ArmSummary, Comparison, TracedArm
from reports.wording.causes import TERM_NAMES
from reports.wording.formatting import PHASE_NAMES

MOST_RANKS = 4
"""That are drawn of an arm: the first; the viewers' file has all."""
EXCHANGE = "exchange"
Bar = tuple[str, str, float, float, str]
"""Row, name, begin and length in milliseconds, and what stands in the hover besides."""


def trace_chart(comparison: Comparison) -> Figure | None:
    """None without a trace."""
    arms = [arm for arm in (comparison.traces.arms if comparison.traces else []) if arm.typical_step]
    if not arms:
        return None
    bars = [bar for arm in arms for bar in [*_traced(arm), *_terms(comparison.arm(arm.arm))]]
    rows = list(dict.fromkeys(bar[0] for bar in bars))
    colours = {name: f"@arm-{number}" for number, name in enumerate(PHASE_NAMES.values())}
    colours |= {EXCHANGE: "@term-4"} | {TERM_NAMES[term]: f"@term-{number}" for number, term in enumerate(TERMS)}
    layout = base_layout(HEAD_PX + ROW_PX * len(rows) + 24, "ms from the step's begin")
    layout["yaxis"] |= {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": rows,
        "autorange": "reversed",
        "automargin": True,
        "showgrid": False,
    }
    legend_above(layout)
    layout |= {"barmode": "overlay", "bargap": 0.25}
    layout["margin"]["t"] = 34
    used = dict.fromkeys(bar[1] for bar in bars)
    return {"data": [_trace(name, colour, bars) for name, colour in colours.items() if name in used], "layout": layout}


def _trace(name: str, colour: str, bars: list[Bar]) -> Figure:
    own = [bar for bar in bars if bar[1] == name]
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [bar[0] for bar in own],
        "base": [bar[2] for bar in own],
        "x": [bar[3] for bar in own],
        "customdata": [bar[4] for bar in own],
        "marker": {"color": colour, "line": {"color": "@background", "width": 1}},
        "hovertemplate": f"{name}: %{{x:.2f}} ms%{{customdata}}<extra></extra>",
    }


def _traced(arm: TracedArm) -> list[Bar]:
    found: list[Bar] = []
    for rank in sorted({one.rank for one in arm.typical_step})[:MOST_RANKS]:
        for row, label in (("phase", f"{arm.arm}, rank {rank}"), ("exchange", f"{arm.arm}, rank {rank}: exchange")):
            for one in (one for one in arm.typical_step if one.rank == rank and one.row == row):
                name = PHASE_NAMES[one.name] if row == "phase" else EXCHANGE
                told = "" if one.num_bytes is None else f", {one.num_bytes:,} bytes"
                found.append((label, name, one.begin_ns / 1e6, one.length_ns / 1e6, told))
    return found


def _terms(arm: ArmSummary) -> list[Bar]:
    """One after another, as a step of the timed blocks is made of them; what is below 0 is left out."""
    found: list[Bar] = []
    at = 0.0
    for term in TERMS:
        one = arm.step_terms_s.of(term) if arm.step_terms_s else None
        if one is not None and one.value > 0:
            found.append((f"{arm.name}: terms", TERM_NAMES[term], at, 1e3 * one.value, ""))
            at += 1e3 * one.value
    return found
