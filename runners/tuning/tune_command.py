"""``ringside tune``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from measurement.errors import RecordError

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


def tune_command(run: Run) -> Callable[..., None]:
    """Return the command for typer."""

    def tune(
        plan: Annotated[Path | None, typer.Argument(help="A comparison plan (YAML), or the name of one of Ringside's own.")] = None,
        output: Annotated[
            Path | None,
            typer.Option("-o", "--output", help="Results folder; one that exists is resumed. [results/NAME-tune-TIME]"),
        ] = None,
        trials: Annotated[
            int | None, typer.Option(min=1, help="Trials of each arm. [24; with --minutes, as many as they hold]")
        ] = None,
        minutes: Annotated[
            float | None, typer.Option(min=0, help="Minutes to search, all arms together, without the confirmation.")
        ] = None,
        at_once: Annotated[
            int, typer.Option(min=1, help="Trials of each arm in one launch: each has ranks, and memory, of its own.")
        ] = 3,
        lossy: Annotated[bool, typer.Option("--lossy", help="Search compression, too, which may change how it trains.")] = False,
        seed: Annotated[int, typer.Option(min=0, help="Seed of the sampler.")] = 1,
        settings: Annotated[
            list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the plan; may be repeated.")
        ] = None,
        resume_elsewhere: Annotated[
            bool, typer.Option("--resume-elsewhere", help="Resume even if versions, machine or sources changed.")
        ] = False,
    ) -> None:
        """Search each arm's settings on one budget, and compare defaults, matched and tuned settings in fresh launches."""
        from measurement.conditions.same_environment import plan_digest
        from measurement.records.results import default_folder
        from reports.tuning.tuning_schema import Asked
        from runners.planning.plan_reading import read_plan, require_named
        from runners.tuning.proposals import sampler_name
        from runners.tuning.search import Search

        named, overrides = require_named(plan), list(settings or [])
        chosen = read_plan(named, overrides=overrides)
        sampler = sampler_name(seed)
        most = TRIALS if trials is None and minutes is None else trials
        asked = Asked(plan_digest=plan_digest(chosen), trials=most, minutes=minutes, at_once=at_once, seed=seed, lossy=lossy)
        root = output or default_folder(f"{chosen.name}-tune")
        search = Search(chosen, root, asked)
        if search.untuned:
            print(f"ringside: left out, since nothing of them can be searched: {', '.join(search.untuned)}", file=sys.stderr)
        begin(root, asked)
        flags = {"--trials": trials, "--minutes": minutes, "--at-once": at_once, "--seed": seed}
        again = ["ringside", "tune", str(named), "-o", str(root), *(["--lossy"] if lossy else [])]
        again += [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
        again += [word for one in overrides for word in ("--set", one)] + (["--resume-elsewhere"] if resume_elsewhere else [])
        measure = partial(run, again=again, resume_elsewhere=resume_elsewhere)
        if not finish(search, measure, sampler=sampler):
            raise typer.Exit(EXIT_FAILED)

    return tune


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
    from reports.tuning.compose_tuning import headline, lossy_warnings, tuned_pairs
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
            code=backend.users_code(),
            lossy=[one.option for one in space if one.is_lossy and one.option in best],
        )
        arms.append(made)
    pairs = tuned_pairs(wanted.plan, comparison, wanted.names, baseline=wanted.baseline) if wanted.plan and comparison else []
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
        warnings=lossy_warnings(arms),
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
