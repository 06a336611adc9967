"""Which launch of a comparison is next and how long it is: those of the plan that have no records,
those for which a budget of minutes has time, and more until verdicts are decided.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pandas as pd

from measurement.plans.plan import Plan
from measurement.records.results import ResultsFolder
from reports import conclude
from reports.launch_budget import LaunchLength, choose_length
from reports.statistics.budget import next_analysis
from runners.driver.comparison_folder import ComparisonHistory
from runners.driver.rounds import RoundLimit
from runners.progress import LaunchProgress


class LaunchSchedule:
    """The launches of one session that measures into a folder."""

    history: ComparisonHistory
    """Known when launches begin."""

    def __init__(self, plan: Plan, folder: ResultsFolder, progress: LaunchProgress) -> None:
        self.limit: RoundLimit | None = None
        """When the next launch has enough rounds, if the plan has a budget of minutes."""
        self._plan, self._folder, self._progress = plan, folder, progress
        self._blocks: dict[int, pd.DataFrame] = {}
        """Blocks by launch, as far as they were read to choose the length of the next one."""
        self._planned: int | None = None
        """Launches that the plan asked for, known once they are measured."""

    @property
    def is_measured(self) -> bool:
        """Whether the folder already has all launches that the plan asks for, so that only reports
        are to be written.
        """
        plan, folder, measure = self._plan, self._folder, self._plan.measurement
        done = self._complete()
        manifest = folder.manifest()
        if (
            manifest is None
            or len(done) not in manifest.looks
            or (plan.trace and folder.traces() is None)
        ):
            return False
        if measure.minutes is None:
            if not done.issuperset(range(measure.launches)):
                return False
        elif self._choose(self._left_s(manifest.seconds.get("total", 0.0))):
            return False
        return not measure.until_decided or (
            folder.read_plan().measurement == measure and not conclude(folder).undecided
        )

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of launches to run: the plan's, then more with ``until_decided`` while
        there is time.
        """
        measured = self._complete()
        for number in self._planned_numbers(measured):
            measured.add(number)
            yield number
        self._planned = len(measured)
        while self._wants_more():
            number = max(measured, default=-1) + 1
            self._progress.expect(1)
            if self._plan.measurement.minutes is not None:
                left_s = self._left_s(0.0)
                if length := self._choose(left_s):  # else that of the last launch
                    self._set_limit(length, left_s=left_s)
            measured.add(number)
            yield number

    def note_look(self) -> None:
        """Record that the verdicts are seen now, unless launches of the plan are still to come."""
        done = len(self._complete())
        if self._plan.measurement.minutes is None:
            self.history.note_look(done, planned=self._plan.measurement.launches)
        else:
            self.history.note_look(done, planned=0 if self._planned is not None else done + 1)

    def _planned_numbers(self, measured: set[int]) -> Iterator[int]:
        """Yield the plan's launches that are not measured yet; with a budget, those for which it
        has time.
        """
        if self._plan.measurement.minutes is None:
            launches = range(self._plan.measurement.launches)
            missing = [number for number in launches if number not in measured]
            self._progress.expect(len(missing), before=len(measured))
            yield from missing
            return
        self._progress.expect(0, before=len(measured))
        while length := self._choose(left_s := self._left_s(self.history.spent_s)):
            self._progress.expect_in_all(length.launches)
            self._set_limit(length, left_s=left_s)
            yield next(number for number in itertools.count() if number not in measured)

    def _left_s(self, spent_s: float) -> float:
        """What is left of the budget."""
        measure = self._plan.measurement
        assert measure.minutes is not None
        return 60 * min(measure.minutes, measure.max_minutes or measure.minutes) - spent_s

    def _choose(self, left_s: float) -> LaunchLength | None:
        """The length of the next launch within the budget; None if no launch fits."""
        return choose_length(self._plan, self._folder, left_s=left_s, read_blocks=self._blocks)

    def _set_limit(self, length: LaunchLength, *, left_s: float) -> None:
        self._progress.expect_end(left_s)
        self.limit = RoundLimit(rounds=length.rounds, budget_s=left_s)

    def _wants_more(self) -> bool:
        measure, history = self._plan.measurement, self.history
        if measure.max_minutes is None or history.elapsed_s > 60 * measure.max_minutes:
            return False
        planned = (
            measure.launches if self._planned is None or measure.minutes is None else self._planned
        )
        done = len(self._complete())
        if done < next_analysis(history.manifest.looks, launches=planned):
            return True
        self.note_look()
        return bool(conclude(self._folder).undecided)

    def _complete(self) -> set[int]:
        """The launches in which every arm has a record and none was interrupted."""
        records = self._folder.records()
        interrupted = {record.launch for record in records if not record.complete}
        by_arm = [
            {record.launch for record in records if record.arm == arm}
            for arm in self._plan.compared_arms()
        ]
        return set.intersection(*by_arm) - interrupted
