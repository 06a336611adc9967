"""Runs a whole comparison: all launches of the plan, records after each, reports at the end. Resumes an interrupted one."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from measurement.conditions.conditions import fingerprint
from measurement.conditions.fairness import fairness_table
from measurement.conditions.same_environment import changes_since, environment_of, find_environment, plan_digest, told
from measurement.conditions.sources import digests, sources_of_all
from measurement.environment import steering_environment
from measurement.errors import RecordError
from measurement.files import LOCK_FILE
from measurement.plans.plan import Plan
from measurement.probes.core_use import BUSY_REMEDY, busy_warning, crowded_warning
from measurement.probes.fingerprint import git_state, usable_cores
from measurement.records.record import LaunchRecord, Manifest, OtherEnvironment
from measurement.records.results import ResultsFolder, write_result
from reports import conclude, make_reports, write_reports
from reports.schema import Comparison
from reports.statistics.interim_analyses import next_analysis
from runners.driver.endpoint import DriverEndpoint, open_endpoint
from runners.driver.gates import none_can_pass
from runners.driver.launch import Launch
from runners.driver.progress import Progress
from runners.driver.rehearsal import Memory, rehearse, require_something_to_measure
from runners.hosts.batch_jobs import job_id
from runners.hosts.preflight import inspect
from runners.hosts.ssh_probe import probe_hosts
from runners.lab.links import require_lab, shaped_links
from runners.launchers import HERE
from runners.planning.arms import computes_on_gpu, floor_beside, require_executables, require_gpus_on, resolve_arms
from runners.planning.check_process import is_to_check, require_workable
from runners.planning.compatibility import require_findable
from runners.planning.data_check import require_data_on
from runners.planning.left_variables import require_undisturbed
from runners.planning.workload import require_epochs, resolve_cases, resolve_workload


@dataclass(kw_only=True)
class Seconds:
    """How long this session took, in seconds, and for what."""

    total: float = 0.0
    starting: float = 0.0
    training: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def added_to(self, before: dict[str, float]) -> dict[str, float]:
        """Add the seconds of earlier sessions of the same comparison."""
        now = {"total": self.total, "starting": self.starting, "training": self.training}
        now["other"] = self.total - self.starting - self.training
        return {name: round(before.get(name, 0.0) + value, 3) for name, value in now.items()}


class ComparisonRun:
    """Runs a plan into a folder."""

    def __init__(self, plan: Plan, folder: ResultsFolder, *, progress: Progress, resume_elsewhere: bool = False) -> None:
        self.plan = plan
        self.folder = folder
        self.resume_elsewhere = resume_elsewhere
        self.progress = progress
        self.arms = resolve_arms(plan)
        self.workload = resolve_workload(plan.workload, plan.workload_options)
        self.cases = resolve_cases(plan, self.workload, self.arms)
        self.floor = floor_beside(self.arms[plan.baseline]) if plan.has_floor and not self.cases else None
        require_epochs(plan, self.workload)
        make_reports(plan.reports)  # refused before anything is measured
        self._seconds = Seconds()
        self._notes: list[str] = []
        self._is_rehearsed = False
        self._refused: dict[str, LaunchRecord] = {}
        """By name, the rehearsal's records of arms that failed there."""
        self._left: list[str] = []
        """Of variables in the shell."""

    def prepare(self) -> None:
        """Refuse what cannot work, before a process starts or a file is written.

        Raises:
            PlanError, RecordError, LaunchError: what cannot work, and what can.
        """
        require_same_plan(self.folder, self.plan)
        self.check_hosts()
        refuse_another_environment(self.folder, self.changes())
        self.require_data()
        self.check_workload()
        open_folder(self.folder, self.plan)

    def check_hosts(self) -> None:
        """Check that hosts, links and launchers are there.

        Raises:
            PlanError, LaunchError: what is missing, and what to do.
        """
        self._left = require_undisturbed(self.arms.values())
        require_executables(self.arms)
        require_lab(self.plan)
        self.inspection = inspect(self.plan)
        for arm in self.arms.values():
            require_findable(
                self.inspection.hidden,
                backend=arm.arm.backend,
                transport=arm.transport,
                network_interface=self.plan.network_interface,
            )
        require_gpus_on(self.inspection.facts, self.arms.values())

    def changes(self) -> list[str]:
        """What is not as it was when the folder's launches were measured, in words; nothing where a user goes on all the same.

        Known after ``check_hosts``.
        """
        manifest = self._manifest_on_disk()
        now = self._new_manifest()
        if self.resume_elsewhere or (manifest and find_environment(manifest.elsewhere, now)):
            return []
        return told(changes_since(manifest, self.folder.records(), now))

    def require_data(self) -> None:
        """Read the data once on every host that ranks run on.

        Raises:
            PlanError: it is missing or damaged.
        """
        if self.cases:
            return
        if self.has_ranks_here:
            made = self.workload.build(local_batch_size=self.plan.local_batch_size, seed=self.plan.seed)
            made.require_data()
            self._note(made.data_notes())
        placement = self.inspection.placement
        require_data_on([entry.host for entry in placement.hosts if entry.host not in placement.here], self.plan, self.workload)

    def check_workload(self) -> None:
        """Try the workload out on one rank, unless it is one of ours.

        Raises:
            PlanError: it cannot work, or an arm cannot train it.
        """
        if is_to_check(self.workload):
            self.progress.say("checking the workload")
            host = None if self.has_ranks_here else self.inspection.placement.hosts[0].host
            self._note(require_workable(self.plan, self.arms.values(), host=host))

    def _note(self, notes: Iterable[str]) -> None:
        for note in (note for note in notes if note not in self._notes):
            self._notes.append(note)
            self.progress.say(f"note: {note}")

    @property
    def has_ranks_here(self) -> bool:
        """Whether a rank runs on this host; known after ``check_hosts``."""
        placement = self.inspection.placement
        return any(entry.host in placement.here for entry in placement.hosts)

    def run(self) -> Comparison:
        """Run the launches that have no records yet, then write the reports; on Ctrl-C, too, which is then raised again."""
        self.manifest = self._manifest()
        busy = busy_warning(usable_cores()) if self.has_ranks_here else None
        self.manifest.notes = list(dict.fromkeys([*self._left, *self.manifest.notes]))
        for warning in (*self._left, *self.inspection.warnings, *self._crowded(), *([f"{busy}; {BUSY_REMEDY}"] if busy else [])):
            self.progress.say(f"warning: {warning}")
        done = self._complete_launches()
        try:
            with shaped_links(self.plan.link_rate), open_endpoint(self.inspection.placement) as endpoint:
                for number in self._numbers(done):
                    self.folder.require_room()
                    self._rehearse_once()
                    self._launch(number, endpoint)
                    if self._has_lost_hosts() or self._is_hopeless(number):
                        break
        finally:
            self._look()
            if self.folder.records():
                self.progress.say("writing reports")
                self.comparison = write_reports(self.folder)
        return self.comparison

    def _rehearse_once(self) -> None:
        """Rehearse before the first launch of this session, see ``driver.rehearsal``.

        A training and a micro-benchmark take the gate before anything is timed anyway.

        Raises:
            LaunchError: nothing is left to be compared.
        """
        wanted = self.plan.measurement.rehearsal
        if self._is_rehearsed or wanted == "never" or self.cases or self.plan.training is not None:
            return
        self._is_rehearsed = True
        memory = Memory(self.plan, conditions=environment_of(self._new_manifest()) | steering_environment(os.environ))
        if wanted == "once" and memory.knows():
            return
        folder = self.folder.root / "rehearsal"
        self._refused = rehearse(
            self.plan, self.workload, placement=self.inspection.placement, folder=folder, progress=self.progress
        )
        require_something_to_measure(self.plan, self._refused, folder=folder)
        if not self._refused:
            memory.add()

    def _crowded(self) -> list[str]:
        """Say on which hosts ranks share cores, unless they compute on GPUs."""
        if computes_on_gpu(self.plan.device) or any(facts.get("gpus") for facts in self.inspection.facts.values()):
            return []
        placement = self.inspection.placement
        told = {entry.host: crowded_warning(entry.slots, placement.cores.get(entry.host)) for entry in placement.hosts}
        return [warning if host == HERE else f"host '{host}': {warning}" for host, warning in told.items() if warning]

    def _numbers(self, done: set[int]) -> Iterator[int]:
        """Yield the numbers of launches to run: those of the plan, then more with ``until_decided`` while there is time."""
        self.progress.begin(launches=self.plan.measurement.launches - len(done))
        for number in range(self.plan.measurement.launches):
            if number not in done:
                yield number
        number = max([self.plan.measurement.launches - 1, *done]) + 1
        while self._wants_more():
            self.progress.add_launch()
            yield number
            number += 1

    def _has_lost_hosts(self) -> bool:
        """Whether a host no longer answers, so that a further launch would fail."""
        lost = [found for found in probe_hosts(self.inspection.placement.remote) if found.status != "ok"]
        for found in lost:
            self.progress.say(f"no further launches: {found}")
        return bool(lost)

    def _is_hopeless(self, number: int) -> bool:
        """Whether no arm passed the gate in this launch, so that a further one would measure what does not count."""
        found = none_can_pass([record for record in self.folder.records() if record.launch == number])
        if found:
            self.progress.say("no further launches: no arm passed the gate, and none would in another")
        return found

    def _wants_more(self) -> bool:
        measure = self.plan.measurement
        spent_s = time.monotonic() - self._seconds.began
        if not measure.until_decided or (measure.max_minutes is not None and spent_s > 60 * measure.max_minutes):
            return False
        if len(self._complete_launches()) < next_analysis(self.manifest.looks, launches=measure.launches):
            return True
        self._look()
        return bool(conclude(self.folder).undecided)

    def _look(self) -> None:
        """Write down that the verdicts are seen now. An interrupted comparison that goes on as planned has seen none."""
        done, looks = len(self._complete_launches()), self.manifest.looks
        if done >= self.plan.measurement.launches and done not in looks:
            self.manifest.looks = [*looks, done]
        self._write_manifest()

    def _launch(self, number: int, endpoint: DriverEndpoint) -> None:
        self.progress.launch(number)
        self._note_environment(number)
        launch = Launch(
            self.plan,
            [*self.arms.values(), *([self.floor] if self.floor else [])],
            self.workload,
            self.cases,
            number=number,
            folder=self.folder,
            endpoint=endpoint,
            progress=self.progress,
            refused=self._refused,
        )
        try:
            launch.run()
        finally:
            self.manifest.fairness = fairness_table([arm.record for arm in launch.compared])
            self._seconds.starting += launch.clock.starting_s
            self._seconds.training += launch.clock.measuring_s
        self.progress.launch_done()

    def _manifest_on_disk(self) -> Manifest | None:
        return self.folder.read_manifest() if self.folder.manifest_path.is_file() else None

    def _manifest(self) -> Manifest:
        """The folder's manifest, or a new one; ``_elsewhere`` says if this is another environment than the first."""
        now, known = self._new_manifest(), self._manifest_on_disk()
        changes = changes_since(known, self.folder.records(), now)
        manifest = known or now
        if known is None:
            self._keep_sources("sources")
        self._elsewhere: OtherEnvironment | None = None
        if changes:
            new = OtherEnvironment(differences=told(changes), environment=environment_of(now))
            self._elsewhere = find_environment(manifest.elsewhere, now) or new
        return manifest

    def _keep_sources(self, folder: str) -> None:
        for name, path in self._sources.items():
            write_result(self.folder.root / folder / name, path.read_bytes())

    @property
    def _sources(self) -> dict[str, Path]:
        arms = self.arms.values()
        classes = [self.workload.workload, *(arm.backend for arm in arms), *(type(arm.launcher) for arm in arms)]
        return sources_of_all(dict.fromkeys(classes))

    def _new_manifest(self) -> Manifest:
        return Manifest(
            comparison_id=self.folder.root.name,
            plan_digest=plan_digest(self.plan),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            ringside_version=version("ringside"),
            driver=fingerprint() | git_state(Path(__file__).parent),
            hosts={host: dict(found) for host, found in self.inspection.facts.items()},
            slurm_job=job_id(self.plan.hosts, os.environ),
            sources=digests(self._sources),
            notes=self._notes,
            warnings=list(self.inspection.warnings),
        )

    def _note_environment(self, number: int) -> None:
        """Write down where a launch is measured before it is."""
        for other in self.manifest.elsewhere:
            other.launches = [launch for launch in other.launches if launch != number]
        if self._elsewhere:
            self._elsewhere.launches.append(number)
            if self._elsewhere not in self.manifest.elsewhere:
                self.manifest.elsewhere = [*self.manifest.elsewhere, self._elsewhere]
                self._keep_sources(f"sources-{len(self.manifest.elsewhere)}")
        self._write_manifest()

    def _write_manifest(self) -> None:
        self._seconds.total = time.monotonic() - self._seconds.began
        seconds = self._seconds.added_to(self.manifest.seconds)
        self.folder.write_manifest(self.manifest.model_copy(update={"seconds": seconds}))

    def _complete_launches(self) -> set[int]:
        """Return the launches in which every arm has a record and none was interrupted."""
        by_launch: dict[int, list[LaunchRecord]] = {}
        for record in self.folder.records():
            by_launch.setdefault(record.launch, []).append(record)
        return {
            number
            for number, records in by_launch.items()
            if {record.arm for record in records} >= set(self.arms) and all(record.complete for record in records)
        }


