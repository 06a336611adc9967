"""What a search for the fastest settings of an arm came to: the models of ``tuning.json``, and what
the terminal shows.
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import numpy as np

from reports.parts_schema import Stored
from reports.schema import RatioSummary, Status
from reports.tables import Column, Table, number, table, wrapped
from reports.wording.causes import withheld_words
from reports.wording.formatting import count, difference_text, interval, plain, ratio

SCHEMA_VERSION = 2
"""Version of tuning.json. It grows when a key changes its meaning or goes."""
MAX_PRIOR = 10.0
"""Trials without effect that weigh against what was seen, at the most."""
Options = dict[str, Any]
"""Options of an arm that are not at their defaults; none: the arm as the plan has it."""


class SearchRequest(Stored):
    """What a search was asked for; one that goes on must ask for the same."""

    plan_digest: str
    arm: str
    minutes: float
    """To search, without fresh launches."""
    at_once: int
    """Trials in one launch, beside the arm's defaults."""
    lossy: bool


class SearchedSetting(Stored):
    """An option with the values that may be tried, in order, and the arm's own among them."""

    option: str
    values: list[Any]
    default: Any
    only_with: dict[str, Any] = {}
    """Values of other options without which it means nothing."""
    is_lossy: bool = False


class Trial(Stored):
    """One set of settings in one launch."""

    launch: int
    options: Options
    status: Status
    log_ratio: float | None
    """Natural logarithm of its throughput over that of the arm's defaults in the same launch; null
    where not timed."""


class TriedSet(Stored):
    """All trials of one set of settings."""

    options: Options
    trials: int
    failed: int
    log_ratio: float
    """Mean over the trials that were timed."""
    expected: float
    """That mean, shrunk towards none: the more, the fewer trials there are and the noisier they
    are."""


class Tuning(Stored):
    """All that a search and its fresh launches came to."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["tuning"] = "tuning"
    name: str
    asked: SearchRequest
    sampler: str
    fixed: Options
    """Options that the plan sets, which were not searched."""
    settings: list[SearchedSetting]
    trials: list[Trial]
    best: Options
    """What the search took: none where nothing promised to be faster."""
    gain: RatioSummary | None
    """The best over the arm's defaults, in fresh launches; null where there were none."""
    without: dict[str, RatioSummary]
    """By option of the best, what fresh launches say of the best without it, over the best."""
    code: list[str]
    """The best as lines of a user's own script and shell."""
    search_minutes: float
    fresh_minutes: float

    @property
    def is_confirmed(self) -> bool:
        """Whether fresh launches show that the best is faster."""
        return self.gain is not None and self.gain.verdict == "faster"


def tried_sets(trials: list[Trial]) -> list[TriedSet]:
    """Each set of settings once: the most promising first, those that failed or were wrong last."""
    by_set: dict[str, list[Trial]] = {}
    for trial in trials:
        by_set.setdefault(json.dumps(trial.options, sort_keys=True), []).append(trial)
    logs = [
        [trial.log_ratio for trial in some if trial.log_ratio is not None]
        for some in by_set.values()
    ]
    prior = _prior_trials(logs)
    sets = [
        TriedSet(
            options=some[0].options,
            trials=len(some),
            failed=len(some) - len(timed),
            log_ratio=sum(timed) / len(timed) if timed else 0.0,
            expected=sum(timed) / (len(timed) + prior) if timed else 0.0,
        )
        for some, timed in zip(by_set.values(), logs, strict=True)
    ]
    return sorted(sets, key=lambda tried: (tried.failed > 0, -tried.expected))


def _prior_trials(logs: list[list[float]]) -> float:
    """How many trials without effect weigh against each set's own: by empirical Bayes, noise's
    variance over that of effects.
    """
    squares = sum(len(some) * float(np.var(some)) for some in logs if some)
    df = sum(len(some) - 1 for some in logs if some)
    if not df:
        return 1.0
    noise, total = squares / df, float(np.mean(np.square(np.concatenate(logs))))
    return min(noise / max(total - noise, noise / MAX_PRIOR), MAX_PRIOR) if noise else 0.0


