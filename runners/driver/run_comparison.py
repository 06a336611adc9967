"""Runs a whole comparison: all launches of the plan, records after each, reports at the end.

Resumes an interrupted one.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path

from measurement.agent.ringside_agent.machine.core_use import usable_cores
from measurement.conditions.sources import digests
from measurement.errors import PlanError, RecordError
from measurement.plans.plan import Plan
from measurement.probes.fingerprint import BUSY_REMEDY, busy_warning
from measurement.records.record import LaunchRecord
from measurement.records.results import ResultsFolder
from reports import make_reports, write_reports
from reports.against import StoredComparison
from reports.schema import Comparison
from runners.driver.compared_arms import ComparedArms
from runners.driver.comparison_folder import (
    ComparisonHistory,
    new_manifest,
    open_folder,
    require_same_plan,
)
from runners.driver.launch import Launch, is_comparable
from runners.driver.launch_schedule import LaunchSchedule
from runners.driver.preparation import Preparation
from runners.hosts.batch_jobs import job_id
from runners.hosts.preflight import lost_hosts
from runners.planning.arm_checks import left_out_line
from runners.planning.arm_specs import seed_of
from runners.progress import EVENT_FILES, LaunchProgress
from runners.session.arm_session import ArmSession
from runners.session.endpoint import DriverEndpoint, open_endpoint


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
        self._schedule = LaunchSchedule(plan, folder, progress)
        self.preparation = Preparation(
            plan, folder, compared=self.compared, progress=progress, tried=list(tried)
        )
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
        """See ``LaunchSchedule.is_measured``."""
        return self._schedule.is_measured

    def check_hosts(self) -> None:
        """Check hosts, launchers and the environment of earlier launches.

        Raises:
            PlanError, LaunchError, RecordError: what cannot work, and what to do.
        """
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
        self.history = self._schedule.history = ComparisonHistory(
            self.folder, now, sources=sources | compared.own_work.files
        )
        if self.history.changes and not self.resume_elsewhere:
            raise RecordError(
                f"'{self.folder.root}' was measured in another environment"
                f" ({'; '.join(self.history.changes)}), and launches of both would be mixed; give"
                " another folder with -o, restore that environment (the folder has copies of the"
                " sources), or go on all the same with --resume-elsewhere: the report will say so"
            )

    def _note(self, notes: Iterable[str]) -> None:
        for note in notes:
            if note not in self._notes:
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
        try:
            opened = open_endpoint(
                self.compared.inspection.placement, has_store=not self.plan.are_scripts
            )
            with opened as endpoint, _without_garbage_collection():
                for number in self._schedule.numbers():
                    self.folder.require_room()
                    self._note_trial(self.preparation.prepare(self.history))
                    self._launch(number, endpoint)
                    gc.collect()
                    if self._must_stop(number):
                        break
                else:
                    self._trace_once()
        except BaseException:
            self._schedule.note_look()
            if self.folder.records():
                self._write(None)
            raise
        self._schedule.note_look()
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

    def try_alone(self) -> list[LaunchRecord]:
        """Run the trial of commands and no launch; returns its records, none if a command
        failed.
        """
        self.check_hosts()
        return self.preparation.try_commands()

    def _note_trial(self, notes: Sequence[str]) -> None:
        """Show a trial's notes, and keep them for the report."""
        self._note(notes)
        manifest = self.history.manifest
        manifest.notes = list(dict.fromkeys([*manifest.notes, *notes]))

    def _trace_once(self) -> None:
        """Trace the arms after their launches, if the plan asks for it and the folder has no trace
        yet.
        """
        if self.plan.trace and self.compared.workload is not None and self.folder.traces() is None:
            self.preparation.uncounted.trace(
                self.compared.workload, refused=self.preparation.refused
            )

    def _must_stop(self, number: int) -> bool:
        """Whether another launch would fail: a host no longer answers, no arm passed the gate, or
        scripts failed.
        """
        reasons = lost_hosts(self.compared.inspection.placement.remote)
        records = [record for record in self.folder.records() if record.launch == number]
        failed = {record.arm for record in records if record.status != "ok"}
        statuses = {record.status for record in records if record.role != "floor"}
        if not reasons and statuses == {"wrong"}:
            reasons = ["no arm passed the gate, and none would in another"]
        elif not reasons and self.plan.are_scripts and not is_comparable(self.plan, failed):
            reasons = [
                f"nothing is left to compare, since {', '.join(sorted(failed))} did not run to"
                " the end"
            ]
        for reason in reasons:
            self.progress.say(f"no further launches: {reason}")
        return bool(reasons)

    def _launch(self, number: int, endpoint: DriverEndpoint) -> None:
        self.progress.start()
        self.history.note_launch(number)
        launch = self._new_launch(number, endpoint)
        try:
            launch.run()
            if launch.failed:
                self.preparation.forget()
            if number == 0:  # what a script writes at its end
                self.preparation.show_files([arm.record for arm in launch.arms])
        finally:
            self._note_trial(launch.notes)
        self.progress.launch_done()

    def _new_launch(self, number: int, endpoint: DriverEndpoint) -> Launch:
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
            state=self.preparation.initial_state(endpoint.placement),
            show_scripts=self.preparation.show_differences,
            number=number,
            folder=self.folder,
            open_session=partial(ArmSession, endpoint=endpoint),
            progress=self.progress,
            events_folder=partial(self._events_folder, number) if self.plan.writes_events else None,
            refused=self.preparation.refused,
            limit=self._schedule.limit,
            tries=self.plan.training.epochs if self.plan.training else None,
        )

    def _events_folder(self, number: int, arm: str) -> Path:
        """The folder of TensorBoard's events of an arm in a launch."""
        run = f"seed-{seed_of(self.plan, number)}" if self.plan.training else f"launch-{number}"
        return self.folder.events_folder(arm, run)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A context without automatic garbage collection.

    While a thousand ranks reply, it would take a fourth of the time and find nothing. Imported
    objects are frozen.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
