"""The folder of a comparison: its plan, the environments it was measured in, how long that took,
when verdicts were seen, and which launch is next.

Next are launches of the plan that have no records, or those for which a budget of minutes has time,
and more until verdicts are decided.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from measurement.agent.ringside_agent.machine import fingerprint
from measurement.conditions.same_environment import (
    changes_since,
    environment_of,
    find_environment,
    format_changes,
    plan_digest,
)
from measurement.errors import RecordError
from measurement.files import LOCK_FILE
from measurement.host import git_state
from measurement.plans.plan import Plan
from measurement.records.record import Manifest, OtherEnvironment
from measurement.records.results import ResultsFolder, write_result
from reports import conclude
from reports.launch_budget import LaunchLength, choose_length
from reports.statistics.budget import next_analysis
from runners.driver.rounds import RoundLimit
from runners.progress import LaunchProgress


def new_manifest(folder: ResultsFolder, plan: Plan, **fields: Any) -> Manifest:
    """The manifest of a folder in which nothing was measured yet; ``fields``: those that only the
    caller knows.
    """
    return Manifest(
        comparison_id=folder.root.name,
        plan_digest=plan_digest(plan),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        ringside_version=version("ringside"),
        driver=fingerprint() | git_state(Path(__file__).parent),
        **fields,
    )


class ComparisonHistory:
    """Keeps a comparison's manifest, over all sessions that measured into its folder."""

    def __init__(
        self, folder: ResultsFolder, now: Manifest, *, sources: Mapping[str, Path]
    ) -> None:
        """``now``: the manifest that this session would begin with; ``sources``: the user's files,
        by their names in the folder.
        """
        stored = folder.manifest()
        changes = changes_since(stored, folder.records(), now)
        before = find_environment(stored.elsewhere, now) if stored else None
        self.manifest = stored or now
        self.environment = environment_of(now)
        self.changes = [] if before else format_changes(changes)
        """What has changed since the folder's launches were measured, unless a user went on in this
        environment before."""
        self._folder, self._sources, self._is_new = folder, sources, stored is None
        self._elsewhere = (
            (
                before
                or OtherEnvironment(
                    differences=format_changes(changes), environment=self.environment
                )
            )
            if changes
            else None
        )
        self.begin_clock()

    def begin_clock(self) -> None:
        """Count the seconds of this session from now on: what came before is not part of the
        budget.
        """
        self._began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds of this session so far."""
        return time.monotonic() - self._began

    @property
    def spent_s(self) -> float:
        """Seconds of all sessions so far."""
        return self.manifest.seconds.get("total", 0.0) + self.elapsed_s

    def begin(self, *, notes: Sequence[str]) -> None:
        """Begin to measure; ``notes``: of a new comparison."""
        if self._is_new:
            self._keep_sources("sources")
        self.manifest.notes = list(notes) if self._is_new else self.manifest.notes

    def note_launch(self, number: int) -> None:
        """Record the environment of a launch before it is measured."""
        for other in self.manifest.elsewhere:
            other.launches = [launch for launch in other.launches if launch != number]
        if self._elsewhere:
            self._elsewhere.launches.append(number)
            if self._elsewhere not in self.manifest.elsewhere:
                self.manifest.elsewhere = [*self.manifest.elsewhere, self._elsewhere]
                self._keep_sources(f"sources-{len(self.manifest.elsewhere)}")
        self.write()

    def write(self) -> None:
        """Write the manifest, with the seconds of this session added to those of earlier ones."""
        seconds = {"total": round(self.spent_s, 3)}
        self._folder.write_manifest(self.manifest.model_copy(update={"seconds": seconds}))

    def _keep_sources(self, folder: str) -> None:
        for name, path in self._sources.items():
            write_result(self._folder.root / folder / name, path.read_bytes())


def require_same_plan(folder: ResultsFolder, plan: Plan) -> None:
    """Refuse a folder that has another plan's results or other files, with a ``RecordError``."""
    if folder.plan_path.is_file():
        other = folder.read_plan()
        if plan_digest(other) != plan_digest(plan):
            raise RecordError(
                f"'{folder.root}' holds results of another plan ('{other.name}', digest"
                f" {plan_digest(other)}, not {plan_digest(plan)}); give another folder with -o, or"
                " the plan as it was to go on measuring"
            )
    elif folder.root.is_dir() and any(entry.name != LOCK_FILE for entry in folder.root.iterdir()):
        raise RecordError(
            f"'{folder.root}' is not empty and holds no plan.yaml; give another folder with -o"
        )


def open_folder(folder: ResultsFolder, plan: Plan) -> None:
    """Lock the folder and write the plan into it, unless another process writes into it."""
    folder.lock()
    folder.write_plan(plan)


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
        self._planned = plan.measurement.launches if plan.measurement.minutes is None else None
        """Launches that the plan asks for; with a budget of minutes, None until they are done."""

    @cached_property
    def is_measured(self) -> bool:
        """Whether the folder has all launches that the plan asks for when a session begins, so that
        only reports are to be written.
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
        if self._plan.measurement.minutes is not None:
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
        done, manifest = len(self._complete()), self.history.manifest
        if self._planned is not None and done >= self._planned and done not in manifest.looks:
            manifest.looks = [*manifest.looks, done]
        self.history.write()

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
        assert self._planned is not None
        if len(self._complete()) < next_analysis(history.manifest.looks, launches=self._planned):
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