MAX_SETS = 10
"""Sets of settings in the table; all trials are in ``tuning.json``."""


def headline(tuning: Tuning) -> str:
    """The answer as a sentence without its full stop."""
    name, gain = tuning.asked.arm, tuning.gain
    if gain is not None and tuning.is_confirmed:
        return (
            f"With {options_text(tuning.best)} {name} is {verdict_text(gain)} than with its"
            " defaults"
        )
    if not tuning.best:
        return (
            f"No better settings found for {name}: nothing that was tried promised to be faster"
            " than its defaults"
        )
    outcome = (
        f"in fresh launches it is {verdict_text(gain)}"
        if gain
        else "it could not be timed in fresh launches"
    )
    return (
        f"No better settings found for {name}: the search took {options_text(tuning.best)}, and"
        f" {outcome}"
    )


def notes(tuning: Tuning) -> list[str]:
    """Which settings mattered, their caveats, and how they were found; without full stops."""
    name, failed = tuning.asked.arm, sum(trial.log_ratio is None for trial in tuning.trials)
    lossy = [
        setting.option
        for setting in tuning.settings
        if setting.is_lossy and setting.option in tuning.best
    ]
    lines = [
        f"without {option} it is {verdict_text(result)}"
        for option, result in tuning.without.items()
    ]
    if lossy:
        lines.append(f"{', '.join(lossy)} loses bits: {name} may train otherwise")
    if tuning.fixed:
        lines.append(f"fixed by the plan, so not searched: {', '.join(tuning.fixed)}")
    if failed:
        lines.append(f"dropped, since they failed or were wrong: {count(failed, 'trial')}")
    return [
        *lines,
        (
            f"search: {tuning.search_minutes:.1f} minutes, {count(len(tuning.trials), 'trial')} by"
            f" {tuning.sampler}; fresh launches: {tuning.fresh_minutes:.1f} minutes"
        ),
        (
            "the best of many trials looks better than it is, so only fresh launches say what is"
            " gained"
        ),
    ]


def tried_table(tuning: Tuning) -> Table:
    """The most promising sets of settings, as the search saw them."""
    columns = [
        wrapped("settings tried", "options", options_text),
        number("trials", "trials"),
        number(
            "search: throughput / defaults",
            lambda tried: (
                None if tried.failed == tried.trials else ratio(math.exp(tried.log_ratio))
            ),
        ),
        Column(
            "",
            lambda tried: (
                "failed" if tried.failed else "taken" if tried.options == tuning.best else ""
            ),
        ),
    ]
    return table(columns, tried_sets(tuning.trials)[:MAX_SETS])


def next_step(tuning: Tuning, plan: str) -> str:
    """What to do with the plan that was written; ``plan``: its path, as a shell takes it."""
    what = f"with {tuning.asked.arm}'s new settings" if tuning.is_confirmed else "as it was"
    return (
        f"the plan {what}: ringside compare {plan}; for a verdict between tuned arms, tune the"
        " others of that plan first."
    )


def verdict_text(result: RatioSummary) -> str:
    """A verdict with its ratio: ``5.2% faster (1.031 to 1.074)``, ``undecided (1.010, 0.980 to
    1.041)``.
    """
    verdict = result.verdict
    if result.is_decided and result.throughput_ratio is not None:
        return f"{difference_text(result.throughput_ratio)} {verdict} ({interval(result)})"
    why = withheld_words(result)
    return (
        f"{verdict} ({ratio(result.throughput_ratio)},"
        f" {interval(result)}{f'; {why}' if why else ''})"
    )


def options_text(options: Options) -> str:
    """A set of settings as a reader sees it."""
    return ", ".join(f"{name} {_value_text(value)}" for name, value in options.items())


def _value_text(value: Any) -> str:
    if value is None:
        return "library's"
    return f"{value:g}" if isinstance(value, float) else plain(value)
