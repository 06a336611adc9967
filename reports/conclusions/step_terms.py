"""Why: the terms that an arm's mean step is made of, by the same definition whatever the library.

They add up to the step.

Of mean seconds per optimizer step, from blocks of the same launch:

- F, f: a step of the floor, which has no library and waits for nobody, and the data wait in it.
- L, l: the same of the arm's steps without exchange.
- M: of the same steps the slowest rank's, step by step.
- S: the synchronised step: the sum of the blocks' times, each its slowest rank's, over their steps.

The terms:

- ``compute``: F - f, mean over ranks. Without a floor L - l of the typical rank, which then holds
  the library's overhead, too.
- ``data_wait``: l, mean over ranks.
- ``library_overhead``: (L - l) - (F - f) of the typical rank: hooks, wrapper, threads that take the
  core.
- ``imbalance``: M less the three: what is lost because ranks differ, even over a free network.
- ``exposed_exchange``: S - M: what exchange adds; negative where ranks come out of it faster than
  without.

The typical rank is the one in the middle by its mean over all launches, the lower of two: with
means over ranks, half of what one late rank of two takes would be overhead, and only the other half
imbalance. Its floor is that of the same rank, so that a slow core is in both.

One rank exchanges with nobody: there S - L is what the library's calls and copies cost, so it is
overhead, or without a floor computing.

That they add up proves nothing, since it follows from the definitions; that a planted cause moves
its own term does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from measurement.plans.plan import FLOOR
from measurement.records.record import LaunchRecord
from reports.conclusions.machine import THREADS
from reports.conclusions.ranks import before_exchange, find_stragglers
from reports.conclusions.steps import Steps, means_by_rank, tabulate_blocks
from reports.schema import (
    DominantCause,
    Estimate,
    Phase,
    StepShares,
    StepTerms,
    Straggler,
    Term,
    ThreadFigures,
    Verdict,
)
from reports.statistics.student import t_interval

TERMS: tuple[Term, ...] = get_args(Term)[:-1]
SCRIPT_PHASES: tuple[Phase, ...] = get_args(Phase)[:-1]
LEAD_CONFIDENCE = 0.8
"""Confidence that the named term is the largest."""
MIN_TAKEN_BACK = 0.01
"""From this share of a step on, exposed exchange below 0 is no noise."""
LIMIT = 0.25
"""From this share of a step on, a cause is called the bottleneck: without it, throughput would rise
by at least a third."""

Bottleneck = Literal[
    "data_wait", "exposed_exchange", "library_overhead", "imbalance", "computing", "not the input"
]
"""One of ``StepShares``, or none of them: the last one where nothing but the data wait is known."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of every arm of a comparison."""

    by_launch: Mapping[str, pd.DataFrame]
    """By arm (``terms_by_launch``); without the floor and micro-benchmarks."""
    stragglers: Mapping[str, Straggler]
    """By arm, the rank that holds the others up, where one does."""
    phases: Mapping[str, pd.DataFrame]
    """By arm (``phases_by_launch``), of scripts: they have neither a floor nor steps without
    exchange, so no terms."""
    libraries: Mapping[str, Any]
    """By arm, of scripts."""

    @classmethod
    def find(cls, records: Sequence[LaunchRecord], timed: Steps) -> Terms:
        """Take them from the records of all arms, the floor's among them, and their steps that
        count.
        """
        bare = timed.where(arm=FLOOR)
        trained = timed.without_arm(FLOOR).rank_blocks
        arms = trained.loc[trained["case"].isna(), "arm"].unique()
        unlike = {record.arm for record in records if any(rank.owns_step for rank in record.ranks)}
        scripts = {
            record.arm: record.scripts[0].configuration.get("library")
            for record in records
            if record.scripts
        }
        alone = (
            before_exchange(timed.where(kind="sync").rank_blocks)
            if scripts
            else timed.where(kind="local").rank_blocks
        )
        return cls(
            by_launch={
                arm: terms_by_launch(timed.where(arm=arm), None if arm in unlike else bare)
                for arm in arms
            },
            stragglers=find_stragglers(records, alone),
            phases={
                arm: phases_by_launch(timed.where(arm=arm, kind="sync"))
                for arm in arms
                if arm in scripts
            },
            libraries=scripts,
        )

    def difference_fields(
        self, arm: str, copies: Sequence[str], verdict: Verdict, *, confidence: float
    ) -> dict[str, Any]:
        """Fields of ``RatioSummary``: what a candidate's and the baseline's steps differ by, and
        why the verdict is so.
        """
        is_script = arm in self.phases
        tables = self.phases if is_script else self.by_launch
        timed_copies = [copy for copy in copies if copy in tables]
        if arm not in tables or not timed_copies:
            return {}
        ours, theirs = tables[arm], [tables[copy] for copy in timed_copies]
        differences = (
            (ours - _mean_of(theirs)).dropna() if is_script else term_differences(ours, theirs)
        )
        if is_script and self.libraries[arm] != self.libraries[timed_copies[0]]:
            both = differences.pop("backward") + differences.pop("exchange")
            differences = differences.assign(backward_and_exchange=both)
        if not len(differences):
            return {}
        fields: dict[str, Any] = {
            "phase_differences_s" if is_script else "term_differences_s": means(
                differences, confidence=confidence
            )
        }
        if verdict in ("faster", "slower"):
            fields["because"] = dominant_cause(
                differences, slower=verdict == "slower", confidence=confidence
            )
        return fields


