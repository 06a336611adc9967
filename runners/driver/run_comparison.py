"""Runs a whole comparison: all launches of the plan, records after each, reports at the end.

Resumes an interrupted one.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path

import pandas as pd

from measurement.agent.ringside_agent.machine.core_use import usable_cores
from measurement.conditions.sources import digests
from measurement.environment import steering_environment
from measurement.errors import PlanError
from measurement.plans.plan import Plan
from measurement.probes.fingerprint import BUSY_REMEDY, busy_warning
from measurement.records.record import LaunchRecord, LengthChoice
from measurement.records.results import ResultsFolder
from reports import conclude, make_reports, write_reports
from reports.against import StoredComparison
from reports.formats.terminal import differences_table, shown
from reports.launch_budget import choose_length
from reports.schema import Comparison
from reports.scripts.configuration import script_differences
from reports.scripts.equality import judge_equality
from reports.scripts.lines import TIMED
from reports.scripts.script_arms import notes_on_files
from reports.statistics.budget import next_analysis
from runners.driver.arm_session import ArmSession
from runners.driver.batch_search import find_batch
from runners.driver.compared_arms import ComparedArms
from runners.driver.comparison_folder import (
    ComparisonHistory,
    new_manifest,
    open_folder,
    refuse_another_environment,
    require_same_plan,
)
from runners.driver.endpoint import DriverEndpoint, open_endpoint
from runners.driver.gates import gate_fails_for_all
from runners.driver.launch import Launch, is_comparable
from runners.driver.rehearsal import (
    Passed,
    PassedRehearsals,
    rehearse,
    require_something_to_measure,
    trace_arms,
    try_commands,
)
from runners.driver.rounds import RoundLimit
from runners.event_log import EVENT_FILES
from runners.hosts.batch_jobs import job_id
from runners.hosts.placement import Placement
from runners.hosts.ssh_probe import probe_hosts
from runners.launchers.trial_facts import TrialFacts
from runners.planning.arm_specs import seed_of
from runners.planning.available import left_out_line
from runners.planning.workload import WorkloadSetup
from runners.progress import LaunchProgress
from runners.scripts.initial_state import FIRST_STATE, SharedInitialState


class ComparisonRun:
    """Runs a plan into a folder."""

    def __init__(
        self,
        plan: Plan,
        folder: ResultsFolder,
        *,
        progress: LaunchProgress,
        resume_elsewhere: bool = False,
        earlier: StoredComparison | None = None,
        tried: Sequence[LaunchRecord] = (),
    ) -> None:
        """``tried``: records of an earlier trial, whose commands are not tried again."""
        self.plan = plan
        self.folder = folder
        self.resume_elsewhere = resume_elsewhere
        self.earlier = earlier
        self.progress = progress
        self.compared = ComparedArms(plan, say=progress.say)
        make_reports(plan.reports)  # refused before anything is measured
        self._notes = [left_out_line(plan.left_out)] if plan.left_out else []
        self._is_rehearsed = self._is_fitted = False
        self._rehearsals: PassedRehearsals | None = None
        self._limit: RoundLimit | None = None
        """When the next launch has enough rounds, if the plan has a budget of minutes."""
        self._between: list[float] = []
        """Seconds from the end of each launch of this session until the next began."""
        self._ended_s: float | None = None
        self._blocks: dict[int, pd.DataFrame] = {}
        """Blocks by launch, as far as they were read to choose the length of the next one."""
        self._planned: int | None = None
        """Launches that the plan asked for, known once they are measured."""
        self._refused: dict[str, LaunchRecord] = {}
        """By name, the rehearsal's records of arms that failed in it."""
        self.tried = list(tried)
        """The trial's records of commands, if this session held one."""
        self._shown_differences = ""
        """The differences between scripts as shown last."""
        self._shown_files: set[str] = set()
        """The notes on files that scripts write, as shown so far."""
        self.comparison: Comparison | None = None
        """The result, once reports are written."""

    def prepare(self) -> None:
        """Check the folder, the hosts and the data before a process starts or a file is written.

        Raises:
            PlanError, RecordError, LaunchError: what cannot work, and what to do.
        """
        require_same_plan(self.folder, self.plan)
        if not self.is_measured:
            self.check_hosts()
            refuse_another_environment(self.folder, self.changes())
            if self.earlier is not None:
                self.earlier.require_like(
                    StoredComparison(
                        folder=self.folder, plan=self.plan, manifest=self.history.manifest
                    )
                )
            self.compared.require_data()
        open_folder(self.folder, self.plan)

    @cached_property
    def is_measured(self) -> bool:
        """Whether the folder already has all launches that the plan asks for, so that only reports
        are to be written.
        """
        done, measure = self._complete_launches(), self.plan.measurement
        manifest = self.folder.read_manifest() if self.folder.manifest_path.is_file() else None
        if (
            manifest is None
            or len(done) not in manifest.looks
            or (self.plan.trace and self.folder.traces() is None)
        ):
            return False
        if measure.minutes is not None and self._choose(
            done, spent_s=manifest.seconds.get("total", 0.0)
        ):
            return False
        if measure.minutes is None and not done.issuperset(range(measure.launches)):
            return False
        return not measure.until_decided or (
            self.folder.read_plan().measurement == measure and not conclude(self.folder).undecided
        )

    def check_hosts(self) -> None:
        """Check hosts and launchers; raises a ``PlanError`` or ``LaunchError`` with what to do."""
        compared = self.compared
        self._note(compared.check())
        sources = compared.sources()
        now = new_manifest(
            self.folder,
            self.plan,
            hosts={
                host: dict(host_facts) for host, host_facts in compared.inspection.facts.items()
            },
            slurm_job=job_id(self.plan.hosts, os.environ),
            sources=digests(sources) | compared.revisions(),
            warnings=list(compared.inspection.warnings),
        )
        self.history = ComparisonHistory(
            self.folder, now, sources=sources | compared.own_work.files
        )

    def changes(self) -> list[str]:
        """What has changed since the folder was measured; empty if the user accepts all changes.

        After ``check_hosts``.
        """
        return [] if self.resume_elsewhere else self.history.changes

    def _note(self, notes: Iterable[str]) -> None:
        for note in (note for note in notes if note not in self._notes):
            self._notes.append(note)
            self.progress.say(f"note: {note}")

    def run(self) -> Comparison:
        """Run the launches that have no records yet, then write the reports, also after Ctrl-C,
        which is raised again.
        """
        if self.is_measured:
            return self._write(self.earlier, why="every launch is measured already; ")
        busy = busy_warning(usable_cores()) if self.compared.has_ranks_here else None
        self.history.begin(notes=self._notes)
        for warning in (*self.compared.warnings(), *([f"{busy}; {BUSY_REMEDY}"] if busy else [])):
            self.progress.say(f"warning: {warning}")
        done = self._complete_launches()
        try:
            opened = open_endpoint(
                self.compared.inspection.placement, has_store=not self.plan.are_scripts
            )
            with opened as endpoint, _without_garbage_collection():
                for number in self._numbers(done):
                    self.folder.require_room()
                    self._fit_once()
                    self._rehearse_once()
                    self._launch(number, endpoint)
                    gc.collect()
                    if self._must_stop(number):
                        break
                else:
                    self._trace_once()
        except BaseException:
            self._note_look()
            if self.folder.records():
                self._write(None)
            raise
        self._note_look()
        return self._write(self.earlier)

    def _write(self, earlier: StoredComparison | None, *, why: str = "") -> Comparison:
        """Write the reports.

        If the earlier result is of other conditions, write them without it and raise.
        """
        self.progress.say(f"{why}writing reports")
        try:
            self.comparison = write_reports(self.folder, earlier=earlier)
        except PlanError:
            self.comparison = write_reports(self.folder)
            raise
        return self.comparison

    def _fit_once(self) -> None:
        """Find the largest batch of each arm that asks for it, unless an earlier session has found
        it.
        """
        if self._is_fitted or self.compared.workload is None:
            return
        fitted, self._is_fitted = self.history.manifest.fitted, True
        placement, folder = self.compared.inspection.placement, self.folder.root / "fit"
        for name in (
            name for name, arm in self.plan.arms.items() if arm.fit and name not in fitted
        ):
            fitted[name] = find_batch(
                self.plan,
                name,
                self.compared.workload,
                placement=placement,
                folder=folder,
                progress=self.progress,
            )
            self.history.write()
        if fitted:
            self.history.begin_clock()
        self.compared.fit(fitted)

    def _rehearse_once(self) -> None:
        """Rehearse, or try commands, before the first launch of this session, unless arms take the
        gate first.
        """
        wanted, workload = self.plan.measurement.rehearsal, self.compared.workload
        gate_comes_first = workload is not None and workload.gate_comes_first(self.plan.training)
        if self._is_rehearsed or wanted == "never" or gate_comes_first:
            return
        self._is_rehearsed = True
        conditions = self.history.environment | steering_environment(os.environ)
        self._rehearsals = rehearsals = PassedRehearsals(self.plan, conditions=conditions)
        passed = rehearsals.recall() if wanted == "once" else None
        if passed is None:
            passed = self._try(workload)
            if not self._refused:
                rehearsals.keep(passed)
        self._note_trial(passed.notes)
        self.compared.learn(passed.learned)
        if passed.learned and not (
            self.plan.measurement.rounds or self.plan.measurement.steps_per_launch
        ):
            self.progress.expect_start(
                sum(trial.first_steps_s for trial in passed.learned.values())
            )

    def _try(self, workload: WorkloadSetup | None) -> Passed:
        """Run the rehearsal of a workload, or the trial of commands, and then show the differences
        between these.
        """
        placement, progress = self.compared.inspection.placement, self.progress
        if workload is not None:
            folder, on_gpus = self.folder.root / "rehearsal", self.compared.are_on_gpus
            rehearsal = rehearse(
                self.compared.plan,
                workload,
                placement=placement,
                folder=folder,
                progress=progress,
                on_gpus=on_gpus,
            )
            self._refused = rehearsal.failed
            require_something_to_measure(self.plan, self._refused, folder=folder)
            return Passed(notes=rehearsal.notes, learned={})
        tried = {record.arm for record in self.tried}
        commands = [arm for arm in self.compared.without_control if arm.name not in tried]
        notes: list[str] = []
        if commands:
            folder, state = self.folder.root / "trial", self._initial_state()
            trial = try_commands(
                self.plan,
                commands,
                placement=placement,
                folder=folder,
                state=state,
                progress=progress,
            )
            self._refused, notes = trial.failed, trial.notes
            self.tried += [arm.record for arm in trial.arms]
        self._show_differences(self.tried)
        return Passed(
            notes=notes,
            learned={
                record.arm: TrialFacts.from_record(record)
                for record in self.tried
                if record.status == "ok"
            },
        )

    def try_alone(self) -> list[LaunchRecord]:
        """Run the trial of commands and no launch; returns its records, none if a command
        failed.
        """
        self.check_hosts()
        self._try(None)
        return [] if self._refused else self.tried

    def _initial_state(self, placement: Placement | None = None) -> SharedInitialState | None:
        """The file with which all scripts start, if the plan asks for it."""
        placement = placement or self.compared.inspection.placement
        return (
            SharedInitialState(self.folder.root / FIRST_STATE, placement)
            if self.plan.scripts.same_start
            else None
        )

    def _note_trial(self, notes: Sequence[str]) -> None:
        """Show a trial's notes, and keep them for the report."""
        self._note(notes)
        self.history.manifest.notes += [
            note for note in notes if note not in self.history.manifest.notes
        ]

    def _trace_once(self) -> None:
        """Trace the arms after their launches, if the plan asks for it and the folder has no trace
        yet.
        """
        if self.plan.trace and self.compared.workload is not None and self.folder.traces() is None:
            trace_arms(
                self.compared.plan,
                self.compared.workload,
                placement=self.compared.inspection.placement,
                folder=self.folder.traces_folder,
                progress=self.progress,
                refused=self._refused,
            )

    def _numbers(self, done: set[int]) -> Iterator[int]:
        """Yield the numbers of launches to run: the plan's, then more with ``until_decided`` while
        there is time.
        """
        measured = set(done)
        for number in self._planned_numbers(measured):
            measured.add(number)
            yield number
        self._planned = len(measured)
        while self._wants_more():
            number = max(measured, default=-1) + 1
            self.progress.expect(1)
            if self.plan.measurement.minutes is not None:
                self._set_limit(self._choose(measured, spent_s=0.0))
            measured.add(number)
            yield number

    def _planned_numbers(self, measured: set[int]) -> Iterator[int]:
        """Yield the plan's launches that are not measured yet; with a budget, those for which it
        has time.
        """
        if self.plan.measurement.minutes is None:
            missing = [
                number for number in range(self.plan.measurement.launches) if number not in measured
            ]
            self.progress.expect(len(missing), before=len(measured))
            yield from missing
            return
        self.progress.expect(0, before=len(measured))
        while choice := self._choose(measured, spent_s=self.history.spent_s):
            self.progress.expect_in_all(choice.launches)
            self._set_limit(choice)
            yield choice.launch

    def _choose(self, measured: set[int], *, spent_s: float) -> LengthChoice | None:
        """The length of the next launch within the budget; None if no launch fits."""
        measure = self.plan.measurement
        assert measure.minutes is not None
        left_s = 60 * min(measure.minutes, measure.max_minutes or measure.minutes) - spent_s
        number = next(number for number in itertools.count() if number not in measured)
        between_s = statistics.median(self._between) if self._between else 0.0
        return choose_length(
            self.plan,
            self.folder,
            launch=number,
            left_s=left_s,
            between_s=between_s,
            read_blocks=self._blocks,
        )

    def _set_limit(self, choice: LengthChoice | None) -> None:
        """Set the length of the next launch; None keeps that of the last one."""
        if choice is not None:
            others = [
                earlier
                for earlier in self.history.manifest.choices
                if earlier.launch != choice.launch
            ]
            self.history.manifest.choices = [*others, choice]
            self.progress.expect_end(choice.left_s)
            self._limit = RoundLimit(rounds=choice.rounds, budget_s=choice.left_s)

    def _must_stop(self, number: int) -> bool:
        """Whether another launch would fail: a host no longer answers, no arm passed the gate, or
        scripts failed.
        """
        reasons = [
            str(probe)
            for probe in probe_hosts(self.compared.inspection.placement.everywhere)
            if probe.status != "ok"
        ]
        records = [record for record in self.folder.records() if record.launch == number]
        failed = {record.arm for record in records if record.status != "ok"}
        if not reasons and gate_fails_for_all(records):
            reasons = ["no arm passed the gate, and none would in another"]
        elif not reasons and self.plan.are_scripts and not is_comparable(self.plan, failed):
            reasons = [
                f"nothing is left to compare, since {', '.join(sorted(failed))} did not run to"
                " the end"
            ]
        for reason in reasons:
            self.progress.say(f"no further launches: {reason}")
        return bool(reasons)

    def _wants_more(self) -> bool:
        measure, history = self.plan.measurement, self.history
        if measure.max_minutes is None or history.elapsed_s > 60 * measure.max_minutes:
            return False
        planned = (
            measure.launches if self._planned is None or measure.minutes is None else self._planned
        )
        if len(self._complete_launches()) < next_analysis(history.manifest.looks, launches=planned):
            return True
        self._note_look()
        return bool(conclude(self.folder).undecided)

    def _note_look(self) -> None:
        """Record that the verdicts are seen now, unless launches of the plan are still to come."""
        done = len(self._complete_launches())
        if self.plan.measurement.minutes is None:
            self.history.note_look(done, planned=self.plan.measurement.launches)
        else:
            self.history.note_look(done, planned=0 if self._planned is not None else done + 1)

    def _launch(self, number: int, endpoint: DriverEndpoint) -> None:
        self.progress.start()
        self.history.note_launch(number)
        if self._ended_s is not None:
            self._between.append(time.monotonic() - self._ended_s)
        launch = self._new_launch(number, endpoint, limit=self._limit)
        try:
            launch.run()
            if launch.failed and self._rehearsals is not None:
                self._rehearsals.forget()
            if self._ended_s is None:
                self._show_files([arm.record for arm in launch.arms])
        finally:
            self._note_trial(launch.notes)
            self.history.starting_s += launch.starting_s
            self.history.training_s += launch.measuring_s
            self._ended_s = launch.ended_s
        self.progress.launch_done()

    def _new_launch(
        self, number: int, endpoint: DriverEndpoint, *, limit: RoundLimit | None
    ) -> Launch:
        """Make a launch; ``limit``: see ``Launch``."""
        if endpoint.placement.spare:
            drawn = endpoint.placement.sample(random.Random(f"{self.plan.seed}/{number}/nodes"))
            endpoint = dataclasses.replace(endpoint, placement=drawn)
        compared = self.compared
        setups = [*compared.arms.values(), *([compared.floor] if compared.floor else [])]
        for old in (
            path
            for setup in setups
            for path in self._events_folder(number, setup.name).glob(EVENT_FILES)
        ):
            old.unlink()
        return Launch(
            plan=self.plan,
            setups=setups,
            workload=compared.workload,
            cases=compared.cases,
            state=self._initial_state(endpoint.placement),
            show_scripts=self._show_differences,
            number=number,
            folder=self.folder,
            open_session=partial(ArmSession, endpoint=endpoint),
            progress=self.progress,
            events_folder=partial(self._events_folder, number) if self.plan.writes_events else None,
            refused=self._refused,
            limit=limit,
            tries=self.plan.training.epochs if self.plan.training else None,
        )

    def _events_folder(self, number: int, arm: str) -> Path:
        """The folder of TensorBoard's events of an arm in a launch."""
        run = f"seed-{seed_of(self.plan, number)}" if self.plan.training else f"launch-{number}"
        return self.folder.events_folder(arm, run)

    def _show_files(self, records: Sequence[LaunchRecord]) -> None:
        """Show notes on files that scripts write, each once."""
        notes = [note for note in notes_on_files(records) if note not in self._shown_files]
        self._shown_files.update(notes)
        for note in notes:
            self.progress.show(shown(note))

    def _show_differences(self, records: Sequence[LaunchRecord]) -> None:
        """Show what changed since last time: files that scripts write, their differences, and
        whether they train the same.
        """
        if not self._shown_differences:
            self._show_files(records)
        if self.plan.is_alone:
            return
        tried = {record.arm for record in records}
        failed = [record.arm for record in records if record.status != "ok"]
        if any(arm.name not in tried for arm in self.compared.without_control) or not is_comparable(
            self.plan, failed
        ):
            return
        differences = script_differences(records, allow=self.plan.allow)
        summary = repr(
            [
                (difference.field, difference.sentence)
                for difference in differences
                if not difference.field.startswith(TIMED)
            ]
        )
        if summary != self._shown_differences and any(record.scripts for record in records):
            self._shown_differences = summary
            self.progress.show(differences_table(differences))
            self.progress.show(shown(judge_equality(self.plan, records).sentence))

    def _complete_launches(self) -> set[int]:
        """Return the launches in which every arm has a record and none was interrupted."""
        records = self.folder.records()
        interrupted = {record.launch for record in records if not record.complete}
        by_arm = [
            {record.launch for record in records if record.arm == arm}
            for arm in self.plan.compared_arms()
        ]
        return set.intersection(*by_arm) - interrupted


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A context without automatic garbage collection.

    While a thousand ranks reply, it would take a fourth of the time and find nothing. Imported
    objects are frozen.
    """
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
