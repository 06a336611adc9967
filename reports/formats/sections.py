"""The tables of a comparison in the order of its sections, with captions: Markdown and the page walk this one list."""

from __future__ import annotations

from typing import NamedTuple

from reports.formats.texts import caption
from reports.schema import Comparison, Study
from reports.tables.arm_tables import against_table, conditions_table
from reports.tables.machine_tables import link_table, machine_table, rank_table, resource_table
from reports.tables.script_tables import differences_table, equality_table
from reports.tables.step_tables import (
    causes_table,
    exchange_table,
    nccl_table,
    phases_table,
    steps_table,
    terms_table,
    threads_table,
    timing_table,
    what_if_table,
)
from reports.tables.table import Table


class Section(NamedTuple):
    """A table with its heading; without one it continues the section before."""

    name: str
    title: str
    table: Table
    caption: str
    """What the figures mean, without a full stop."""


def sections(c: Comparison) -> list[Section]:
    """Those that have rows, after the tables of the answer itself. Of a micro-benchmark what it took, and the machine."""
    made = [("against", f"Against {c.against.comparison_id}" if c.against else "", against_table(c))]
    if c.are_scripts:
        made += [
            ("equality", "Do they train alike?", equality_table(c)),
            ("phases", "Why", phases_table(c)),
        ]
    made += [
        ("differences", "What the arms do differently", differences_table([one for one in c.differences if not one.is_note])),
        ("notes", "", differences_table([one for one in c.differences if one.is_note])),
    ]
    if not c.cases:
        made += [
            ("conditions", "What each rank ran on", conditions_table(c)),
            *([] if c.are_scripts else [("steps", "Why", steps_table(c))]),
            ("terms", "", terms_table(c)),
            ("causes", "Specific causes", causes_table(c)),
            ("exchanges", "Waiting apart from transfer", exchange_table(c)),
            ("nccl", "What NCCL chose", nccl_table(c)),
            ("threads", "", threads_table(c)),
            ("ranks", "Ranks and hosts", rank_table(c)),
            ("links", "Bytes per link", link_table(c)),
            ("what_if", "Without one cause of lost time", what_if_table(c.what_if)),
        ]
    made += [
        ("resources", "Per device, memory, energy", resource_table(c)),
        ("machine", "The machine beside the ranks", machine_table(c)),
        ("timings", "Where the seconds of a launch go", timing_table(c)),
    ]
    return [Section(name, title, table, caption(name, c)) for name, title, table in made if table.rows]


def study_sections(s: Study) -> list[Section]:
    """Those of a study's arms at all points together, that have rows."""
    made = [("links", "Bytes per link", link_table(s)), ("resources", "", resource_table(s))]
    return [Section(name, title, table, caption(name, s)) for name, title, table in made if table.rows]
