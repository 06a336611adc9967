"""Runs a comparison of scripts: no gate and no floor; what they do differently is told before anything is timed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from measurement.errors import LaunchError
from measurement.files import write_whole
from measurement.plans.plan import Plan
from measurement.records.record import LaunchRecord, RankReport
from reports.formats.terminal import differences_table, shown
from reports.schema import Comparison
from reports.scripts.configuration import configuration_differences
from reports.scripts.rank_agreement import ranks_apart
from reports.scripts.script_arms import written_files
from runners.driver.arm_session import ArmLaunch, ArmSession
from runners.driver.diagnosis import ArmFailed
from runners.driver.endpoint import DriverEndpoint
from runners.driver.launch import Launch
from runners.driver.rounds import RoundLimit
from runners.driver.run_comparison import ComparisonRun
from runners.hosts.placement import Placement
from runners.hosts.preflight import inspect
from runners.planning.arms import LaunchedArm
from runners.planning.worktrees import has_changes, worktree
from runners.processes import remote
from runners.protocol.messages import StartedReply
from runners.scripts.script_session import ScriptSession
from runners.scripts.script_setup import ScriptSetup, in_worktree, resolve_scripts

ITERATIONS = "iterations"
COPY_TIMEOUT_S = 120.0
PUT = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'


class FirstState:
    """The file with which all scripts start (``same_start``), at one path on all hosts; the baseline's rank 0 writes it once."""

    def __init__(self, path: Path, placement: Placement) -> None:
        self.path = path.absolute()
        self._placement = placement

    @property
    def is_missing(self) -> bool:
        """Whether no baseline has saved it yet."""
        return not self.path.is_file()

    def told(self, *, is_baseline: bool) -> dict[str, str]:
        """What an arm's probe is told of it."""
        return {"state_file": str(self.path), "state": "save" if is_baseline and self.is_missing else "load"}

    def share(self, ranks: Sequence[RankReport]) -> None:
        """Bring the file from rank 0's host to all others, where they do not share the folder.

        Raises:
            ArmFailed: a host cannot be reached, or there is no file.
        """
        try:
            if self.is_missing:
                source = self._host_of(ranks[0].host)
                if source is not None:
                    write_whole(self.path, remote.run(source, ["cat", str(self.path)], timeout_s=COPY_TIMEOUT_S))
            content = self.path.read_bytes()
            for host in self._placement.remote:
                remote.run(host, ["sh", "-c", PUT, "sh", str(self.path)], timeout_s=COPY_TIMEOUT_S, stdin=content)
        except (LaunchError, OSError) as error:
            raise ArmFailed(f"its first parameters cannot be brought to the other arms: {error}") from error

    def _host_of(self, name: str) -> str | None:
        """Return the host as the plan names it; None where it is this one."""
        if name == socket.gethostname():
            return None
        return next((host for host in self._placement.remote if host.partition(".")[0] == name.partition(".")[0]), None)


@dataclass(kw_only=True, eq=False)
class ScriptLaunch(Launch):
    """Runs one launch of scripts."""

    state: FirstState | None
    """With which all arms start."""
    tell: Callable[[Sequence[LaunchRecord]], None]
    """Shows what arms that are up write, and once all are known what they do differently."""

    def _session(self, setup: LaunchedArm, folder: Path) -> ArmSession:
        assert isinstance(setup, ScriptSetup)
        return ScriptSession(
            setup,
            launch=self.number,
            folder=folder,
            endpoint=self.endpoint,
            state=self.state.told(is_baseline=setup.name == self.plan.baseline) if self.state else {},
            say=self.progress.say,
            padding_bytes=self._padding_bytes,
        )

    def _start(self, arms: Sequence[ArmLaunch]) -> None:
        first = [arm for arm in arms if self.state and self.state.is_missing and arm.session.name == self.plan.baseline]
        if first and self.state:
            super()._start(first)
            first[0].run_unless_failed(lambda arm: self.state.share(arm.record.ranks) if self.state else None)
        others = [arm for arm in arms if arm not in first]
        if self.state and self.state.is_missing:
            failed = ArmFailed(f"{self.plan.baseline}, whose parameters it was to start with, has not saved them")
            for arm in others:
                arm.run_unless_failed(lambda arm: arm.fail(failed))
        super()._start(others)

    def _note_ready(self, arm: ArmLaunch, replies: Sequence[StartedReply]) -> None:
        arm.record.scripts = [reply.script for reply in replies if reply.script]
        super()._note_ready(arm, replies)

    def _compare(self, known: Sequence[ArmLaunch]) -> None:
        """Count iterations where samples cannot be, show what differs, and stop arms whose ranks do not agree."""
        running = [arm for arm in known if arm.is_running]
        if any(script.samples_from is None for arm in known for script in arm.record.scripts):
            for arm in running:
                arm.record.sample_unit = ITERATIONS
                assert isinstance(arm.session, ScriptSession)
                arm.session.counts_iterations = True
        self.tell([arm.record for arm in known])
        for arm in running:
            apart = ranks_apart(arm.record)
            if apart:
                arm.fail(ArmFailed(apart, status="wrong"))

    def _stages(self, arms: Sequence[ArmLaunch], known: Sequence[ArmLaunch]) -> list[Callable[[], None]]:
        """Blocks, unless those arms that run have nothing to be held against."""
        failed = {arm.record.arm for arm in self.arms if arm.record.status != "ok"}
        return [partial(self._run_rounds, arms)] if is_comparable(self.plan, failed) else []


