"""Shows how a run goes: on stderr, and in TensorBoard's event files. Results go to stdout."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from measurement.errors import printable
from measurement.plans.settings import EpochRecord, Quantity
from measurement.records.record import BlockRecord
from measurement.records.step_tables import steps_of
from reports.conclusions.step_terms import data_wait_share, terms_by_launch
from reports.conclusions.steps import Steps, tabulate_blocks, throughput_per_s

LINE_EVERY_S = 15.0
EVENT_FILES = "events.out.tfevents.*"
TAGS: Mapping[Quantity, str] = {
    "train_loss": "loss/train",
    "train_top1": "accuracy/train_top1",
    "train_top5": "accuracy/train_top5",
    "held_out_loss": "loss/held_out",
    "held_out_top1": "accuracy/held_out_top1",
    "held_out_top5": "accuracy/held_out_top5",
}
"""Tags of an epoch's figures; TensorBoard groups by the first part."""


class LaunchProgress:
    """On stderr: on a terminal a bar with the time left, elsewhere a plain line now and then.

    Counts launches. The time left is that of the budget, or an estimate by the length of
    the launch before.

    A study has one for each point; the time left includes the ``later_launches`` of later points,
    but no later budget.
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
        self._launches = self._done = 0
        self._started_at = self._last_line = time.monotonic()
        self._launch_s: float | None = None
        """The length of the last launch; None: none has ended."""
        self._budget_s = self._ends_at = 0.0
        """Seconds of the budget, and its end by the monotonic clock; 0: launches are counted."""
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1.0, left="")
        self._title = ""

    def __enter__(self) -> LaunchProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def expect(self, launches: int, *, before: int = 0) -> None:
        """Expect more launches; ``before``: how many an earlier session measured."""
        self._launches += launches + before
        self._done += before

    def expect_in_all(self, launches: int) -> None:
        """Expect this number of launches in all, including those of earlier sessions."""
        self._launches = launches

    def expect_end(self, left_s: float) -> None:
        """Expect the end in ``left_s`` seconds, which are left of a budget."""
        self._ends_at = time.monotonic() + left_s
        self._budget_s = self._budget_s or left_s

    def start(self, *, uncounted: str | None = None) -> None:
        """Begin a launch; ``uncounted``: the name of one that does not count, such as the
        rehearsal.
        """
        self._started_at = time.monotonic()
        counted = f"launch {self._done + 1} of {self._launches}"
        self._title = f"{self._point}{uncounted or counted}"

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
        self._show(part, f"{part:.0%} of it measured", took_s=measured_s)

    def epochs(self, done: int, of: int) -> None:
        """Set how many epochs all arms of this launch have trained."""
        if done:
            spent_s = time.monotonic() - self._started_at
            self._show(done / of, f"{done} of {of} epochs", took_s=spent_s)

    def _show(self, part: float, what: str, *, took_s: float) -> None:
        """Show that this part of what the launch measures is done, which took ``took_s``."""
        now = time.monotonic()
        if self._budget_s:
            left_s = self._ends_at - now
            completed = 1 - left_s / self._budget_s
            what = f"{completed:.0%} of the time spent"
        else:
            spent_s = now - self._started_at
            launch_s = self._launch_s or spent_s + took_s * (1 / max(part, 0.01) - 1)
            left_s = (self._launches + self._later - self._done) * launch_s - spent_s
            completed = (self._done + part) / max(self._launches, 1)
        minutes, seconds = divmod(round(max(left_s, 0)), 60)
        left = f"about {minutes} min {seconds:02d} s left"
        self._bar.update(
            self._task, completed=completed, description=f"{self._title}: {what}", left=left
        )
        if not self._console.is_terminal and now - self._last_line > LINE_EVERY_S:
            self._line(f"{self._title}: {what}, {left}")

    def _line(self, text: str) -> None:
        self._last_line = time.monotonic()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class TensorboardLog:
    """TensorBoard's event files, written during a run: on the driver, or on rank 0. One folder is
    one run.

    TensorBoard's step is an optimizer step for ``loss/step`` and ``learning_rate``, else the number
    of finished epochs (or, in plans without ``training``, rounds). Every call writes to the file at
    once, so a run can be watched, and a killed run leaves its figures. The figures are those of the
    reports, for one round or epoch.
    """

    def __init__(self, folder: Path, *, sample_unit: str) -> None:
        # Where TensorFlow is installed, importing this takes seconds.
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))
        self._throughput = f"throughput/{sample_unit}_per_s"

    def epoch(self, record: EpochRecord, block: BlockRecord) -> None:
        """Write the figures of a finished epoch; both arguments are of all ranks."""
        first = record.epoch * record.steps
        for step, loss in enumerate(record.step_losses, start=first):
            self._writer.add_scalar("loss/step", loss, step)
        for step, rate in zip(
            (first, first + record.steps - 1), record.learning_rates, strict=True
        ):
            self._writer.add_scalar("learning_rate", rate, step)
        figures = {TAGS[name]: value for name, value in record.figures().items() if name in TAGS}
        self._add(figures | self._timing(Steps.of(_raw_steps([block]))), record.epoch + 1)

    def rounds(self, blocks: Sequence[BlockRecord]) -> None:
        """Write every round of a finished launch without training.

        ``blocks``: all of one arm, at least one.
        """
        steps = _raw_steps(blocks)
        for number, raw in steps.groupby("round"):
            round_steps = Steps.of(raw)
            figures = self._timing(round_steps.where(kind="sync"))
            terms = terms_by_launch(round_steps, None)
            if len(terms):
                figures["exposed_exchange/s"] = float(terms["exposed_exchange"].iloc[0])
            self._add(figures, int(str(number)) + 1)

    def close(self) -> None:
        """Close the file; nothing more can be written."""
        self._writer.close()

    def _timing(self, sync: Steps) -> dict[str, float]:
        """Return the figures of the synchronised steps of a round or epoch."""
        if not len(sync):
            return {}
        return {
            self._throughput: throughput_per_s(tabulate_blocks(sync)),
            "step_time/median_s": float(sync.slowest["step_s"].median()),
            "data_wait/share": data_wait_share(sync.rank_blocks),
        }

    def _add(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


def _raw_steps(blocks: Sequence[BlockRecord]) -> pd.DataFrame:
    """The raw steps of one arm in one launch, as ``reports.conclusions`` reads them."""
    return steps_of(blocks).assign(launch=0, arm="")
