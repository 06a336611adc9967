"""The scripts of one launch: what each arm's ranks reported, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from measurement.records.record import LaunchRecord
from measurement.records.script_report import ScriptReport
from reports.scripts.rank_agreement import RankAgreement, agreement

MOST_SHOWN = 40
"""Characters of a value that a sentence or a table shows."""
BY_RANK = "by_rank"


@dataclass(frozen=True, kw_only=True)
class ScriptArm:
    """One arm of scripts in one launch."""

    name: str
    reports: Sequence[ScriptReport]
    """By rank."""

    @classmethod
    def of(cls, record: LaunchRecord) -> ScriptArm:
        """Take it from the arm's record."""
        return cls(name=record.arm, reports=sorted(record.scripts, key=lambda report: report.rank))

    @property
    def first(self) -> ScriptReport:
        """Rank 0's report."""
        return self.reports[0]

    @property
    def ranks(self) -> int:
        """How many ranks the script says that it has."""
        size = self.first.configuration.get("world_size")
        return size if isinstance(size, int) else len(self.reports)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Every setting: one value where all ranks have it, else ``{"by_rank": [...]}``."""
        names = dict.fromkeys(name for report in self.reports for name in report.configuration)
        return {name: joined([report.configuration.get(name) for report in self.reports]) for name in names}

    @cached_property
    def agreement(self) -> RankAgreement | None:
        """In what its ranks differ; None where they cannot be compared."""
        return agreement(self.reports)

    def number(self, *fields: str) -> float | None:
        """The first of these settings that is a number and the same on all ranks."""
        values = (self.fields.get(field) for field in fields)
        return next((float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)), None)

    @property
    def samples(self) -> float | None:
        """Samples of a rank in the first step, where they were counted."""
        found = [report.steps[0].samples for report in self.reports if report.steps]
        return float(found[0]) if found and found[0] is not None and len(set(found)) == 1 else None

    @property
    def batches(self) -> list[list[str | None]]:
        """Digests of the first batches, by step, then by rank."""
        by_step = zip(*(report.steps for report in self.reports), strict=False)
        return [[step.batch for step in ranks] for ranks in by_step]

    @property
    def shares_batches(self) -> bool | None:
        """Whether all ranks read the same batches; None where that is not known, or there is one rank."""
        known = [ranks for ranks in self.batches if None not in ranks]
        if len(self.reports) < 2 or not known:
            return None
        return all(len(set(ranks)) == 1 for ranks in known)

    @property
    def learning_rates(self) -> list[float]:
        """Those of the first parameter group, step by step."""
        return [step.learning_rates[0] for step in self.first.steps if step.learning_rates]

    @property
    def seeds_alike(self) -> bool | None:
        """Whether all ranks have one seed; None for one rank, or where it is not known."""
        seed = self.fields.get("seed.torch")
        return None if seed is None or len(self.reports) < 2 else not is_by_rank(seed)

    @property
    def compression(self) -> str | None:
        """In what gradients are exchanged, where that is not their own type."""
        horovod, hook = self.fields.get("horovod.compression"), self.fields.get("ddp.comm_hook")
        said = next((str(value) for value in (horovod, hook) if value not in (None, "", "none", "None", "NoneCompressor")), None)
        if said is None:
            return None
        if "bf16" in said.lower():
            return "bfloat16"
        return "float16" if "fp16" in said.lower() else said


def joined(values: Sequence[Any]) -> Any:
    """One value where all ranks have the same, else those of all ranks."""
    return values[0] if all(value == values[0] for value in values) else {BY_RANK: list(values)}


def is_by_rank(value: Any) -> bool:
    """Whether ranks of an arm differ in it."""
    return isinstance(value, dict) and set(value) == {BY_RANK}


def shown(value: Any) -> str:
    """A value as a sentence or a table shows it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:.6g}"
    if is_by_rank(value):
        return cut(f"{', '.join(shown(one) for one in value[BY_RANK])} by rank")
    if isinstance(value, list | tuple):
        return cut(", ".join(shown(one) for one in value))
    return cut(str(value))


def cut(text: str) -> str:
    """A text without what is too long to be shown."""
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"
