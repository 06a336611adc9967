"""``ringside bisect COMMAND``: which commit, or version of a package, made it slower, or made it
train differently?

Each state is compared with the good one by ``ringside ab``, in its own folder below the results
folder. A state is bad if the upper bound of its throughput over the good one's is below a
threshold, and good if the lower bound is above. The error of 5% is divided among all states that
may be looked at, so that it holds for the whole search. Looks at one state share its error
(``reports.statistics.budget``). ``benchmarks/bisection.py`` simulates it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import typer
from pydantic import BaseModel, Field

from measurement.errors import PlanError, RingsideError, printable, quoted
from measurement.files import read_text, write_whole
from runners.flags import (
    Flag,
    FlagValues,
    SessionOptions,
    command_to_repeat,
    percent_of,
    say,
    session_flags,
    values_of,
)
from runners.scripts import ab_command
from runners.scripts.ab_command import (
    EXIT_NOT_SHOWN,
    FIRST_STEPS,
    Run,
    Try,
    flags_named,
    flags_with,
)

EXAMPLES = """\
ringside bisect 'torchrun --nproc-per-node 2 train.py' --good v1.2 --bad HEAD --minutes 60

ringside bisect 'torchrun --nproc-per-node 2 train.py' --package torch --good 2.9.1 --bad 2.15.0"""
STATE = "bisect.json"
ERROR = 0.05
"""The probability that any state of a search is judged wrongly."""
MAX_SKIPPED = 3
"""States that may be looked at beyond those that a search needs."""
NEARLY_ALL = 0.9
"""Share of the minutes: if less is spent, undecided states are looked at again."""
LOOKS = 2
"""At a state, before the search goes on to others."""


class BisectOptions(SessionOptions):
    """Options of ``ringside bisect`` that are not in a plan."""

    command: str = ""
    """The command, in quotes, such as 'torchrun --nproc-per-node 2 train.py'."""
    good: str = ""
    """A good revision or version."""
    bad: str = ""
    """A later one that is bad."""
    package: str | None = None
    """The package whose versions are meant. Default: commits of the repository here, along first
    parents."""
    asks: Literal["speed", "equality"] = "speed"
    """What has changed: speed; or equality, of the first steps."""
    slower: str = "3%"
    """The loss to look for: a state is bad if it is shown to lose more than half of this, good if
    less."""
    minutes: float = Field(default=60.0, ge=0.1)
    """Minutes to spend, for all states together."""


class Seen(BaseModel):
    """The result for one state."""

    minutes: float = 0.0
    """Spent on it in all."""
    is_bad: bool | None = None
    """None: not decided."""
    low: float | None = None
    high: float | None = None
    """One-sided bounds of its throughput over the good state's."""
    said: str = ""
    """The result in words, if there is no interval."""


class State(BaseModel):
    """The state of a search in the results folder."""

    asked: list[str]
    """What must be the same when a search goes on."""
    seen: dict[str, Seen] = {}
    """By commit or version."""


Look = Callable[[int, float], Seen]
"""Looks at a state, by its number, until this many minutes in all were spent on it."""


WHAT, MEASURING = "What", "Measuring"
_option = partial(Flag, WHAT, BisectOptions)
FLAGS: Sequence[Flag] = (
    _option("command", is_argument=True, metavar="COMMAND", default=None),
    _option("good", default=None),
    _option("bad", default=None),
    _option("package"),
    _option("asks", ("--for",)),
    _option("slower", metavar="PERCENT"),
    *flags_named("python", "samples-per-step", "iteration-ends", "hosts", "cpu", "trackers"),
    Flag(MEASURING, BisectOptions, "minutes"),
    *session_flags(BisectOptions, MEASURING),
)


TEXT = (
    "Say which commit, or version of a package, made a command slower, or made it train"
    " differently."
)


def run_given(run: Run, _: Try, flags: FlagValues) -> None:
    """Search, print the result, and end with code 3 if no first bad state is shown."""
    from measurement.records.results import default_folder

    options = BisectOptions(**values_of(flags, BisectOptions))
    if not (options.command and options.good and options.bad):
        raise PlanError(
            "give a command in quotes, --good and --bad: ringside bisect 'python train.py' --good"
            " v1.2 --bad HEAD"
        )
    bisection = Bisection(run, flags, options, folder=options.output or default_folder("bisect"))
    if not bisection.tell(
        *search(bisection.last, bisection.look, bisection.seen, minutes=options.minutes)
    ):
        raise typer.Exit(EXIT_NOT_SHOWN)


