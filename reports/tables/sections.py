"""The tables of a comparison in the order of its sections: Markdown and the page walk this one list."""

from __future__ import annotations

from typing import NamedTuple

from reports.schema import Comparison
from reports.study_schema import Study
from reports.tables.machine_tables import machine_caption, machine_table, resource_caption, resource_table
from reports.tables.rank_tables import link_caption, link_table, rank_caption, rank_table
from reports.tables.script_tables import differences_table, equality_table, phases_table
from reports.tables.study_tables import study_link_caption, study_link_table
from reports.tables.table import Table
from reports.tables.terms_table import (
    TIMINGS,
    causes_table,
    exchange_table,
    nccl_table,
    steps_table,
    terms_table,
    threads_table,
    timing_table,
    what_if_caption,
    what_if_table,
)
from reports.tables.verdict_table import against_table, conditions_table
from reports.wording.causes import trace_sentence


class Section(NamedTuple):
    """A table with its heading; without one it continues the section before."""

    name: str
    title: str
    table: Table
    caption: str = ""
    """What the figures mean, without a full stop."""


DIVIDE = (
    "Throughput is over all blocks of an arm. The ratio is taken within rounds and launches, where a slow phase of the machine "
    "counts for both, so the throughputs need not divide to it"
)
EQUALITY = (
    "Distances in brackets: of starts and gradients relative to the baseline's, of parameters relative to what the steps changed, "
    "of losses over the later half. The control shows how far the baseline is from itself"
)
DIFFERENCES = "Read in the scripts' first steps, on all ranks of one launch; the most important come first"
CAUSES = "Parts of the terms that a setting changes. Buffers are from timed steps; all others from the trace, under a profiler"
EXCHANGES = (
    "Medians over the traced steps. Skew is from when the first rank had come to a collective to the last, transfer from then "
    "until every rank had its result, Horovod's cycle and negotiation included"
)
NCCL = "By NCCL's log of the traced launch. Where arms differ here, NCCL is set otherwise, and not the library alone"
PHASES = (
    "Mean over launches, on the slowest rank of each step. Phases are what torch's hooks see: the wait for the exchange is part of "
    "backward, in Horovod's scripts too; forward is everything that is in no other phase"
)


def sections(comparison: Comparison) -> list[Section]:
    """Those that have rows, after the tables of the answer itself. Of a micro-benchmark what it took, and the machine."""
    arms = comparison.arms
    against = comparison.against
    said = ". ".join([against.remedy, *against.notes]) if against else ""
    what_if = what_if_table(comparison.what_if), what_if_caption(comparison.what_if)
    resources = resource_table(comparison), resource_caption(comparison)
    made = [
        Section("resources", "Per device, memory, energy", *resources),
        Section("machine", "The machine beside the ranks", machine_table(comparison), machine_caption(arms)),
    ]
    if not comparison.cases:
        made = [
            Section("conditions", "What each rank ran on, and defaults that differ", conditions_table(comparison)),
            Section("steps", "Why", steps_table(comparison)),
            Section("terms", "", terms_table(comparison)),
            Section("causes", "Specific causes", causes_table(comparison), CAUSES),
            Section("exchanges", "Waiting apart from transfer", exchange_table(comparison), _exchange_caption(comparison)),
            Section("nccl", "What NCCL chose", nccl_table(comparison), NCCL),
            Section("threads", "", threads_table(comparison)),
            Section("ranks", "Ranks and hosts", rank_table(comparison), rank_caption(arms, comparison.sample_unit)),
            Section("links", "Bytes per link", link_table(arms), link_caption(arms)),
            Section("what_if", "Without one cause of lost time", *what_if),
            *made,
        ]
    if comparison.are_scripts:
        made = [
            Section("equality", "Do they train alike?", equality_table(comparison), EQUALITY),
            Section(
                "differences",
                "What the scripts do differently",
                differences_table(comparison.configuration_differences),
                DIFFERENCES,
            ),
            Section("phases", "Why", phases_table(comparison), PHASES),
            *(section for section in made if section.name != "steps"),
        ]
    made.append(Section("timings", "Where the seconds of a launch go", timing_table(comparison), TIMINGS))
    made.insert(0, Section("against", f"Against {against.comparison_id}" if against else "", against_table(comparison), said))
    return [section for section in made if section.table.rows]


def study_sections(study: Study) -> list[Section]:
    """Those of a study's arms at all points together, that have rows."""
    links = Section("links", "Bytes per link", study_link_table(study), study_link_caption(study))
    resources = Section("resources", "", resource_table(study), resource_caption(study))
    return [section for section in (links, resources) if section.table.rows]


def _exchange_caption(comparison: Comparison) -> str:
    traced = comparison.traces.arms if comparison.traces else []
    said = (trace_sentence(comparison.arm(one.arm), one.exposed_s) for one in traced)
    return ". ".join([EXCHANGES, *filter(None, said)])
