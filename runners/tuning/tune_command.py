"""``ringside tune``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
import yaml
from pydantic import Field

from measurement.errors import RecordError
from runners.flags import Flag, Given, SessionOptions, command, session_flags, values_of, words_of

if TYPE_CHECKING:
    from measurement.plans.plan import Plan
    from reports.schema import Comparison
    from reports.tuning.tuning_schema import Asked, Tuning
    from runners.tuning.search import Confirmation, Search

EXIT_FAILED = 1
TRIALS = 24
"""How many for each arm, unless minutes are given."""
RESULT, PAGE, PLAN = "tuning.json", "tuning.html", "tuned.yaml"
"""Files of a results folder."""
Run = Callable[..., "Comparison"]
"""Measures a plan into a folder, shows the result or not, and says on Ctrl-C how to go on."""


class TuneOptions(SessionOptions):
    """What ``ringside tune`` is asked besides a plan."""

    plan: Path | None = None
    """A comparison plan (YAML), or the name of one of Ringside's own."""
    output: Path | None = None
    """Results folder; one that exists is resumed. [results/NAME-tune-TIME]"""
    trials: int | None = Field(default=None, ge=1)
    """Trials of each arm. [24; with --minutes, as many as they hold]"""
    minutes: float | None = Field(default=None, ge=0)
    """Minutes to search, all arms together, without the confirmation."""
    at_once: int = Field(default=3, ge=1)
    """Trials of each arm in one launch: each has ranks, and memory, of its own."""
    lossy: bool = False
    """Search compression, too, which may change how it trains."""
    seed: int = Field(default=1, ge=0)
    """Seed of the sampler."""


_own = partial(Flag, "Search", TuneOptions)
FLAGS: Sequence[Flag] = (
    _own("plan", is_argument=True),
    *map(_own, ("trials", "minutes", "at_once", "lossy", "seed")),
    *session_flags(TuneOptions, "Search"),
)


def tune_command(run: Run) -> Callable[..., None]:
    """Return the command for typer."""
    text = "Search each arm's settings on one budget, and compare defaults, matched and tuned settings in fresh launches."
    return command(partial(tune_given, run), FLAGS, text=text)


def tune_given(run: Run, given: Given) -> None:
    """Search and confirm, and end with the code that says whether every arm was confirmed."""
    from measurement.conditions.same_environment import plan_digest
    from measurement.records.results import default_folder
    from reports.tuning.tuning_schema import Asked
    from runners.planning.plan_reading import read_plan, require_named
    from runners.tuning.proposals import sampler_name
    from runners.tuning.search import Search

    own = TuneOptions(**values_of(given, TuneOptions))
    chosen = read_plan(require_named(own.plan), overrides=own.settings)
    sampler = sampler_name(own.seed)
    trials = TRIALS if own.trials is None and own.minutes is None else own.trials
    wanted = own.model_dump(include=Asked.model_fields.keys() & TuneOptions.model_fields.keys())
    asked = Asked(**wanted | {"plan_digest": plan_digest(chosen), "trials": trials})
    root = own.output or default_folder(f"{chosen.name}-tune")
    search = Search(chosen, root, asked)
    if search.untuned:
        print(f"ringside: left out, since nothing of them can be searched: {', '.join(search.untuned)}", file=sys.stderr)
    begin(root, asked)
    measure = partial(run, again=words_of("tune", given, root), resume_elsewhere=own.resume_elsewhere)
    if not finish(search, measure, sampler=sampler):
        raise typer.Exit(EXIT_FAILED)


def begin(root: Path, asked: Asked) -> None:
    """Write down what is asked, or see that a folder was begun with the same.

    Raises:
        RecordError: it was not.
    """
    from measurement.files import read_text
    from measurement.records.results import write_result
    from reports.tuning.tuning_schema import Asked

    path = root / "asked.json"
    if path.is_file():
        before = Asked.model_validate_json(read_text(path))
        unlike = [name for name in Asked.model_fields if getattr(before, name) != getattr(asked, name)]
        if unlike:
            told = ", ".join(f"{name} {getattr(before, name)} -> {getattr(asked, name)}" for name in unlike)
            raise RecordError(f"'{root}' holds another search ({told}); go on with what it was asked for, or give another folder")
    elif root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise RecordError(f"'{root}' is not empty and holds no search; give another folder with -o")
    else:
        write_result(path, asked.model_dump_json(indent=1) + "\n")


