"""Runs a comparison of scripts: as any, with what they do differently first, and without what only workloads have."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from measurement.records.record import LaunchRecord
from reports.formats.terminal import differences_table, shown
from reports.schema import Comparison
from reports.scripts.configuration import configuration_differences
from reports.scripts.script_arms import written_files
from runners.driver.endpoint import DriverEndpoint
from runners.driver.launch import Launch
from runners.driver.rounds import RoundLimit
from runners.driver.run_comparison import ComparisonRun
from runners.hosts.preflight import inspect
from runners.planning.worktrees import has_changes, worktree
from runners.scripts.script_launch import FirstState, ScriptLaunch, is_comparable
from runners.scripts.script_setup import in_worktree, resolve_scripts

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
        differences = configuration_differences(records, allow=self.plan.scripts.allow)
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
