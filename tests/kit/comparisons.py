"""Whole comparisons of small plans, run in this process: how one ended, its records and its
report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from subprocess import CompletedProcess

from measurement.records.results import ResultsFolder
from tests.conftest import ringside_here, write_plan


@dataclass
class Compared:
    """One that has ended."""

    done: CompletedProcess
    folder: ResultsFolder

    @cached_property
    def launches(self):
        """Records by launch and arm."""
        return {(record.launch, record.arm): record for record in self.folder.records()}

    @cached_property
    def records(self):
        """By arm, those of the last launch."""
        return {arm: record for (_, arm), record in self.launches.items()}

    @property
    def statuses(self):
        return {arm: record.status for arm, record in self.records.items()}

    @property
    def report(self):
        return json.loads(self.read("comparison.json"))

    def read(self, name):
        """A file of its folder."""
        return (self.folder.root / name).read_text()


def compare(folder, *arguments, code=0, **changes):
    """Compare what ``write_plan`` makes of the changes; results lie in ``out``.

    It ends with this exit code."""
    return compare_plan(write_plan(folder, **changes), *arguments, code=code)


def compare_plan(plan, *arguments, code=0, out="out"):
    """Results lie beside the plan."""
    root = plan.parent / out
    done = ringside_here("compare", plan, "-o", root, *arguments)
    assert done.returncode == code, done.stderr + done.stdout
    return Compared(done, ResultsFolder(root))
