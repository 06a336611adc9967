"""What a session does once before its first launch: find the largest batches, rehearse the arms or
try their commands, and show what scripts do differently.

A passed rehearsal or trial is stored under a digest of the plan, the versions, the machines and the
user's sources, so that it is not repeated.

The search for an arm's largest local batch (``fit: memory``) starts the arm alone for each size and
has it take some steps. A rank that runs out of memory ends its arm only, and the next try starts
new processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from install.build_horovod import cache_root
from measurement.environment import steering_environment
from measurement.errors import LaunchError
from measurement.plans.plan import Plan
from measurement.records import Written
from measurement.records.record import LaunchRecord
from measurement.records.results import ResultsFolder
from reports.formats.terminal import differences_table, shown
from reports.scripts.configuration import script_differences
from reports.scripts.equality import judge_equality
from reports.scripts.script_arms import notes_on_files
from runners.driver.compared_arms import ComparedArms
from runners.driver.comparison_folder import ComparisonHistory
from runners.driver.launch import is_comparable
from runners.driver.rehearsal import (
    SHORT,
    UncountedLaunches,
    reason_of,
    require_something_to_measure,
)
from runners.hosts.placement import Placement
from runners.planning.arm_specs import TrialFacts
from runners.planning.arms import resolve_arm
from runners.planning.workload import WorkloadSetup
from runners.progress import LaunchProgress
from runners.scripts.script_setup import FIRST_STATE, SharedInitialState

NOT_REHEARSED = {
    "name",
    "measurement",
    "reports",
    "question",
    "baseline",
    "points",
    "scaling",
    "training",
    "left_out",
    "peak_tflops",
    "trace",
}
"""Fields of a plan that do not change what a rehearsal shows."""
FIT_BLOCKS, FIT_STEPS = 4, 3
"""Those of a try. An optimizer has all its state after its first step, and allocators keep the
memory of earlier blocks."""
RESOLUTION = 16
"""The search ends when the interval is at most 1 / RESOLUTION of the largest size that fits."""
MARGIN = 0.05
"""Share of the largest size that is left free: libraries allocate memory at other times, too."""
MAX_DOUBLINGS = 7
OUT_OF_MEMORY = re.compile(
    r"out of memory|not enough memory|(can't|cannot|could not) allocate"
    r" memory|alloc_failed|bad_alloc|memoryerror"
    r"|could not create a (primitive|memory object)|sigkill|signal 9|code:? (-9|137)\b|oom.kill|:"
    r" ?killed$",
    re.IGNORECASE | re.MULTILINE,
)
"""torch on GPUs, on CPUs and in cuBLAS; C, C++ and Python; oneDNN; and launchers' messages about
ranks that the kernel killed."""


@dataclass(eq=False)
class Preparation:
    """Prepares the arms of one session, and keeps what the rehearsal or trial has shown."""

    plan: Plan
    folder: ResultsFolder
    _: KW_ONLY
    compared: ComparedArms
    progress: LaunchProgress
    tried: list[LaunchRecord]
    """The trial's records of commands, if this session or an earlier one held one."""
    refused: dict[str, LaunchRecord] = field(default_factory=dict, init=False)
    """By name, the rehearsal's records of arms that failed in it."""
    _is_done: bool = field(default=False, init=False)
    _passed_path: Path | None = field(default=None, init=False)
    """Where it is stored that this rehearsal was passed."""
    _is_shown: bool = field(default=False, init=False)
    """Whether it was shown what the scripts do differently."""
    _shown_notes: set[str] = field(default_factory=set, init=False)

    def prepare(self, history: ComparisonHistory) -> list[str]:
        """Find batches and rehearse at the first call of a session; returns notes for readers of
        the report.
        """
        if self._is_done:
            return []
        self._is_done = True
        if self.compared.workload is not None:
            self._fit(self.compared.workload, history)
        return self._rehearse(history)

    def _fit(self, workload: WorkloadSetup, history: ComparisonHistory) -> None:
        """Find the largest batch of each arm that asks for it, unless an earlier session has found
        it.
        """
        fitted = history.manifest.fitted
        for name, arm in self.plan.arms.items():
            if arm.fit and name not in fitted:
                fitted[name] = find_batch(self.uncounted, name, workload)
                history.write()
        if fitted:
            history.begin_clock()
        self.compared.fit(fitted)

    @property
    def uncounted(self) -> UncountedLaunches:
        """Runs rehearsals, trials and traces of the arms. After ``check`` of these."""
        return UncountedLaunches(
            plan=self.compared.plan,
            placement=self.compared.inspection.placement,
            folder=self.folder.root,
            progress=self.progress,
        )

    def _rehearse(self, history: ComparisonHistory) -> list[str]:
        """Rehearse, or try commands, unless arms take the gate first; returns notes."""
        wanted, workload = self.plan.measurement.rehearsal, self.compared.workload
        gate_comes_first = workload is not None and workload.gate_comes_first(self.plan.training)
        if wanted == "never" or gate_comes_first:
            return []
        conditions = history.environment | steering_environment(os.environ)
        self._passed_path = passed_path(self.plan, conditions=conditions)
        passed = recall(self._passed_path) if wanted == "once" else None
        if passed is None:
            passed = self._try_arms(workload)
            if not self.refused:
                keep(self._passed_path, passed)
        self.compared.learn(passed.learned)
        return passed.notes

    def _try_arms(self, workload: WorkloadSetup | None) -> Passed:
        """Run the rehearsal of a workload, or the trial of commands, and then show the differences
        between these.
        """
        if workload is not None:
            rehearsal = self.uncounted.rehearse(workload, on_gpus=self.compared.are_on_gpus)
            self.refused = rehearsal.failed
            require_something_to_measure(
                self.plan, self.refused, folder=self.folder.root / "rehearsal"
            )
            return Passed(notes=rehearsal.notes, learned={})
        tried = {record.arm for record in self.tried}
        commands = [arm for arm in self.compared.without_control if arm.name not in tried]
        notes: list[str] = []
        if commands:
            state = self.initial_state(self.compared.inspection.placement)
            trial = self.uncounted.try_commands(commands, state=state)
            self.refused, notes = trial.failed, trial.notes
            self.tried += [arm.record for arm in trial.arms]
        self.show_differences(self.tried)
        return Passed(
            notes=notes,
            learned={
                record.arm: TrialFacts.from_record(record)
                for record in self.tried
                if record.status == "ok"
            },
        )

    def try_commands(self) -> list[LaunchRecord]:
        """Run the trial of commands; returns its records, none if a command failed."""
        self._try_arms(None)
        return [] if self.refused else self.tried

    def forget(self) -> None:
        """Have what was passed before rehearsed next time: an arm has failed since."""
        if self._passed_path is not None:
            with suppress(OSError):
                self._passed_path.unlink()

    def initial_state(self, placement: Placement) -> SharedInitialState | None:
        """The file with which all scripts start, if the plan asks for it."""
        return (
            SharedInitialState(self.folder.root / FIRST_STATE, placement)
            if self.plan.scripts.same_start
            else None
        )

    def show_files(self, records: Sequence[LaunchRecord]) -> None:
        """Show notes on files that scripts write, each once."""
        for note in notes_on_files(records):
            if note not in self._shown_notes:
                self._shown_notes.add(note)
                self.progress.show(shown(note))

    def show_differences(self, records: Sequence[LaunchRecord]) -> None:
        """Show once, when all arms have started: files that scripts write, their differences, and
        whether they train the same.
        """
        tried = {record.arm for record in records}
        failed = [record.arm for record in records if record.status != "ok"]
        if self._is_shown or any(arm.name not in tried for arm in self.compared.without_control):
            return
        self._is_shown = True
        self.show_files(records)
        if self.plan.is_alone or not is_comparable(self.plan, failed):
            return
        if any(record.scripts for record in records):
            self.progress.show(
                differences_table(script_differences(records, allow=self.plan.allow))
            )
            self.progress.show(shown(judge_equality(self.plan, records).sentence))