class Bisection:
    """A search among states, the good one first."""

    def __init__(
        self, run: Run, flags: FlagValues, options: BisectOptions, *, folder: Path
    ) -> None:
        """Raises a ``PlanError`` if good does not come before bad, or the folder has another
        search.
        """
        from runners.planning.command_place import commit_of, commits_between, repository_of
        from runners.scripts.environments import versions_between

        self.run, self.flags, self.options, self.folder = run, flags, options, folder
        self.threshold = 1 - percent_of(options.slower, flag="--slower") / 200
        ends = options.good, options.bad
        self.repository = None
        if options.package:
            self.states = versions_between(options.package, *ends)
        else:
            self.repository = repository_of(Path.cwd())
            first, last = (commit_of(self.repository, end) for end in ends)
            self.states = [first, *commits_between(self.repository, first, last)]
        self.last = len(self.states) - 1
        if self.last < 1:
            raise PlanError(
                f"{quoted(options.good)} does not come before {quoted(options.bad)}; give the"
                " earlier one as --good"
            )
        asked = [options.command, *ends, str(options.package), options.asks, options.slower]
        self.state = State(asked=asked)
        if (folder / STATE).is_file():
            self.state = State.model_validate_json(read_text(folder / STATE))
        if self.state.asked != asked:
            raise PlanError(
                f"'{folder}' has another search ({' '.join(self.state.asked)}); name another folder"
                " with -o"
            )
        seen = self.state.seen
        self.seen = {at: seen[name] for at, name in enumerate(self.states) if name in seen}

    def name(self, at: int) -> str:
        """A short name of a state."""
        return (
            self.states[at][:10] if self.repository else f"{self.options.package}-{self.states[at]}"
        )

    def look(self, at: int, minutes: float) -> Seen:
        """Compare a state with the good one, and keep the result."""
        began, before = time.monotonic(), self.seen.get(at, Seen())
        say(f"{self.name(at)}, number {at} of {self.last}, against {self.name(0)}")
        seen = Seen()
        try:
            seen = self._compared(at, minutes)
        except RingsideError as error:
            seen.said = str(error)
        seen.minutes = before.minutes + (time.monotonic() - began) / 60
        self.state.seen[self.states[at]] = seen
        write_whole(self.folder / STATE, self.state.model_dump_json(indent=2))
        say(f"{self.name(at)} is {self._word(seen)}")
        return seen

    def _compared(self, at: int, minutes: float) -> Seen:
        from measurement.records.results import ResultsFolder

        is_speed = self.options.asks == "speed"
        sure = {"minutes": minutes, "max_minutes": minutes, "confidence": confidence(self.last)}
        measured = sure if is_speed else {**FIRST_STEPS, "control": True}
        settings = [
            *self.options.settings,
            *(f"measurement.{name}={value}" for name, value in measured.items()),
        ]
        kind, prefix = ("commit", "") if self.repository else ("with", f"{self.options.package}==")
        plan = ab_command.plan_of(
            flags_with(
                self.flags,
                {
                    "command-a": self.options.command,
                    "name-a": self.name(0),
                    "name-b": self.name(at),
                    f"{kind}-a": prefix + self.states[0],
                    f"{kind}-b": prefix + self.states[at],
                    "set": settings,
                },
            )
        )
        folder = ResultsFolder(self.folder / self.name(at))
        comparison = self.run(
            plan,
            folder,
            again=command_to_repeat(self.folder),
            resume_elsewhere=self.options.resume_elsewhere,
            is_shown=False,
        )
        if not comparison.is_ok:
            return Seen(said=f"an arm failed; see {folder.root / 'report.html'}")
        if not is_speed:
            return _equality(comparison.equality, arm=self.name(at), control=plan.control_name)
        (result,) = (row for row in comparison.results if row.role == "candidate")
        low, high = result.equivalence_low, result.equivalence_high
        return Seen(
            is_bad=None if result.withheld_by else judged(low, high, self.threshold),
            low=low,
            high=high,
            said=result.note or "",
        )

    def _word(self, seen: Seen) -> str:
        verdict = "not decided" if seen.is_bad is None else "bad" if seen.is_bad else "good"
        interval = (
            f"throughput {seen.low:.3f} to {seen.high:.3f} of {self.name(0)}'s"
            if seen.low and seen.high
            else seen.said
        )
        return printable(f"{verdict} ({interval})" if interval else verdict)

    def tell(self, good: int, bad: int | None) -> bool:
        """Print the result; returns whether a first bad state was found."""
        from runners.planning.command_place import commit_summary

        more = f"; more --minutes may decide, with -o {self.folder}"
        if bad is None:
            seen = self.seen.get(self.last, Seen())
            print(f"No first bad state: {self.name(self.last)} itself is {self._word(seen)}{more}")
        elif bad - good > 1:
            names = ", ".join(self.name(at) for at in range(good + 1, bad))
            ends = f"{self.name(good)}, which is good, and {self.name(bad)}, which is bad"
            print(f"Between {ends}, not decided: {names}{more}")
        else:
            before = self._word(self.seen[good]) if good else "given as good"
            print(
                f"First bad: {self.name(bad)}, {self._word(self.seen[bad])}\nbefore it:"
                f" {self.name(good)}, {before}"
            )
            if self.repository:
                print(printable(commit_summary(self.repository, self.states[bad])))
        return bad is not None and bad - good == 1


