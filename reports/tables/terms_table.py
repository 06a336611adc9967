"""The tables of why: the terms that each arm's step is made of, and who had the core meanwhile."""

from __future__ import annotations

from reports.conclusions.step_terms import TERMS
from reports.schema import Comparison, Estimate
from reports.tables.table import Column, Entry, Row, Table
from reports.wording.causes import TERM_NAMES
from reports.wording.formatting import NONE, milliseconds, with_interval

KINDS = {"sync": "with exchange", "local": "without"}


def terms_table(comparison: Comparison) -> Table:
    """One row per arm that has blocks of both kinds: milliseconds of a step, term by term. No rows where nothing is known."""
    columns = [
        Column(name="arm", title="ms per step"),
        Column(name="step", title="step", numeric=True),
        *(Column(name=term, title=TERM_NAMES[term], numeric=True) for term in TERMS),
    ]
    rows = [
        Row(
            entries={
                "arm": Entry(text=arm.name),
                "step": _entry(arm.step_terms_s.step),
                **{term: _entry(arm.step_terms_s.of(term)) for term in TERMS},
            }
        )
        for arm in comparison.arms
        if arm.step_terms_s
    ]
    return Table(columns=columns, rows=rows)


def threads_table(comparison: Comparison) -> Table:
    """One row per arm and kind of block: what the training thread and the library's threads did in a step, in milliseconds."""
    columns = [
        Column(name="arm", title="ms per step"),
        Column(name="kind", title="blocks"),
        Column(name="running", title="training thread runs", numeric=True),
        Column(name="runnable", title="waits for a core", numeric=True),
        Column(name="library", title="library's threads run", numeric=True),
    ]
    rows = [
        Row(
            entries={
                "arm": Entry(text=arm.name),
                "kind": Entry(text=words),
                "running": _entry(figures.running_s),
                "runnable": _entry(figures.runnable_s),
                "library": _entry(figures.library_s),
            },
            group=arm.name,
        )
        for arm in comparison.arms
        for kind, words in KINDS.items()
        if (figures := arm.threads_s.get(kind)) is not None
    ]
    return Table(columns=columns, rows=rows)


def _entry(estimate: Estimate | None) -> Entry:
    """Milliseconds with their interval; without it where space is short."""
    return Entry(text=with_interval(estimate, milliseconds), short=milliseconds(estimate.value) if estimate else NONE)
