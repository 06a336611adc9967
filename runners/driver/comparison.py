"""A whole comparison: launches until the plan is fulfilled, records after each, reports at the end; resumes where it was."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from measurement.errors import RecordError
from measurement.fingerprint import fingerprint, git_state
from measurement.plan import Plan
from measurement.record import LaunchRecord, Manifest
from measurement.results import ResultsFolder
from reports import conclude, write_reports
from reports.comparison import Comparison
from runners.arm_session import Meeting
from runners.driver import Launch
from runners.fairness import fairness_table
from runners.inspection import inspect
from runners.links import require_lab, shaped_links
from runners.places import Placement
from runners.planning import require_epochs, require_executables, resolve_arms, resolve_cases, resolve_workload
from runners.progress import Progress
from runners.reach import probe_hosts
from runners.wardens import Wardens


@dataclass(kw_only=True)
class Seconds:
    """Where the time of a session went."""

    total: float = 0.0
    starting: float = 0.0
    training: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def added_to(self, before: dict[str, float]) -> dict[str, float]:
        """Together with earlier sessions of the same comparison."""
        now = {"total": self.total, "starting": self.starting, "training": self.training}
        now["other"] = self.total - self.starting - self.training
        return {name: round(before.get(name, 0.0) + value, 3) for name, value in now.items()}


class ComparisonRun:
    """Runs a plan into a folder."""

    def __init__(self, plan: Plan, folder: ResultsFolder, *, progress: Progress) -> None:
        self.plan = plan
        self.folder = folder
        self.progress = progress
        self.arms = resolve_arms(plan)
        self.workload = resolve_workload(plan.workload, plan.workload_options)
        self.cases = resolve_cases(plan, self.workload, self.arms)
        require_epochs(plan, self.workload)
        self._seconds = Seconds()

    def prepare(self) -> None:
        """Everything that can be refused is refused here, before a process starts or a file is written.

        Raises:
            PlanError, RecordError, LaunchError: what cannot be, and what can.
        """
        self.look()
        self.require_data()
        open_folder(self.folder, self.plan)

    def look(self) -> None:
        """Whether the hosts, links and launchers are there.

        Raises:
            PlanError, LaunchError: what cannot be, and what can.
        """
        require_executables(self.arms)
        require_lab(self.plan)
        self.inspection = inspect(self.plan)

    def require_data(self) -> None:
        """Read what the ranks here will read, after ``look``; what lies on other hosts only, their ranks will tell of.

        Raises:
            PlanError: it is missing or damaged.
        """
        if self.has_ranks_here and not self.cases:
            self.workload.training(local_batch_size=self.plan.local_batch_size, seed=self.plan.seed).require_data()

    @property
    def has_ranks_here(self) -> bool:
        """Known after ``look``."""
        placement = self.inspection.placement
        return any(entry.host in placement.here for entry in placement.hosts)

    def run(self) -> Comparison:
        """Measure what is not yet measured, then write the reports. On Ctrl-C what was measured is reported, then it is raised."""
        self.manifest = self._manifest()
        for warning in self.inspection.warnings:
            self.progress.say(f"warning: {warning}")
        done = self._complete_launches()
        try:
            with shaped_links(self.plan.link_rate), meeting(self.inspection.placement) as place:
                for number in self._numbers(done):
                    self._launch(number, place)
                    if self._has_lost_hosts():
                        break
        finally:
            self._write_manifest()
            if self.folder.records():
                self.progress.say("writing reports")
                self.comparison = write_reports(self.folder)
        return self.comparison

    def _numbers(self, done: set[int]) -> Iterator[int]:
        """Launches still to run: those the plan names, then more while it wants a decision and has time."""
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
        """Whether a further launch would only wait for a host in vain."""
        lost = [found for found in probe_hosts(self.inspection.placement.remote) if found.status != "ok"]
        for found in lost:
            self.progress.say(f"no further launches: {found}")
        return bool(lost)

    def _wants_more(self) -> bool:
        measure = self.plan.measurement
        spent_s = time.monotonic() - self._seconds.began
        if not measure.until_decided or (measure.max_minutes is not None and spent_s > 60 * measure.max_minutes):
            return False
        undecided = [ratio for ratio in conclude(self.folder).results if ratio.role == "candidate" and ratio.verdict == "undecided"]
        return any(ratio.throughput_ratio is not None for ratio in undecided)

    def _launch(self, number: int, place: Meeting) -> None:
        self.progress.launch(number)
        launch = Launch(
            self.plan,
            self.arms,
            self.workload,
            self.cases,
            number=number,
            folder=self.folder,
            meeting=place,
            progress=self.progress,
        )
        try:
            launch.run()
        finally:
            self.manifest.fairness = fairness_table([arm.record for arm in launch.arms.values()])
            self._seconds.starting += launch.clock.starting_s
            self._seconds.training += launch.clock.training_s
        self.progress.launch_done()

    def _manifest(self) -> Manifest:
        if self.folder.manifest_path.is_file():
            return self.folder.read_manifest()
        return Manifest(
            comparison_id=self.folder.root.name,
            plan_digest=self.plan.digest(),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            ringside_version=version("ringside"),
            driver=fingerprint() | git_state(Path(__file__).parent),
            hosts={host: dict(found) for host, found in self.inspection.facts.items()},
            warnings=list(self.inspection.warnings),
        )

    def _write_manifest(self) -> None:
        self._seconds.total = time.monotonic() - self._seconds.began
        seconds = self._seconds.added_to(self.manifest.seconds)
        self.folder.write_manifest(self.manifest.model_copy(update={"seconds": seconds}))

    def _complete_launches(self) -> set[int]:
        """Launches of which every arm has a record, and none was interrupted."""
        by_launch: dict[int, list[LaunchRecord]] = {}
        for record in self.folder.records():
            by_launch.setdefault(record.launch, []).append(record)
        return {
            number
            for number, records in by_launch.items()
            if {record.arm for record in records} == set(self.arms) and all(record.complete for record in records)
        }


def open_folder(folder: ResultsFolder, plan: Plan) -> None:
    """Make the folder this plan's, or see that it is.

    Raises:
        RecordError: it belongs to another plan, or holds something else.
    """
    if folder.plan_path.is_file():
        other = folder.read_plan()
        if other.digest() != plan.digest():
            raise RecordError(
                f"'{folder.root}' holds results of another plan ('{other.name}', digest {other.digest()}, not "
                f"{plan.digest()}); give another folder with -o, or the plan as it was to go on measuring"
            )
    elif folder.root.is_dir() and any(folder.root.iterdir()):
        raise RecordError(f"'{folder.root}' is not empty and holds no plan.yaml; give another folder with -o")
    elif folder.root.exists() and not folder.root.is_dir():
        raise RecordError(f"'{folder.root}' is a file; give a folder with -o")
    folder.write_plan(plan)


@contextmanager
def meeting(placement: Placement) -> Iterator[Meeting]:
    """The store and the warden server that ranks find the driver by: on loopback while all ranks are here."""
    from torch.distributed import TCPStore

    address = placement.driver_address
    wardens = Wardens(address=address)
    listening = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    port = listening.getsockname()[1]
    store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
        master_listen_fd=listening.detach(),
    )
    shown = f"[{address}]" if ":" in address else address
    try:
        yield Meeting(store=store, store_address=f"{shown}:{port}", wardens=wardens, mark=secrets.token_hex(6), placement=placement)
    finally:
        wardens.close()


def default_folder(plan: Plan) -> Path:
    """``results/<name>-<date>-<time>``: a new one at each start."""
    return Path("results") / f"{plan.name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
