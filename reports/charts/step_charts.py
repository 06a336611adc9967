"""The charts of why: what a step is made of, how it differs from the baseline, and a traced step rank by rank."""

from __future__ import annotations

import itertools

from reports.charts.frame import Figure, arm_layout, bar_layout, bars
from reports.conclusions.step_terms import TERMS
from reports.schema import ArmSummary, Comparison, Estimate, RatioSummary, TracedArm
from reports.wording.causes import TERM_NAMES
from reports.wording.formatting import PHASE_NAMES, bounds_text, milliseconds


def terms_chart(comparison: Comparison) -> Figure | None:
    """One stacked bar per arm; a term that no arm has is left out, a part below 0 goes left."""
    found = {arm.name: arm.step_terms_s for arm in comparison.arms if arm.step_terms_s}
    by_term = {term: [terms.of(term) for terms in found.values()] for term in TERMS}
    traces = [
        bars(
            name=TERM_NAMES[term],
            y=list(found),
            x=[1e3 * value.value if value else 0.0 for value in values],
            colour=f"@term-{number}",
            hover=f"%{{y}}, {TERM_NAMES[term]}: %{{x:.2f}} ms",
        )
        for number, (term, values) in enumerate(by_term.items())
        if any(values)
    ]
    layout = bar_layout(len(found), "ms per step", barmode="relative", bargap=0.35)
    return {"data": traces, "layout": layout} if found else None


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
    trace = bars(
        y=names,
        base=[0.0, *itertools.accumulate(values[:-1]), 0.0],
        x=[*values, total],
        text=[f"{value:+.2f}" for value in (*values, total)],
        textposition="outside",
        cliponaxis=False,
        customdata=[*map(_bounds, found.values()), ""],
        colour=[*("@slower" if value > 0 else "@faster" for value in values), "@muted"],
        hover="%{y}: %{text} ms%{customdata}",
    )
    layout = arm_layout(len(names), "ms per step")
    ends = [0.0, total, *itertools.accumulate(values)]
    room = 0.3 * (max(ends) - min(ends)) or 1.0  # for what stands beside the bars
    layout["xaxis"] |= {"zeroline": True, "range": [min(ends) - room, max(ends) + room]}
    layout |= {"bargap": 0.35}
    return {"data": [trace], "layout": layout}


def _bounds(difference: Estimate) -> str:
    bounds = bounds_text(difference.ci_low, difference.ci_high, milliseconds, none="")
    return f" ({bounds})" if bounds else ""


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
    drawn = [bar for arm in arms for bar in [*_traced(arm), *_terms(comparison.arm(arm.arm))]]
    rows = list(dict.fromkeys(bar[0] for bar in drawn))
    colours = {name: f"@arm-{number}" for number, name in enumerate(PHASE_NAMES.values())}
    colours |= {EXCHANGE: "@term-4"} | {TERM_NAMES[term]: f"@term-{number}" for number, term in enumerate(TERMS)}
    layout = bar_layout(len(rows), "ms from the step's begin", barmode="overlay", bargap=0.25)
    layout["yaxis"] |= {"categoryorder": "array", "categoryarray": rows}
    used = {bar[1] for bar in drawn}
    return {"data": [_trace(name, colour, drawn) for name, colour in colours.items() if name in used], "layout": layout}


def _trace(name: str, colour: str, drawn: list[Bar]) -> Figure:
    rows, _, begins, lengths, told = zip(*(bar for bar in drawn if bar[1] == name), strict=True)
    edge = {"color": colour, "line": {"color": "@background", "width": 1}}
    hover = f"{name}: %{{x:.2f}} ms%{{customdata}}"
    return bars(name=name, y=rows, base=begins, x=lengths, customdata=told, colour=colour, hover=hover, marker=edge)


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
