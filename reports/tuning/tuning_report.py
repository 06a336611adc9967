"""What a search looks like, in the terminal and as a page. A gain is stated from fresh launches only."""

from __future__ import annotations

import math
from typing import Any

from reports.formats.html import render_page
from reports.schema import RatioSummary
from reports.tables.table import Table, columns, row
from reports.tuning.tuning_schema import Options, Tuning, tried_sets
from reports.wording.formatting import NONE, apart, count, interval, ratio
from reports.wording.headlines import WITHHELD

MOST_SETS = 10
"""Sets of settings in the table; all trials are in ``tuning.json``."""


def headline(tuning: Tuning) -> str:
    """The answer as a sentence without its full stop."""
    name, gain = tuning.asked.arm, tuning.gain
    if gain is not None and tuning.is_confirmed:
        return f"With {options_text(tuning.best)} {name} is {beside(gain)} than with its defaults"
    if not tuning.best:
        return f"No better settings found for {name}: nothing that was tried promised to be faster than its defaults"
    told = f"in fresh launches it is {beside(gain)}" if gain else "it could not be timed in fresh launches"
    return f"No better settings found for {name}: the search took {options_text(tuning.best)}, and {told}"


def notes(tuning: Tuning) -> list[str]:
    """Which settings mattered, what must be said of them, and how it was found; without full stops."""
    name, failed = tuning.asked.arm, sum(trial.log_ratio is None for trial in tuning.trials)
    lossy = [one.option for one in tuning.settings if one.is_lossy and one.option in tuning.best]
    told = [f"without {option} it is {beside(one)}" for option, one in tuning.without.items()]
    told += [f"{', '.join(lossy)} loses bits: {name} may train otherwise"] if lossy else []
    told += [f"fixed by the plan, so not searched: {', '.join(tuning.fixed)}"] if tuning.fixed else []
    told += [f"dropped, since they failed or were wrong: {count(failed, 'trial')}"] if failed else []
    return [
        *told,
        f"search: {tuning.search_minutes:.1f} minutes, {count(len(tuning.trials), 'trial')} by {tuning.sampler}; fresh launches: "
        f"{tuning.fresh_minutes:.1f} minutes",
        "the best of many trials looks better than it is, so only fresh launches say what is gained",
    ]


def tried_table(tuning: Tuning) -> Table:
    """The most promising sets of settings, as the search saw them."""
    titles = {"settings": "settings tried", "trials": "trials", "ratio": "search: throughput / defaults", "note": ""}
    rows = []
    for one in tried_sets(tuning.trials)[:MOST_SETS]:
        note = "failed" if one.failed else "taken" if one.options == tuning.best else ""
        shown = NONE if one.failed == one.trials else ratio(math.exp(one.log_ratio))
        rows.append(row({"settings": options_text(one.options), "trials": str(one.trials), "ratio": shown, "note": note}))
    return Table(columns=columns(titles, numeric=["trials", "ratio"], wraps=["settings"]), rows=rows)


def tuning_page(tuning: Tuning, *, has_confirmation: bool) -> bytes:
    """UTF-8 HTML."""
    shown = {"headline": headline(tuning), "notes": notes(tuning), "tried": tried_table(tuning)}
    return render_page("tuning.html.j2", figures={}, tuning=tuning, has_confirmation=has_confirmation, **shown)


def next_step(tuning: Tuning, plan: str) -> str:
    """What to do with the plan that was written; ``plan``: its path, as a shell takes it."""
    what = f"with {tuning.asked.arm}'s new settings" if tuning.is_confirmed else "as it was"
    return f"the plan {what}: ringside compare {plan}; for a verdict between tuned arms, tune the others of that plan first."


def beside(result: RatioSummary) -> str:
    """A verdict with its ratio: ``5.2% faster (1.031 to 1.074)``, ``undecided (1.010, 0.980 to 1.041)``."""
    told = result.verdict
    if told in ("faster", "slower") and result.throughput_ratio is not None:
        return f"{apart(result.throughput_ratio)} {told} ({interval(result)})"
    why = WITHHELD.get(result.withheld_by or "")
    return f"{told} ({ratio(result.throughput_ratio)}, {interval(result)}{f'; {why}' if why else ''})"


def options_text(options: Options) -> str:
    """A set of settings as a reader sees it."""
    return ", ".join(f"{name} {_value_text(value)}" for name, value in options.items())


def _value_text(value: Any) -> str:
    if value is None:
        return "library's"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