class Passed(Written):
    """What is stored of a rehearsal, or a trial of commands, that every arm has passed."""

    notes: list[str]
    learned: dict[str, TrialFacts]
    """By the arm's name."""


def passed_path(plan: Plan, *, conditions: Mapping[str, object]) -> Path:
    """Where a passed rehearsal of a plan is stored; ``conditions``: versions, machines, digests of
    sources and variables that it depends on.
    """
    content = [
        plan.model_dump(mode="json", exclude=NOT_REHEARSED),
        plan.measurement.model_dump(include={"mode", "control", "floor"}),
        dict(conditions),
    ]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
    return cache_root().parent / "rehearsals" / digest[:24]


def recall(path: Path) -> Passed | None:
    """The results of a rehearsal that was passed before, else None."""
    with suppress(OSError, ValueError):
        return Passed.model_validate_json(path.read_text(encoding="utf-8"))
    return None


def keep(path: Path, passed: Passed) -> None:
    """Store that a rehearsal was passed, if its folder can be written."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(passed.model_dump_json(), encoding="utf-8")


def find_batch(launches: UncountedLaunches, name: str, workload: WorkloadSetup) -> int:
    """The largest local batch of an arm, less ``MARGIN``.

    Raises:
        LaunchError: the plan's batch does not fit, or a try failed for another reason.
    """
    plan, progress, folder = launches.plan, launches.progress, launches.folder / "fit"
    short = {**SHORT, "rounds": FIT_BLOCKS, "block_steps": FIT_STEPS, "local_every": 0}
    tried = plan.model_copy(update={"measurement": plan.measurement.model_copy(update=short)})

    def fits(size: int) -> bool:
        setup = resolve_arm(
            name, plan.arms[name].model_copy(update={"local_batch_size": size}), plan
        )
        failed = launches.run("fit", tried, [setup], workload=workload).failed.get(name)
        if failed and not is_out_of_memory(failed):
            raise LaunchError(
                f"no largest local_batch_size was found for arm '{name}': {size} failed, and not"
                f" for lack of memory: {reason_of(failed)} (logs: {folder}); fix it, or give the"
                " arm a local_batch_size instead of fit"
            )
        progress.say(f"local_batch_size {size} {'does not fit' if failed else 'fits'}")
        return failed is None

    fitting = largest(fits, start=plan.local_batch_size)
    if fitting is None:
        raise LaunchError(
            f"arm '{name}' has no room for the plan's local_batch_size {plan.local_batch_size},"
            " with which the search for the largest begins; set a smaller one in the plan"
        )
    shutil.rmtree(folder, ignore_errors=True)
    chosen = max(1, fitting - max(1, int(fitting * MARGIN)))
    progress.say(f"{name} is timed with local_batch_size {chosen}: {fitting} fits")
    return chosen


def largest(fits: Callable[[int], bool], *, start: int) -> int | None:
    """The largest size that fits, by doubling and then halving the interval; None if ``start`` does
    not fit.

    At most ``start`` × 2 ** ``MAX_DOUBLINGS``.
    """
    if not fits(start):
        return None
    most = start << MAX_DOUBLINGS
    low = start
    while low < most and fits(2 * low):
        low *= 2
    if low == most:
        return low
    high = 2 * low
    while high - low > max(1, low // RESOLUTION):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def is_out_of_memory(record: LaunchRecord) -> bool:
    """Whether an arm failed for lack of memory, by the messages and logs of its ranks and its
    launcher.
    """
    error = record.error
    texts = [error.message, *error.excerpt, *error.log_tail.values()] if error else []
    return record.status == "failed" and any(OUT_OF_MEMORY.search(text) for text in texts)