BEFORE_THE_PLAN = re.compile(rf"{re.escape(LOCK_FILE)}|submit\.sh|slurm-jobs|slurm-[0-9]+\.log")
"""What a folder may hold that nothing was measured in yet: the lock, and what ``ringside submit`` and its job leave."""


def require_same_plan(folder: ResultsFolder, plan: Plan) -> None:
    """Refuse a folder that is not this plan's. One that is not there yet is anybody's.

    Raises:
        RecordError: it belongs to another plan, or holds something else.
    """
    if folder.plan_path.is_file():
        other = folder.read_plan()
        if plan_digest(other) != plan_digest(plan):
            raise RecordError(
                f"'{folder.root}' holds results of another plan ('{other.name}', digest {plan_digest(other)}, not "
                f"{plan_digest(plan)}); give another folder with -o, or the plan as it was to go on measuring"
            )
    elif folder.root.is_dir() and not all(BEFORE_THE_PLAN.fullmatch(entry.name) for entry in folder.root.iterdir()):
        raise RecordError(f"'{folder.root}' is not empty and holds no plan.yaml; give another folder with -o")
    elif folder.root.exists() and not folder.root.is_dir():
        raise RecordError(f"'{folder.root}' is a file; give a folder with -o")


def refuse_another_environment(folder: ResultsFolder, changes: Sequence[str]) -> None:
    """Refuse to mix launches of two environments that nobody asked to be mixed.

    Raises:
        RecordError: with every change.
    """
    if changes:
        raise RecordError(
            f"'{folder.root}' was measured in another environment ({'; '.join(changes)}), and launches of both would be mixed; "
            "give another folder with -o, bring back what was there (copies of sources lie in the folder), or go on all the same "
            "with --resume-elsewhere: the report will say so"
        )


def open_folder(folder: ResultsFolder, plan: Plan) -> None:
    """Lock the folder and write the plan into it, or check that it holds the same plan.

    Raises:
        RecordError: it belongs to another plan, holds something else, or another process writes into it.
    """
    require_same_plan(folder, plan)
    folder.lock()
    folder.write_plan(plan)
