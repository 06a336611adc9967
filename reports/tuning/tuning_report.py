"""What a search looks like: tables for terminal and page, a picture of each setting's effect, and the page."""

from __future__ import annotations

from typing import Any

from reports.charts.frame import Figure, base_layout, error_bars, rule
from reports.formats.html import render_page
from reports.tables.table import Entry, Table, columns, row
from reports.tuning.compose_tuning import pair_words
from reports.tuning.tuning_schema import TUNED, SearchedSetting, TunedArm, TunedPair, Tuning
from reports.wording.formatting import NONE, about, bounds_text, percent, ratio

HEIGHT_PX = 360
WORTH = 1.02
"""A setting that cannot gain so much is not worth touching."""
QUESTIONS = {"tuned": "both tuned", "default": "both at defaults", "matched": "bytes matched", "gain": "gained by tuning"}


def pair_table(tuning: Tuning) -> Table:
    """What the confirmation says of each pair."""
    titles = {"question": "question", "arms": "ratio", "ratio": "throughput", "interval": "interval", "verdict": "verdict"}
    rows = [
        row(
            {
                "question": QUESTIONS[pair.question],
                "arms": f"{pair.candidate} / {pair.baseline}",
                "ratio": ratio(pair.ratio.value),
                "interval": bounds_text(pair.ratio.ci_low, pair.ratio.ci_high),
                "verdict": Entry(text=pair.verdict, kind=pair.verdict),
            }
        )
        for pair in tuning.pairs
    ]
    return Table(columns=columns(titles, numeric=["ratio", "interval"], wraps=["arms"]), rows=rows)


def settings_table(tuning: Tuning) -> Table:
    """Every setting of each arm: from its default to what tuning took, and what that does by itself."""
    titles = {name: name for name in ("arm", "setting", "default", "tuned", "effect", "interval")}
    rows = []
    for arm in tuning.arms:
        for one in arm.settings:
            value = arm.best.get(one.option, one.default)
            effect = next(e.ratio for e in arm.effects if e.option == one.option and e.value == value)
            is_kept = one.option not in arm.best
            entries = {
                "arm": arm.name,
                "setting": one.option,
                "default": value_text(one.default),
                "tuned": "left" if is_kept else value_text(value),
                "effect": NONE if is_kept else ratio(effect.value),
                "interval": NONE if is_kept else bounds_text(effect.ci_low, effect.ci_high),
            }
            rows.append(row(entries, group=arm.name))
    return Table(columns=columns(titles, numeric=["effect", "interval"]), rows=rows)


def answers(tuning: Tuning) -> list[str]:
    """What was gained, what it took, and what was not worth touching; without full stops."""
    gains = {pair.candidate.rpartition("-")[0]: pair for pair in tuning.pairs if pair.question == "gain"}
    told = [_gained(arm, gains.get(arm.name)) for arm in tuning.arms]
    idle = [(arm, [one for one in arm.settings if not _is_worth(arm, one)]) for arm in tuning.arms]
    for words, wanted in (("not worth touching", True), ("not decided, for want of trials,", False)):
        options = {arm.name: [one.option for one in some if _is_idle(arm, one) == wanted] for arm, some in idle}
        told += [f"{words} in {name}: {', '.join(some)}" for name, some in options.items() if some]
    left = {arm.name: arm.left_to_find for arm in tuning.arms}
    may = [f"{about(one.value)} for {name} (at most {about(one.ci_high or 1.0)})" for name, one in left.items()]
    told.append(f"more trials may find another {', '.join(may)}")
    told += [f"fixed by the plan in {arm.name}, so not searched: {', '.join(arm.fixed)}" for arm in tuning.arms if arm.fixed]
    return told


