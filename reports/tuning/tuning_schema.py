"""The models of ``tuning.json``: what was searched, every trial, and what fresh launches say."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np

from reports.estimate import Stored
from reports.schema import RatioSummary, Status

SCHEMA_VERSION = 2
"""Version of tuning.json. It grows when a key changes its meaning or goes."""
MOST_PRIOR = 10.0
"""Trials without effect that weigh against what was seen, at the most."""
Options = dict[str, Any]
"""Options of an arm that are not at their defaults; none: the arm as the plan has it."""


class Asked(Stored):
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
    """Natural logarithm of its throughput over that of the arm's defaults in the same launch; null where not timed."""


class TriedSet(Stored):
    """All trials of one set of settings."""

    options: Options
    trials: int
    failed: int
    log_ratio: float
    """Mean over the trials that were timed."""
    expected: float
    """That mean, shrunk towards none: the more, the fewer trials there are and the noisier they are."""


class Tuning(Stored):
    """All that a search and its fresh launches came to."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["tuning"] = "tuning"
    name: str
    asked: Asked
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
    logs = [[one.log_ratio for one in some if one.log_ratio is not None] for some in by_set.values()]
    prior, found = _prior_trials(logs), []
    for some, timed in zip(by_set.values(), logs, strict=True):
        counts = {"trials": len(some), "failed": len(some) - len(timed)}
        mean, expected = (sum(timed) / weight if timed else 0.0 for weight in (len(timed), len(timed) + prior))
        found.append(TriedSet(options=some[0].options, log_ratio=mean, expected=expected, **counts))
    return sorted(found, key=lambda one: (one.failed > 0, -one.expected))


def _prior_trials(logs: list[list[float]]) -> float:
    """How many trials without effect weigh against each set's own: by empirical Bayes, noise's variance over that of effects."""
    squares, df = sum(len(some) * float(np.var(some)) for some in logs if some), sum(len(some) - 1 for some in logs if some)
    if not df:
        return 1.0
    noise, total = squares / df, float(np.mean(np.square(np.concatenate(logs))))
    return min(noise / max(total - noise, noise / MOST_PRIOR), MOST_PRIOR) if noise else 0.0
