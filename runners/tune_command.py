"""``ringside tune``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
import yaml
from pydantic import Field

from measurement.errors import RecordError
from runners.compare_command import EXIT_FAILED, measure
from runners.flags import (
    Flag,
    FlagValues,
    SessionOptions,
    command,
    command_to_repeat,
    say,
    session_flags,
    values_of,
)

if TYPE_CHECKING:
    from measurement.plans.plan import Plan
    from reports.schema import Comparison
    from reports.tuning import SearchRequest, Tuning
    from runners.planning.settings_search import Search

RESULT, PLAN = "tuning.json", "tuned.yaml"
"""Files of a results folder."""
Run = Callable[..., "Comparison"]
"""Measures a plan into a folder, optionally shows the result, and says on Ctrl-C how to resume."""


class TuneOptions(SessionOptions):
    """Options of ``ringside tune`` besides a plan."""

    plan: Path | None = None
    """A comparison plan (YAML), or the name of one of Ringside's own."""
    output: Path | None = None
    """Results folder; one that exists is resumed. [results/NAME-tune-TIME]"""
    arm: str = ""
    """The arm of the plan to tune."""
    minutes: float = Field(default=20.0, gt=0)
    """Minutes to search, one launch at the least. Fresh launches come after it, and take as long as
    the plan's measurement says."""
    at_once: int = Field(default=3, ge=1)
    """Trials in one launch: each has ranks, and memory, of its own."""
    lossy: bool = False
    """Search compression, too, which may change how it trains."""


_flag = partial(Flag, "Search", TuneOptions)
FLAGS: Sequence[Flag] = (
    _flag("plan", is_argument=True),
    *map(_flag, ("arm", "minutes", "at_once", "lossy")),
    *session_flags(TuneOptions, "Search"),
)


def run_tune(flags: FlagValues) -> None:
    """Search and confirm. The exit code says whether fresh launches failed."""
    from measurement.conditions.same_environment import plan_digest
    from measurement.records.results import default_folder
    from reports.tuning import SearchRequest
    from runners.planning.plan_reading import read_plan, require_named
    from runners.planning.settings_search import Search, optuna

    options = TuneOptions(**values_of(flags, TuneOptions))
    plan = read_plan(require_named(options.plan), overrides=options.settings)
    sampler = f"GPSampler of Optuna {optuna().__version__}"
    request = SearchRequest(
        plan_digest=plan_digest(plan),
        arm=options.arm,
        minutes=options.minutes,
        at_once=options.at_once,
        lossy=options.lossy,
    )
    root = options.output or default_folder(f"{plan.name}-tune")
    search = Search(plan, root, request)
    record_request(root, request)
    run = partial(measure, again=command_to_repeat(root), resume_elsewhere=options.resume_elsewhere)
    if not search_and_confirm(search, run, sampler=sampler):
        raise typer.Exit(EXIT_FAILED)


tune = command(
    run_tune,
    FLAGS,
    text="Search an arm's fastest settings, and compare them with its defaults in fresh launches.",
)


def record_request(root: Path, request: SearchRequest) -> None:
    """Record the request in the folder, or check that the folder was started with the same one.

    Raises:
        RecordError: the folder is for another request, or for none.
    """
    from measurement.files import read_text
    from measurement.records.results import write_result

    path, text = root / "asked.json", request.model_dump_json(indent=1) + "\n"
    if path.is_file():
        if read_text(path) != text:
            raise RecordError(
                f"'{root}' holds a search that was asked for otherwise, see {path}; give another"
                " folder with -o"
            )
    elif root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise RecordError(f"'{root}' is not empty and holds no search; give another folder with -o")
    else:
        write_result(path, text)


def search_and_confirm(search: Search, run: Run, *, sampler: str) -> bool:
    """Search until the budget is spent, confirm, write the files and show them; returns whether
    fresh launches were ok.
    """
    from backends import make_backend
    from measurement.records.results import ResultsFolder, write_result
    from reports.tuning import Tuning

    def launch(plan: Plan, folder: ResultsFolder) -> Comparison:
        say(f"search, launch {len(search.seconds) + 1}, {len(search.trials)} trials so far")
        return run(plan, folder, is_shown=False)

    def fresh(plan: Plan, name: str) -> Comparison:
        return run(plan, ResultsFolder(search.root / name), is_shown=name == "confirm")

    best = search.run(launch)
    comparisons = [fresh(search.confirmation(best), "confirm")] if best else []
    gain = comparisons[0].result(f"{search.name}-tuned") if best else None
    is_confirmed = gain is not None and gain.verdict == "faster"
    without = {}
    if is_confirmed and len(best) > 1:
        comparisons.append(fresh(search.ablation(best), "without"))
        without = {
            option: result
            for option in best
            if (result := comparisons[1].result(f"without-{option}"))
        }
    arm = search.arm
    backend = make_backend(
        arm.backend,
        transport=search.backend.transport,
        options=arm.options | best,
        micro_steps=search.plan.micro_steps,
    )
    tuning = Tuning(
        name=search.plan.name,
        asked=search.request,
        sampler=sampler,
        fixed=arm.options,
        settings=search.settings,
        trials=search.trials,
        best=best,
        gain=gain,
        without=without,
        code=backend.users_code(),
        search_minutes=sum(search.seconds) / 60,
        fresh_minutes=sum(each.seconds.get("total", 0.0) for each in comparisons) / 60,
    )
    tuned = search.tuned_plan(best if is_confirmed else {}).model_dump(
        mode="json", exclude_defaults=True
    )
    write_result(search.root / PLAN, yaml.safe_dump(tuned, sort_keys=False, allow_unicode=True))
    write_result(search.root / RESULT, tuning.model_dump_json(indent=1) + "\n")
    show(tuning, search.root)
    return all(comparison.is_ok for comparison in comparisons)


def show(tuning: Tuning, root: Path) -> None:
    """Print the answer, the trials, code for the user, and where the files are."""
    from reports.formats import new_console
    from reports.formats.terminal import rich_table, shown
    from reports.tuning import headline, next_step, notes, tried_table

    console = new_console()
    console.print()
    console.print(shown(f"{headline(tuning)}.", style="bold"), soft_wrap=True)
    console.print(rich_table(tried_table(tuning)))
    for line in notes(tuning):
        console.print(shown(f"{line}."), soft_wrap=True)
    for line in tuning.code if tuning.is_confirmed else []:
        console.print(shown(f"  {line}"), soft_wrap=True)
    console.print(shown(next_step(tuning, shlex.quote(str(root / PLAN)))), soft_wrap=True)
    console.print(f"every trial: {root / RESULT}", markup=False, highlight=False, soft_wrap=True)
