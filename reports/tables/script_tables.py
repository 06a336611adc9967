"""The tables of scripts: what they do differently, whether they train alike, and the phases of their steps."""

from __future__ import annotations

from collections.abc import Sequence

from reports.conclusions.step_terms import SCRIPT_PHASES
from reports.parts_schema import ConfigurationDifference, Equality, LossEquality, Severity
from reports.schema import ArmSummary, Comparison, Phase
from reports.scripts.script_arms import shown
from reports.tables.table import Entries, Entry, Kind, Table, table
from reports.tables.terms_table import milliseconds_entry
from reports.wording.formatting import NONE, milliseconds

SEVERITY_WORDS: dict[Severity, str] = {
    "mistake": "check this",
    "work": "other work",
    "training": "other training",
    "speed": "speed alone",
    "note": "follows from others",
}
KINDS: dict[str, Kind] = {
    "equal": "same",
    "equal up to rounding": "same",
    "apart": "differs",
    "another start": "differs",
    "no worse": "same",
    "worse": "differs",
    "undecided": "undecided",
    "mistake": "differs",
    "work": "undecided",
}
"""How verdicts and severities look."""
PHASE_TITLES: dict[Phase, str] = {
    "data_wait": "data wait",
    "forward": "forward, all else",
    "backward": "backward, exchange",
    "optimizer": "optimizer",
}
EXCHANGE_TIME = "avg_backward_comm_time"
BESIDE_BACKWARD = "avg_backward_compute_comm_overlap_time"
"""DDP's own counters (``_get_ddp_logging_data``), in ns."""


def differences_table(differences: Sequence[ConfigurationDifference]) -> Table:
    """One row for each field: its value in every arm, and what the difference means. Arms are columns named like them."""
    arms = list(dict.fromkeys(arm for one in differences for arm in one.values))
    rows: list[Entries] = []
    for one in differences:
        values = {arm: shown(one.values[arm]) if arm in one.values else "" for arm in arms}
        work = (", allowed" if one.allowed else ", other work") if one.changes_work and one.severity != "work" else ""
        meaning = Entry(text=f"{SEVERITY_WORDS[one.severity]}{work}", kind=KINDS.get(one.severity, "plain"))
        rows.append({"/field": one.field, **values, "/means": meaning, "/sentence": one.sentence})
    titles = {"/field": "setting", **{arm: arm for arm in arms}, "/means": "", "/sentence": "in words"}
    return table(titles, rows, wraps=titles)


def equality_table(comparison: Comparison) -> Table:
    """One row for each arm but the baseline. No rows without scripts."""
    equality = comparison.equality
    titles = {"arm": "arm", "start": "start", "gradients": "gradients of step 1", "parameters": "parameters", "loss": "loss"}
    rows = [] if equality is None else [_equality_entries(name, equality) for name in equality.start]
    return table(titles, rows, wraps=titles)


def _equality_entries(arm: str, equality: Equality) -> Entries:
    start, gradients, parameters = equality.start[arm], equality.gradients[arm], equality.parameters[arm]
    after = parameters.first_difference_step or len(parameters.distances)
    last = parameters.distances[after - 1] if parameters.distances else None
    steps = f" from step {after} on" if parameters.verdict == "apart" else f" over {after} steps" if after else ""
    return {
        "arm": arm,
        "start": Entry(text=f"{start.verdict}{_distance(start.distance)}", kind=KINDS.get(start.verdict, "plain")),
        "gradients": Entry(text=f"{gradients.verdict}{_distance(gradients.distance)}", kind=KINDS.get(gradients.verdict, "plain")),
        "parameters": Entry(text=f"{parameters.verdict}{steps}{_distance(last)}", kind=KINDS.get(parameters.verdict, "plain")),
        "loss": _loss(equality.loss.get(arm)),
    }


def _distance(value: float | None) -> str:
    return "" if not value else f" ({value:.1e})"


def _loss(loss: LossEquality | None) -> Entry:
    if loss is None or loss.verdict is None:
        return Entry(text=NONE)
    difference = "" if loss.difference is None else f" ({loss.difference.value:+.2%})"
    return Entry(text=f"{loss.verdict}{difference}", kind=KINDS[loss.verdict])


def phases_table(comparison: Comparison) -> Table:
    """One row for each script: mean milliseconds of a step by phase, on the slowest rank. No rows without scripts."""
    titles: dict[str, str] = {"arm": "ms per step", **{phase: PHASE_TITLES[phase] for phase in SCRIPT_PHASES}}
    titles |= {"counted": "exchange by DDP's counters", "gaps": "long gaps"}
    rows: list[Entries] = [
        {"arm": arm.name, "counted": _counted(arm), "gaps": _gaps(arm)}
        | {phase: milliseconds_entry(arm.step_phases_s.get(phase)) for phase in SCRIPT_PHASES}
        for arm in comparison.arms
        if arm.step_phases_s
    ]
    return table(titles, rows, numeric=SCRIPT_PHASES, optional=("counted", "gaps"))


def _counted(arm: ArmSummary) -> str:
    """What DDP says of its exchange, and how much of it lies beside backward."""
    counters = arm.described.get("counters") or {}
    waiting, beside = counters.get(EXCHANGE_TIME), counters.get(BESIDE_BACKWARD)
    if not waiting or beside is None:
        return NONE
    return f"{milliseconds(waiting / 1e9)}, of it {milliseconds(beside / 1e9)} beside backward"


def _gaps(arm: ArmSummary) -> str:
    if arm.gaps is None:
        return NONE
    return f"{arm.gaps.count}, longest {milliseconds(arm.gaps.longest_s)} ms"
