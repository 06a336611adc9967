"""The models of ``tuning.json``: what was searched on which budget, every trial, and what fresh launches say."""

from __future__ import annotations

from typing import Any, Literal

from reports.estimate import Estimate, Stored
from reports.schema import Status, Verdict

SCHEMA_VERSION = 1
"""Version of tuning.json. It grows when a key changes its meaning or goes."""
Options = dict[str, Any]
"""Options of an arm that are not at their defaults; none: the arm as the plan has it."""
PairQuestion = Literal["tuned", "default", "matched", "gain"]
"""``gain``: of one library, tuned over default. The others: of two libraries, both so."""
DEFAULT: Literal["default"] = "default"
MATCHED: Literal["matched"] = "matched"
TUNED: Literal["tuned"] = "tuned"
"""How the names of the three arms of each library end."""


class Asked(Stored):
    """What a search was asked for; one that goes on must ask for the same."""

    plan_digest: str
    trials: int | None
    """How many for each arm; null: as many as the minutes hold."""
    minutes: float | None
    """To search, all arms together; null: without limit."""
    at_once: int
    """Trials of each arm in one launch, beside its own default."""
    seed: int
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
    """One setting of one arm in one launch."""

    launch: int
    options: Options
    status: Status
    log_ratio: float | None
    """Natural logarithm of its throughput over that of the arm's own default in the same launch; null where not timed."""


class SettingEffect(Stored):
    """What one value of one option changes by itself: throughput over the default's, with a 90% credible interval."""

    option: str
    value: Any
    ratio: Estimate


class TunedArm(Stored):
    """The search of one arm."""

    name: str
    backend: str
    fixed: Options
    """Options that the plan sets, which were not searched."""
    settings: list[SearchedSetting]
    trials: list[Trial]
    effects: list[SettingEffect]
    best: Options
    left_to_find: Estimate
    """Throughput of the fastest option set over that of the best found: what the trials leave possible, with a 90% interval."""
    code: list[str]
    """The best as lines of a user's own script and shell."""
    lossy: list[str]
    """Options of the best that lose bits."""


class TunedPair(Stored):
    """Two arms of the confirmation."""

    question: PairQuestion
    candidate: str
    baseline: str
    ratio: Estimate
    verdict: Verdict


class Tuning(Stored):
    """All that a search and its confirmation came to."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["tuning"] = "tuning"
    name: str
    asked: Asked
    sampler: str
    arms: list[TunedArm]
    search_minutes: float
    confirm_minutes: float
    confidence: float
    """With which the intervals of all pairs hold at once."""
    pairs: list[TunedPair]
    headline: str
    warnings: list[str]