def _mean_of(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The mean of an arm and its copies, launch by launch."""
    return pd.concat(tables).groupby(level=0).mean()


def phases_by_launch(sync: Steps) -> pd.DataFrame:
    """Mean seconds of each phase in every launch, of each step's slowest rank: ``SCRIPT_PHASES``,
    which add up to the step.
    """
    names = {f"{phase}_s": phase for phase in SCRIPT_PHASES}
    return sync.slowest.groupby("launch")[list(names)].mean().rename(columns=names)


def terms_by_launch(steps: Steps, floor: Steps | None) -> pd.DataFrame:
    """The terms of an arm in every launch that has blocks of both kinds (and of the floor), and
    what they are made of.

    No ``floor``: there is none, or it cannot be compared with this arm.

    Returns:
        By launch, seconds: ``TERMS`` (``library_overhead`` NaN without a floor) and ``step``;
        ``in_forward``, what forward takes longer with exchange than without, where DDP broadcasts
        buffers.
    """
    sync, local = steps.where(kind="sync"), steps.where(kind="local")
    by_rank = means_by_rank(local.rank_blocks, ["step_s", "data_wait_s", "forward_s"])
    local_means = {name: table.mean(axis="columns") for name, table in by_rank.items()}
    exchanged = means_by_rank(sync.rank_blocks, ["forward_s"])["forward_s"]
    slowest = local.slowest.groupby("launch")["step_s"].mean()
    blocks = tabulate_blocks(sync).groupby("launch")[["block_s", "steps"]].sum()
    # as throughput counts it: a block takes as long as its slowest rank
    step = blocks["block_s"] / blocks["steps"]
    computing = _besides_waiting(local)
    if floor is not None and len(floor):
        bare = _besides_waiting(floor)
        compute, overhead = bare.mean(axis="columns"), _of_typical_rank((computing - bare).dropna())
    else:
        compute, overhead = _of_typical_rank(computing), pd.Series(np.nan, index=computing.index)
    expected = compute + local_means["data_wait_s"] + overhead.fillna(0.0)
    exchange = step - slowest
    if len(by_rank["step_s"].columns) == 1:
        calls, exchange = exchange, 0.0 * exchange
        compute, overhead = compute + calls.where(overhead.isna(), 0.0), overhead + calls
    return pd.DataFrame(
        {
            "compute": compute,
            "data_wait": local_means["data_wait_s"],
            "library_overhead": overhead,
            "imbalance": slowest - expected,
            "exposed_exchange": exchange,
            "step": step,
            "in_forward": exchanged.mean(axis="columns") - local_means["forward_s"],
        }
    ).dropna(subset=["imbalance", "exposed_exchange"])


def _besides_waiting(steps: Steps) -> pd.DataFrame:
    """Mean seconds of a step less its wait for data: launches down, ranks across."""
    times = means_by_rank(steps.rank_blocks, ["step_s", "data_wait_s"])
    return times["step_s"] - times["data_wait_s"]


def _of_typical_rank(table: pd.DataFrame) -> pd.Series:
    """By launch, of the rank in the middle by its mean over launches, the lower of two.

    ``table``: launches down, ranks across.
    """
    if not table.size:
        return pd.Series(dtype="float64")
    typical = table.mean().sort_values(kind="stable").index[(table.shape[1] - 1) // 2]
    seconds: pd.Series = table[typical]
    return seconds


def means(by_launch: pd.DataFrame, *, confidence: float) -> dict[str, Estimate]:
    """The mean over launches of every column that is known of all of them, each with its own
    interval; none without a launch.
    """
    return {
        str(name): estimate
        for name, values in by_launch.items()
        if values.notna().all() and (estimate := t_interval(values, confidence=confidence))
    }


def step_terms(by_launch: pd.DataFrame, *, confidence: float) -> StepTerms | None:
    """The mean over launches of ``terms_by_launch``; None without a launch."""
    return StepTerms(**means(by_launch, confidence=confidence)) if len(by_launch) else None


def term_differences(ours: pd.DataFrame, theirs: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """How much longer each term is in one arm than in another and its copies, whose mean counts, by
    launch.

    Exposed exchange below 0 takes back overhead that only steps without it have, such as a thread
    that polls while there is nothing to exchange. Neither of the two says then what a step loses:
    they are one.

    Returns:
        Columns ``TERMS`` without those that are not known of both: then the library's overhead is
            in ``compute`` of both.
    """
    tables, names = [ours, *theirs], list(TERMS)
    if any(table["library_overhead"].isna().all() for table in tables):
        names.remove("library_overhead")
        tables = [
            table.assign(compute=table["compute"] + table["library_overhead"].fillna(0.0))
            for table in tables
        ]
    baseline = _mean_of(tables[1:])
    differences: pd.DataFrame = (tables[0][names] - baseline[names]).dropna()
    if "library_overhead" in names and any(
        table["exposed_exchange"].mean() < -MIN_TAKEN_BACK * table["step"].mean()
        for table in (tables[0], baseline)
    ):
        both = differences.pop("library_overhead") + differences.pop("exposed_exchange")
        differences = differences.assign(overhead_and_exchange=both)
    return differences


def dominant_cause(
    differences: pd.DataFrame, *, slower: bool, confidence: float
) -> DominantCause | None:
    """The term that makes an arm slower, or faster; None where none does by itself.

    Its interval excludes 0, and it exceeds the second one, of those that point the same way, with
    ``LEAD_CONFIDENCE`` confidence.
    """
    sign = 1 if slower else -1
    means = (sign * differences.mean()).sort_values(ascending=False)
    same_way = [str(name) for name in means.index if means[name] > 0]
    if len(differences) < 2 or not same_way:
        return None
    longest = differences[same_way[0]]
    first = t_interval(longest, confidence=confidence)
    leads = [
        t_interval(longest - differences[name], confidence=LEAD_CONFIDENCE)
        for name in same_way[1:2]
    ]
    if first is None or not all(lead and lead.excludes(0.0) for lead in (first, *leads)):
        return None
    return DominantCause.model_validate(
        {"term": same_way[0], "difference_s": first.value, **first.model_dump(exclude={"value"})}
    )


def thread_figures(counters: pd.DataFrame, *, confidence: float) -> dict[str, ThreadFigures]:
    """What the threads of an arm's ranks did, by kind of block: the mean over launches of seconds
    per step.

    Blocks of which nothing is known are left out.
    """
    known = counters[counters["is_ok"] & counters["running_s"].notna()]
    sums = known.groupby(["kind", "launch"])[[*THREADS, "steps"]].sum()
    by_launch = sums[THREADS].div(sums["steps"], axis="index")
    return {
        str(kind): ThreadFigures(**means(of_kind, confidence=confidence))
        for kind, of_kind in by_launch.groupby("kind")
    }


def data_wait_share(sync: pd.DataFrame) -> float:
    """The share of its synchronised steps that a rank waits for data, of the rank that waits most;
    0 to 1.

    The other ranks wait for that rank in the exchange. Without loader workers, all of the loading
    is such a wait. ``sync``: the steps of one arm that count, at least one, columns ``rank``,
    ``data_wait_s`` and ``step_s``.
    """
    sums = sync.groupby("rank")[["data_wait_s", "step_s"]].sum()
    return float((sums["data_wait_s"] / sums["step_s"]).max())


def step_shares(sync: pd.DataFrame, terms: StepTerms | None) -> StepShares:
    """The shares of an arm's step; none is below 0, where noise, or exchange that saves time, would
    put it.

    Without ``terms`` only the data wait is known.
    """
    waiting = data_wait_share(sync)
    if terms is None:
        return StepShares(data_wait=waiting)
    lost = {"exposed_exchange": terms.exposed_exchange.value}
    # steps with exchange then have less of what is lost in those without, of overhead first
    regained = min(terms.exposed_exchange.value, 0.0)
    if terms.library_overhead:
        lost["library_overhead"] = max(terms.library_overhead.value, 0.0) + regained
        regained = min(lost["library_overhead"], 0.0)
    lost["imbalance"] = terms.imbalance.value + regained
    shares = {name: max(seconds, 0.0) / terms.step.value for name, seconds in lost.items()}
    return StepShares(data_wait=waiting, **shares)


def bottleneck_of(shares: StepShares) -> Bottleneck:
    """What holds an arm's speed back: the largest share, where it reaches ``LIMIT``; else
    computing.
    """
    sizes: dict[Any, float] = {name: share or 0.0 for name, share in shares}
    largest: Bottleneck = max(sizes, key=sizes.__getitem__)
    if sizes[largest] >= LIMIT:
        return largest
    return "not the input" if shares.exposed_exchange is None else "computing"


def is_limit_shown(shares: StepShares, terms: StepTerms | None) -> bool:
    """Whether the term that an arm's bottleneck is made of is longer than nothing, by its interval
    where it has one.
    """
    limit = bottleneck_of(shares)
    term = None if limit == "data_wait" else getattr(terms, limit, None)
    return term is None or term.ci_low is None or term.ci_low > 0
