"""Shows progress on stderr: on a terminal a bar with the time left, elsewhere a plain line now and
then. Results go to stdout.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from measurement.errors import printable

LINE_EVERY_S = 15.0


class LaunchProgress:
    """Counts launches and shows the time left: that of the budget, or an estimate by the length of
    earlier launches.

    Within a launch the time left only falls. A study has one for each point; the time left includes
    the ``later_launches`` of later points, but no later budget.
    """

    def __init__(
        self,
        *,
        seconds_per_launch: float,
        point: str = "",
        later_launches: int = 0,
        console: Console | None = None,
    ) -> None:
        self._point = f"{point}, " if point else ""
        self._later = later_launches
        self._console = console or Console(stderr=True)
        self._seconds = seconds_per_launch
        self._launches = self._done = self._before = 0
        self._started_at = self._last_line = time.monotonic()
        self._launch_s: float | None = None
        self._ends_at: float | None = None
        """The expected end by the monotonic clock; None: not known yet."""
        self._budget_s: float | None = None
        """Seconds from when the budget was known to its end; None: launches are counted."""
        self._training_at: float | None = None
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._bar = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._task = self._bar.add_task("", total=1.0, left="")
        self._title = ""

    def __enter__(self) -> LaunchProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def expect(self, launches: int, *, before: int = 0) -> None:
        """Expect more launches; ``before``: how many an earlier session measured."""
        self._launches += launches
        self._before += before

    def expect_in_all(self, launches: int) -> None:
        """Expect this number of launches in all, including those of earlier sessions."""
        self._launches = launches - self._before

    def expect_end(self, left_s: float) -> None:
        """Expect the end in ``left_s`` seconds, which are left of a budget."""
        self._ends_at = time.monotonic() + left_s
        self._budget_s = self._budget_s or left_s

    def start(self, *, uncounted: str | None = None) -> None:
        """Begin a launch; ``uncounted``: the name of one that does not count, such as the
        rehearsal.
        """
        self._started_at, self._training_at = time.monotonic(), None
        counted = f"launch {self._before + self._done + 1} of {self._before + self._launches}"
        self._title = f"{self._point}{uncounted or counted}"
        if self._budget_s is None:
            self._ends_at = None
            if self._launch_s is not None and uncounted is None:
                self._expect(self._launch_s)

    def launch_done(self) -> None:
        """End a launch; its length is the estimate for the next ones."""
        self._done += 1
        self._launch_s = time.monotonic() - self._started_at

    def say(self, what: str) -> None:
        """Show what is being done now."""
        what = printable(what)
        self._bar.update(self._task, description=f"{self._title}: {what}")
        if not self._console.is_terminal:
            self._line(f"{self._title}: {what}" if self._title else what)
        elif "failed" in what or "wrong" in what or "timeout" in what:
            self._console.print(f"{self._title}: {what}", markup=False, highlight=False)

    def show(self, what: RenderableType) -> None:
        """Show a table, or a line, that stays."""
        self._console.print(what)

    def tick(self, measured_s: float, *, share: float | None = None) -> None:
        """Set how many seconds of blocks this launch has measured; ``share``: the share of its
        rounds, if these are counted.
        """
        part = min(1.0, measured_s / self._seconds if share is None else share)
        whole_s = self._seconds if share is None else measured_s / part
        self._show(
            part, f"{part:.0%} of it measured", launch_s=self._spent_s() - measured_s + whole_s
        )

    def epochs(self, done: int, of: int) -> None:
        """Set how many epochs all arms of this launch have trained; later ones are expected to take
        as long.
        """
        spent_s = self._spent_s()
        if self._training_at is None or not done:
            self._training_at = spent_s
            return
        to_come_s = (spent_s - self._training_at) * (of - done) / done
        self._show(done / of, f"{done} of {of} epochs", launch_s=spent_s + to_come_s)

    def _expect(self, launch_s: float) -> None:
        """Estimate the end, if this launch takes ``launch_s`` in all; never later than estimated
        before.
        """
        to_come = self._launches + self._later - self._done - 1
        ends_at = self._started_at + launch_s + to_come * (self._launch_s or launch_s)
        self._ends_at = ends_at if self._ends_at is None else min(ends_at, self._ends_at)

    def _show(self, part: float, what: str, *, launch_s: float) -> None:
        """Show the progress of this launch, which is expected to take ``launch_s`` in all."""
        if self._budget_s is None:
            self._expect(launch_s)
            completed = (self._done + part) / max(self._launches, 1)
        else:
            completed = 1 - self._left_s / self._budget_s
            what = f"{completed:.0%} of the time spent"
        self._bar.update(
            self._task, completed=completed, description=f"{self._title}: {what}", left=self._left()
        )
        if not self._console.is_terminal and time.monotonic() - self._last_line > LINE_EVERY_S:
            self._line(f"{self._title}: {what}, {self._left()}")

    @property
    def _left_s(self) -> float:
        return max(0.0, (self._ends_at or 0.0) - time.monotonic())

    def _left(self) -> str:
        """How much time is left, in words."""
        minutes, seconds = divmod(round(self._left_s), 60)
        return (
            f"about {minutes} min {seconds:02d} s left"
            if minutes
            else f"about {seconds} s left"
            if seconds
            else "nearly done"
        )

    def _spent_s(self) -> float:
        return time.monotonic() - self._started_at

    def _line(self, text: str) -> None:
        self._last_line = time.monotonic()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
