"""The tables of where time goes: step times, terms, threads, the parts of a launch, and what if a cause were gone."""

from __future__ import annotations

from collections.abc import Sequence

from reports.conclusions.step_terms import TERMS
from reports.schema import Comparison, Estimate, WhatIf, WhatIfArm
from reports.tables.table import Entries, Entry, Table, table
from reports.wording.causes import TERM_NAMES
from reports.wording.formatting import NONE, bounds_text, milliseconds, rate, rate_interval, ratio, share, with_interval

MOST_EXCHANGES, MOST_COLLECTIVES = 24, 3
"""How many an arm shows; comparison.json has all."""
KINDS = {"sync": "with exchange", "local": "without"}


def steps_table(comparison: Comparison) -> Table:
    """One row per arm: how long its steps are, and what they wait for."""
    titles = {
        "arm": "arm",
        "median": "step p50 ms",
        "spread": "p5 to p95 ms",
        "shares": "waiting for data, exposed exchange",
    }
    rows = [
        {
            "arm": arm.name,
            "median": milliseconds(arm.step_time_s.get("p50")),
            "spread": bounds_text(arm.step_time_s.get("p5"), arm.step_time_s.get("p95"), milliseconds),
            "shares": f"{share(shares.data_wait)}, {share(shares.exposed_exchange)}" if (shares := arm.step_shares) else NONE,
        }
        for arm in comparison.arms
    ]
    return table(titles, rows)


def terms_table(comparison: Comparison) -> Table:
    """One row per arm that has blocks of both kinds: milliseconds of a step, term by term. No rows where nothing is known."""
    titles: dict[str, str] = {"arm": "ms per step", "step": "step"} | {term: TERM_NAMES[term] for term in TERMS}
    found = {arm.name: arm.step_terms_s for arm in comparison.arms if arm.step_terms_s}
    rows = [
        {"arm": name, "step": milliseconds_entry(terms.step), **{term: milliseconds_entry(terms.of(term)) for term in TERMS}}
        for name, terms in found.items()
    ]
    return table(titles, rows, numeric=("step", *TERMS))


def threads_table(comparison: Comparison) -> Table:
    """One row per arm and kind of block: what the training thread and the library's threads did in a step, in milliseconds."""
    figures = {"running": "training thread runs", "runnable": "waits for a core", "library": "library's threads run"}
    rows = [
        {"arm": arm.name, "kind": words} | {name: milliseconds_entry(getattr(found, f"{name}_s")) for name in figures}
        for arm in comparison.arms
        for kind, words in KINDS.items()
        if (found := arm.threads_s.get(kind)) is not None
    ]
    return table({"arm": "ms per step", "kind": "blocks", **figures}, rows, numeric=figures, group="arm")


def causes_table(comparison: Comparison) -> Table:
    """One row for each specific cause of an arm: its milliseconds, what it moves, and the setting that changes it."""
    titles = {"arm": "arm", "cause": "cause", "time": "ms per step", "term": "within", "moved": "bytes", "setting": "changed by"}
    rows: list[Entries] = [
        {
            "arm": arm.name,
            "cause": one.name if one.count is None else f"{one.name} ({one.count:.0f} a step)",
            "time": milliseconds_entry(one.per_step_s),
            "term": TERM_NAMES[one.term],
            "moved": NONE if one.num_bytes is None else f"{one.num_bytes:,}",
            "setting": one.setting,
        }
        for arm in comparison.arms
        for one in arm.causes
    ]
    return table(titles, rows, numeric=("time", "moved"), wraps=("setting",))


def exchange_table(comparison: Comparison) -> Table:
    """One row for each collective of an arm's traced step, with waiting apart from transfer."""
    figures = {"arrived": "last rank came at ms", "skew": "skew ms", "transfer": "transfer ms"}
    titles = {"arm": "arm", "name": "collective", "size": "bytes", **figures, "last": "last rank"}
    rows = [
        {
            "arm": arm.arm,
            "name": one.name if one.num_tensors is None else f"{one.name}, {one.num_tensors} fused",
            "size": NONE if one.num_bytes is None else f"{one.num_bytes:,}",
            **{name: milliseconds(getattr(one, f"{name}_s")) for name in figures},
            "last": f"rank {one.last_rank} ({one.last_share:.0%} of {arm.steps} steps)",
        }
        for arm in (comparison.traces.arms if comparison.traces else [])
        for one in arm.exchanges[:MOST_EXCHANGES]
    ]
    return table(titles, rows, numeric=("size", *figures), group="arm")


def nccl_table(comparison: Comparison) -> Table:
    """What NCCL chose in the traced launch: a row for each arm that exchanges over it."""
    told = {"version": "NCCL", "network": "network", "connections": "ranks meet by", "channels": "channels"}
    titles = {"arm": "arm", **told, "collectives": "largest collectives"}
    rows = [
        {
            "arm": arm.arm,
            **{name: str(getattr(arm.nccl, name) or NONE) for name in ("version", "network", "channels")},
            "connections": ", ".join(arm.nccl.connections) or NONE,
            "collectives": "; ".join(
                f"{one.operation or 'one'} of {one.num_bytes:,} bytes by {one.algorithm}, {one.protocol}"
                for one in arm.nccl.collectives[:MOST_COLLECTIVES]
            )
            or NONE,
        }
        for arm in (comparison.traces.arms if comparison.traces else [])
        if arm.nccl
    ]
    return table(titles, rows, numeric=("channels",), wraps=("connections", "collectives"))


def milliseconds_entry(estimate: Estimate | None) -> Entry:
    """Milliseconds with their interval."""
    return Entry(text=with_interval(estimate, milliseconds))


def timing_table(comparison: Comparison) -> Table:
    """A row for each part of a launch, and one for all of it."""
    whole = sum(one.seconds for one in comparison.timings)
    parts = [(one.stage, one.part, one.seconds) for one in comparison.timings]
    rows = [
        {"stage": stage, "part": part, "seconds": f"{seconds:.1f}", "share": f"{seconds / whole if whole else 0.0:.0%}"}
        for stage, part, seconds in [*parts, *([("launch", "in all", whole)] if parts else [])]
    ]
    titles = {"stage": "stage", "part": "part", "seconds": "seconds", "share": "share"}
    return table(titles, rows, numeric=("seconds", "share"), group="stage").with_total()


WHAT_IF_TITLES = {
    "scenario": "with",
    "arm": "arm",
    "throughput": "throughput",
    "interval": "interval",
    "gain": "times measured",
    "fastest": "fastest there",
}


def what_if_table(found: Sequence[WhatIf]) -> Table:
    """One row for each scenario and arm; scenarios left out of which nothing is known."""
    rows = [
        {
            "scenario": one.scenario,
            "arm": arm.arm,
            "throughput": rate(arm.throughput_per_s),
            "interval": rate_interval(arm.throughput_per_s),
            "gain": with_interval(arm.gain, ratio),
            "fastest": _leads(one, arm),
        }
        for one in found
        if not one.is_unknown
        for arm in one.arms
    ]
    return table(WHAT_IF_TITLES, rows, numeric=("throughput", "interval", "gain"), wraps=("scenario", "arm"), group="scenario")


def _leads(one: WhatIf, arm: WhatIfArm) -> str:
    """Whether the arm is fastest there."""
    if arm.unknown:
        return f"not known: {arm.unknown}"
    return NONE if arm.arm not in one.fastest else "yes" if len(one.fastest) == 1 else "not told apart"
