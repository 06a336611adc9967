"""Runs a plan whole: all launches of a comparison, records after each, reports at the end.

Resumes an interrupted one. A study is the same comparison at several points, one after another,
each with the whole method and a folder of its own. What cannot run is refused before the first
point begins. If a point fails later, its cause is recorded and the others go on.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from backends import backend_class
from backends.single import Single
from measurement.agent.ringside_agent.machine import usable_cores
from measurement.errors import PlanError, RecordError, RingsideError, about
from measurement.host import BUSY_REMEDY, busy_warning
from measurement.plans.plan import Plan
from measurement.plans.plan_file import plan_at, world_size_at
from measurement.records.record import LaunchRecord
from measurement.records.results import ResultsFolder
from measurement.registry import digests
from reports import make_reports, write_reports
from reports.against import StoredComparison
from reports.schema import Comparison
from runners.driver.compared_arms import ComparedArms
from runners.driver.comparison_folder import (
    ComparisonHistory,
    LaunchSchedule,
    new_manifest,
    open_folder,
    require_same_plan,
)
from runners.driver.launch import Launch, is_comparable
from runners.driver.preparation import Preparation
from runners.hosts.host_lists import job_id
from runners.hosts.preflight import lost_hosts
from runners.planning.arm_checks import left_out_line
from runners.planning.arm_specs import seed_of
from runners.planning.workload import resolve_workload
from runners.progress import EVENT_FILES, LaunchProgress
from runners.session.arm_session import ArmSession
from runners.session.endpoint import DriverEndpoint, open_endpoint
from workloads import MicroBenchmark


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
        self.schedule = LaunchSchedule(plan, folder, progress)
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
        if not self.schedule.is_measured:
            self.check_hosts()
            if self.earlier is not None:
                self.earlier.require_like(
                    StoredComparison(
                        folder=self.folder, plan=self.plan, manifest=self.history.manifest
                    )
                )
            self.compared.require_data()
        open_folder(self.folder, self.plan)

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
        self.history = self.schedule.history = ComparisonHistory(
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
        if self.schedule.is_measured:
            every = "every launch is measured already (for more: --minutes, or --set"
            return self._write(self.earlier, why=f"{every} measurement.launches=N); ")
        busy = busy_warning(usable_cores()) if self.compared.has_ranks_here else None
        self.history.begin(notes=self._notes)
        for warning in (*self.compared.warnings(), *([f"{busy}; {BUSY_REMEDY}"] if busy else [])):
            self.progress.say(f"warning: {warning}")
        try:
            opened = open_endpoint(
                self.compared.inspection.placement, has_store=not self.plan.are_scripts
            )
            with opened as endpoint, _without_garbage_collection():
                for number in self.schedule.numbers():
                    self.folder.require_room()
                    self._note_trial(self.preparation.prepare(self.history))
                    self._launch(number, endpoint)
                    gc.collect()
                    if self._must_stop(number):
                        break
                else:
                    self._trace_once()
        except BaseException:
            self.schedule.note_look()
            if self.folder.records():
                self._write(None)
            raise
        self.schedule.note_look()
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
        for setup in setups:
            for old in self._events_folder(number, setup.name).glob(EVENT_FILES):
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
            limit=self.schedule.limit,
            tries=self.plan.training.epochs if self.plan.training else None,
        )

    def _events_folder(self, number: int, arm: str) -> Path:
        """The folder of TensorBoard's events of an arm in a launch."""
        run = f"seed-{seed_of(self.plan, number)}" if self.plan.training else f"launch-{number}"
        return self.folder.events_folder(arm, run)


class StudyRun:
    """Runs every point of a plan into a folder."""

    def __init__(
        self, study: Plan, folder: ResultsFolder, *, resume_elsewhere: bool = False
    ) -> None:
        if issubclass(
            resolve_workload(study.workload, study.workload_options).workload, MicroBenchmark
        ):
            raise PlanError(
                f"workload '{study.workload}' is a micro-benchmark, and points are for training;"
                " make a plan for each place"
            )
        self.study = study
        self.folder = folder
        self.runs: dict[str, ComparisonRun] = {}
        self.comparison: Comparison | None = None
        plans = point_plans(study)
        for number, (name, plan) in enumerate(plans.items(), start=1):
            progress = LaunchProgress(
                seconds_per_launch=plan.measurement.expected_launch_s,
                point=f"{name} ({number} of {len(plans)})",
                later_launches=plan.measurement.expected_launches * (len(plans) - number),
            )
            with about(f"point '{name}'"):
                self.runs[name] = ComparisonRun(
                    plan, folder.point(name), progress=progress, resume_elsewhere=resume_elsewhere
                )

    def prepare(self) -> None:
        """Refuse what cannot work at some point, before a process starts or a file is written."""
        require_same_plan(self.folder, self.study)
        is_data_read = False
        for name, run in self.runs.items():
            if not run.schedule.is_measured:
                with about(f"point '{name}'"):
                    run.check_hosts()
                if run.compared.has_ranks_here and not is_data_read:
                    run.compared.require_data()  # all points train on the same
                    is_data_read = True
        open_folder(self.folder, self.study)

    def run(self) -> Comparison:
        """Run the launches that have no records yet, then write all reports, also after Ctrl-C,
        which is raised again.
        """
        manifest = self.folder.manifest() or new_manifest(self.folder, self.study)
        self.folder.write_manifest(manifest)
        try:
            for name, run in self.runs.items():
                manifest.failed_points.pop(name, None)
                try:
                    with run.progress:
                        if not run.schedule.is_measured:
                            run.check_hosts()  # again, since other points were measured meanwhile
                        open_folder(run.folder, run.plan)
                        run.run()
                except RingsideError as error:
                    manifest.failed_points[name] = str(error)
                self.folder.write_manifest(manifest)
        finally:
            self.comparison = write_reports(self.folder)
        return self.comparison


def point_plans(study: Plan) -> dict[str, Plan]:
    """Return the plan of each point.

    Arms of a single process are left out of points with more ranks, unless they train: then they
    have the global batch.
    """
    is_timed = study.training is None
    backends = {name: backend_class(arm.backend) for name, arm in study.arms.items() if is_timed}
    alone = {
        name
        for name, cls in backends.items()
        if issubclass(cls, Single) and not cls.takes_all_ranks_batches
    }
    return {
        name: plan_at(study, name, without=alone if world_size_at(study, name) > 1 else ())
        for name in study.points
    }


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