def method(tuning: Tuning) -> list[str]:
    """On which budget, and how; without full stops."""
    tried = {arm.name: len(arm.trials) for arm in tuning.arms}
    failed = {arm.name: sum(trial.log_ratio is None for trial in arm.trials) for arm in tuning.arms}
    counted = ", ".join(f"{name} {number}" for name, number in tried.items())
    wrong = ", ".join(f"{number} of {name}" for name, number in failed.items() if number)
    return [
        f"Search: {tuning.search_minutes:.1f} minutes for all arms, which took turns in the same launches; trials: {counted}",
        f"The confirmation is not part of that budget: {tuning.confirm_minutes:.1f} minutes of launches that chose nothing",
        f"Sampler: {tuning.sampler}; the last trials measure the most promising settings again",
        "Each trial is held against its arm's own default in the same launch, and passes the parity gate"
        + (f"; {wrong} failed or were wrong, and were dropped" if wrong else ""),
        "Effects are those of the search, each by itself, shrunk towards none, with 90% credible intervals",
        "What more trials may find: median, and a bound of 95%, of the best option set over what was taken, as the trials leave it",
        f"Ratios are those of the confirmation; their intervals hold with {percent(tuning.confidence)} all at once",
    ]


def tuning_page(tuning: Tuning, *, link: str | None) -> bytes:
    """UTF-8 HTML; ``link``: to the confirmation's own report."""
    return render_page(
        "tuning.html.j2",
        figures={f"effects-{number}": _chart(arm) for number, arm in enumerate(tuning.arms)},
        tuning=tuning,
        pairs=pair_table(tuning),
        settings=settings_table(tuning),
        answers=answers(tuning),
        method=method(tuning),
        link=link,
    )


def value_text(value: Any) -> str:
    """A value as a reader sees it."""
    if value is None:
        return "library's"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _gained(arm: TunedArm, pair: TunedPair | None) -> str:
    """What fresh launches say of an arm's tuning."""
    if not arm.best:
        return f"{arm.name}: no setting was found that beats its default"
    chosen = ", ".join(f"{name} {value_text(value)}" for name, value in arm.best.items())
    return f"{pair_words(pair) if pair else f'{arm.name}-{TUNED} was not timed in the confirmation'} ({chosen})"


def _is_worth(arm: TunedArm, setting: SearchedSetting) -> bool:
    """Whether it was taken, or a value of it is shown to help."""
    helps = any(one.option == setting.option and (one.ratio.ci_low or 1.0) > 1.0 for one in arm.effects)
    return setting.option in arm.best or helps


def _is_idle(arm: TunedArm, setting: SearchedSetting) -> bool:
    """Whether a trial that was timed had another value than the default's, and no value can gain what is of interest."""
    timed = [trial.options for trial in arm.trials if trial.log_ratio is not None]
    was_tried = any(options.get(setting.option, setting.default) != setting.default for options in timed)
    return was_tried and all((one.ratio.ci_high or 1.0) <= WORTH for one in arm.effects if one.option == setting.option)


def _chart(arm: TunedArm) -> Figure:
    """A mark for each value of each setting; what was taken is filled."""
    layout, effects = base_layout(HEIGHT_PX, ""), arm.effects
    layout["margin"]["b"] = 90
    layout["yaxis"] |= {"title": {"text": "throughput / default"}, "automargin": True}
    rule(layout, y=1.0, colour="@muted")
    defaults = {one.option: one.default for one in arm.settings}
    ticks = [value_text(one.value) + " (default)" * (one.value == defaults[one.option]) for one in effects]
    taken = [arm.best.get(one.option, defaults[one.option]) == one.value for one in effects]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [[one.option for one in effects], ticks],
        "y": [one.ratio.value for one in effects],
        "error_y": error_bars([one.ratio for one in effects], thickness=1.2, width=4),
        "marker": {"size": 9, "color": "@arm-0", "symbol": ["circle" if one else "circle-open" for one in taken]},
        "hovertemplate": "%{x}: %{y:.3f}<extra></extra>",
    }
    return {"data": [trace], "layout": layout}