def _equality(equality: Any, *, arm: str, control: str) -> Seen:
    """Whether an arm trains differently; not decided if the good one differs from itself, or
    nothing could be compared.
    """
    if equality is None:
        return Seen(said="nothing was compared")
    parts = (equality.start, equality.gradients, equality.parameters)
    of_arm, of_control = (
        {part[name].verdict for part in parts if name in part} for name in (arm, control)
    )
    different = {"apart", "another start"}
    differs = bool(different & of_arm)
    is_known = not different & of_control and (differs or "not compared" not in of_arm)
    return Seen(is_bad=differs if is_known else None, said=equality.sentence)


def steps(last: int) -> int:
    """The number of states to look at if none is skipped: number ``last``, then half of the
    interval each time.
    """
    return 1 + math.ceil(math.log2(last))


def confidence(last: int) -> float:
    """Return the confidence of the interval of each state."""
    return 1 - ERROR / (steps(last) + MAX_SKIPPED)


def judged(low: float | None, high: float | None, threshold: float) -> bool | None:
    """Whether a state is bad by its interval; None: the threshold is in it, or there is no
    interval.
    """
    if low is None or high is None or low <= threshold <= high:
        return None
    return high < threshold


def search(
    last: int, look: Look, results: dict[int, Seen], *, minutes: float
) -> tuple[int, int | None]:
    """Return the last state known as good and the first known as bad, which is None if ``last`` is
    not shown to be bad.

    ``results``: results by number, to which new ones are added. ``minutes``: for all states
    together.
    """
    good, bad = 0, None
    skipped: set[int] = set()
    while True:
        between = range(good + 1, bad) if bad else [last]
        open_to = [
            at
            for at in between
            if at not in skipped and (at in results or len(results) < steps(last) + MAX_SKIPPED)
        ]
        if not open_to:
            again = {
                at
                for at in skipped.intersection(between)
                if results.get(at, Seen()).low is not None
            }
            if not again or sum(state.minutes for state in results.values()) > NEARLY_ALL * minutes:
                return good, bad
            skipped -= again
            continue
        at = min(open_to, key=lambda number: abs(2 * number - good - (bad or last)))
        seen = _decided(
            at, look, results, minutes=minutes, left=steps(bad - good) if bad else steps(last)
        )
        if seen.is_bad is None:
            skipped.add(at)
        elif seen.is_bad:
            bad = at
        elif bad is None:
            return good, bad
        else:
            good = at


def _decided(at: int, look: Look, results: dict[int, Seen], *, minutes: float, left: int) -> Seen:
    """Look at a state until it is decided, at most twice: for half its share of the rest, or as
    long as before.

    No look begins when the minutes are spent.
    """
    for _ in range(LOOKS):
        seen, rest = (
            results.get(at, Seen()),
            minutes - sum(state.minutes for state in results.values()),
        )
        if seen.is_bad is not None or rest <= 0 or (at in results and seen.low is None):
            break
        results[at] = look(at, seen.minutes + min(max(rest / left / 2, seen.minutes), rest))
    return results.get(at, Seen())
