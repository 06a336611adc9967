"""The folder of a comparison: its plan, the environments it was measured in, how long that took,
when verdicts were seen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

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
from measurement.plans.plan import Plan
from measurement.probes.fingerprint import git_state
from measurement.records.record import Manifest, OtherEnvironment
from measurement.records.results import ResultsFolder, write_result


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

    def note_look(self, done: int, *, planned: int) -> None:
        """Record that the verdicts of ``done`` launches are seen now.

        None are shown before the planned launches are done.
        """
        if done >= planned and done not in self.manifest.looks:
            self.manifest.looks = [*self.manifest.looks, done]
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