def is_comparable(plan: Plan, failed: Collection[str]) -> bool:
    """Whether the baseline and a candidate, or its control where there is none, have not failed."""
    others = [name for name in plan.compared_arms() if name != plan.baseline]
    candidates = [name for name in others if name in plan.arms] or others
    return plan.baseline not in failed and any(name not in failed for name in candidates)


SOURCES = (".py", ".sh", ".yaml", ".yml", ".toml", ".json", ".cfg")
MOST_SOURCE_BYTES = 1 << 20
FIRST_STATE = "first-state.pt"
"""In the results folder."""


class ScriptComparison(ComparisonRun):
    """Runs a plan of commands into a folder."""

    def _resolve(self) -> None:
        """Find programs, folders and revisions."""
        self.arms, self.cases, self.floor = {}, [], None
        self.scripts = resolve_scripts(self.plan)
        self._told = ""

    def _check_arms(self) -> None:
        self.inspection = inspect(self.plan)
        known = {name: one.repository for name, one in self.scripts.items() if self.plan.role(name) != "control"}
        changed = [name for name, repository in known.items() if repository is not None and has_changes(repository)]
        self._note(f"{name} runs {self.plan.arms[name].commit}, without the changes that are not committed" for name in changed)

    def _sources(self) -> dict[str, Path]:
        """Files that the commands name, but for those of revisions."""
        found: dict[str, Path] = {}
        for name, setup in self.scripts.items():
            if setup.repository is not None or self.plan.role(name) == "control":
                continue
            for word in setup.line.words:
                path = setup.folder / word
                if path.suffix in SOURCES and path.is_file() and path.stat().st_size < MOST_SOURCE_BYTES:
                    found[f"{name}/{path.name}"] = path
        return found

    def _revisions(self) -> dict[str, str]:
        return {f"{name}/commit": setup.commit[:16] for name, setup in self.scripts.items() if setup.commit}

    def require_data(self) -> None:
        """Scripts look after their own."""

    def run(self) -> Comparison:
        """Check revisions out while the launches run; see ``ComparisonRun.run``."""
        with ExitStack() as stack:
            for name, setup in () if self.is_measured else list(self.scripts.items()):
                if setup.repository is not None:
                    self.scripts[name] = in_worktree(setup, stack.enter_context(worktree(setup.repository, setup.commit)))
            return super().run()

    def _crowded(self) -> list[str]:
        return []

    def _new_launch(self, number: int, endpoint: DriverEndpoint, *, limit: RoundLimit | None) -> Launch:
        """Make a launch; ``limit`` as ``Launch`` has it."""
        state = FirstState(self.folder.root / FIRST_STATE, endpoint.placement) if self.plan.scripts.same_start else None
        return ScriptLaunch(
            plan=self.plan,
            setups=list(self.scripts.values()),
            state=state,
            tell=self._tell_differences,
            number=number,
            folder=self.folder,
            endpoint=endpoint,
            progress=self.progress,
            limit=limit,
        )

    def _tell_differences(self, records: Sequence[LaunchRecord]) -> None:
        """Show which files arms write, and what all of them do differently, unless it was shown before in this session."""
        for note in () if self._told else written_files(records):
            self.progress.show(shown(note))
        if len(records) < len(self.scripts):
            return
        differences = configuration_differences(records, allow=self.plan.allow)
        told = repr([(one.field, one.sentence) for one in differences])
        if told != self._told and any(record.scripts for record in records):
            self._told = told
            self.progress.show(differences_table(differences))

    def _must_stop(self, number: int) -> bool:
        """A script fails in the next launch as it did in this one."""
        records = [record for record in self.folder.records() if record.launch == number]
        failed = {record.arm for record in records if record.status != "ok"}
        if super()._must_stop(number):
            return True
        if is_comparable(self.plan, failed):
            return False
        self.progress.say(
            f"no further launches: nothing is left to compare, since {', '.join(sorted(failed))} did not run to the end"
        )
        return True