def finish(search: Search, run: Run, *, sampler: str) -> bool:
    """Search as far as the budget goes, confirm, write the files and show; returns whether every arm was confirmed."""
    from measurement.records.results import ResultsFolder, write_result
    from reports.tuning.tuning_report import tuning_page

    def launch(plan: Plan, folder: ResultsFolder) -> Comparison:
        tried = max(map(len, search.trials.values()))
        print(f"ringside: search, launch {len(search.launches) + 1}, {tried} trials of each arm so far", file=sys.stderr)
        return run(plan, folder, is_shown=False)

    search.run(launch)
    wanted = search.confirmation()
    comparison: Comparison | None = None
    if wanted.plan is not None:
        write_result(search.root / PLAN, plan_text(wanted.plan))
        comparison = run(wanted.plan, ResultsFolder(search.root / "confirm"), is_shown=True)
    tuning = compose(search, wanted, comparison, sampler=sampler)
    write_result(search.root / RESULT, tuning.model_dump_json(indent=1) + "\n")
    write_result(search.root / PAGE, tuning_page(tuning, link="confirm/report.html" if comparison else None))
    show(tuning, search.root)
    return comparison is None or comparison.is_ok


def plan_text(plan: Plan) -> str:
    """A plan as a file for ``ringside compare``, without what is at its default."""
    content = plan.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def compose(search: Search, wanted: Confirmation, comparison: Comparison | None, *, sampler: str) -> Tuning:
    """Return what came out."""
    from backends import make_backend
    from reports.tuning.compose_tuning import headline, lossy_warnings, settle, tuned_pairs
    from reports.tuning.tuning_schema import TunedArm, Tuning

    arms = []
    for name, space in search.spaces.items():
        own, best = search.plan.arms[name], wanted.best[name]
        backend = make_backend(own.backend, transport=search.backends[name].transport, options=own.options | best)
        made = TunedArm(
            name=name,
            backend=own.backend,
            fixed=own.options,
            settings=space,
            trials=search.trials[name],
            effects=wanted.effects[name].table(),
            best=best,
            left_to_find=wanted.effects[name].left_to_find(best),
            code=backend.users_code(),
            lossy=[one.option for one in space if one.is_lossy and one.option in best],
        )
        arms.append(made)
    found = tuned_pairs(wanted.plan, comparison, wanted.names, baseline=wanted.baseline) if wanted.plan and comparison else []
    pairs, unsettled = settle(arms, found)
    return Tuning(
        name=search.plan.name,
        asked=search.asked,
        sampler=sampler,
        arms=arms,
        search_minutes=sum(search.seconds) / 60,
        confirm_minutes=comparison.seconds.get("total", 0.0) / 60 if comparison else 0.0,
        confidence=search.plan.measurement.confidence,
        pairs=pairs,
        headline=headline(arms, pairs),
        warnings=[*lossy_warnings(arms), *unsettled],
    )


def show(tuning: Tuning, root: Path) -> None:
    """Print the answer, the tables, the user's code, and where the files are."""
    from reports.formats.console import new_console
    from reports.formats.terminal import rich_table, shown
    from reports.tuning.tuning_report import answers, pair_table, settings_table

    console = new_console()
    console.print()
    console.print(shown(f"{tuning.headline}.", style="bold"), soft_wrap=True)
    if tuning.pairs:
        console.print(rich_table(pair_table(tuning)))
    console.print(rich_table(settings_table(tuning), once_per_group="arm"))
    for line in [*answers(tuning), *tuning.warnings]:
        console.print(shown(f"{line}."), soft_wrap=True)
    for line in (line for arm in tuning.arms for line in arm.code):
        console.print(shown(f"  {line}"), soft_wrap=True)
    told = f"plan: {shlex.quote(str(root / PLAN))}  " if tuning.pairs else ""
    console.print(f"{told}report: {root / PAGE}", markup=False, highlight=False, soft_wrap=True)
