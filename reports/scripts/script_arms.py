"""The scripts of one launch, with what each arm's ranks reported, and what a reader must know of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from measurement.conditions.differences import Difference, is_by_rank, joined
from measurement.rank_agreement import RankAgreement, agreement
from measurement.records.record import LaunchRecord, ScriptReport


@dataclass(frozen=True, kw_only=True)
class ScriptArm:
    """One arm of scripts in one launch."""

    name: str
    reports: Sequence[ScriptReport]
    """By rank."""
    image: str | None = None
    """In which they ran."""

    @classmethod
    def of(cls, record: LaunchRecord) -> ScriptArm:
        """Take it from the arm's record."""
        return cls(
            name=record.arm,
            image=record.image,
            reports=sorted(record.scripts, key=lambda report: report.rank),
        )

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
        """Every setting: one value where all ranks have it, else ``{"by_rank": [...]}``; of loaders
        where all ranks' were seen.
        """
        names = dict.fromkeys(name for report in self.reports for name in report.configuration)
        unseen = (
            OF_LOADER if any(SEEN not in report.configuration for report in self.reports) else ()
        )
        kept = (name for name in names if not name.startswith(unseen))
        read = {
            name: joined([report.configuration.get(name) for report in self.reports])
            for name in kept
        }
        return {"image": self.image, **read}

    @cached_property
    def agreement(self) -> RankAgreement | None:
        """In what its ranks differ; None where they cannot be compared."""
        return agreement(self.reports)

    def number(self, field: str) -> float | None:
        """A setting, where it is a number and the same on all ranks."""
        value = self.fields.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value)

    @property
    def passes(self) -> float | None:
        """Backward passes of a step."""
        return self.number("accumulation")

    @property
    def samples(self) -> int | None:
        """Samples of a rank in the first step, where they were counted and are those of all."""
        counts = {report.steps[0].samples for report in self.reports if report.steps}
        return counts.pop() if len(counts) == 1 else None

    @property
    def batches(self) -> list[list[str | None]]:
        """Digests of the first batches, by step, then by rank."""
        by_step = zip(*(report.steps for report in self.reports), strict=False)
        return [[step.batch for step in ranks] for ranks in by_step]

    @property
    def shares_batches(self) -> bool | None:
        """Whether all ranks read the same batches; None where that is not known, or there is one
        rank.
        """
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
        for field in ("horovod.compression", "ddp.comm_hook"):
            compressor = str(self.fields.get(field) or "none")
            if compressor not in ("none", "None", "NoneCompressor"):
                return half_in(compressor) or compressor
        return None


def half_in(text: str) -> str | None:
    """The dtype of 16 bits that a text names; the coarser of both."""
    if "bf16" in text.lower() or "bfloat16" in text.lower():
        return "bfloat16"
    return "float16" if "fp16" in text.lower() or "float16" in text.lower() else None


SEEN = "loader.class"
"""Each loader that was seen has one."""
OF_LOADER = ("loader.", "sampler.", "rank_local_batch", "epoch.steps")
"""How settings begin that are read of a loader."""
ITERATIONS = "iterations"
MAX_FILES = 10
"""Files of an arm that the note on them names."""
MAX_ALLOWED = 5
"""Fields that the note on allowed work names."""


def sample_unit(records: Sequence[LaunchRecord]) -> str:
    """The unit of throughput: iterations where samples of some rank of a script could not be
    counted.
    """
    if any(report.samples_from is None for record in records for report in record.scripts):
        return ITERATIONS
    return next(
        (record.sample_unit for record in records if record.sample_unit != "samples"), "samples"
    )


def samples_of_a_step(records: Sequence[LaunchRecord]) -> int:
    """Samples of a rank in its first step; 0 where they could not be counted."""
    counted = (
        report.steps[0].samples for record in records for report in record.scripts if report.steps
    )
    return next((samples for samples in counted if samples), 0)


def trained_model(records: Sequence[LaunchRecord]) -> str:
    """Class of the first model, and how many parameters are trained, by the ranks of all records;
    empty where they differ, are not known, or each rank has a share.
    """
    if any(report.sharded for record in records for report in record.scripts):
        return ""
    models = {
        (rank.model.get("class"), rank.model.get("parameters"))
        for record in records
        if record.scripts
        for rank in record.ranks
    }
    if len(models) != 1 or None in (model := models.pop()):
        return ""
    return f"{model[0]} of {model[1]:,} trained parameters"


def script_notes(records: Sequence[LaunchRecord], differences: Sequence[Difference]) -> list[str]:
    """What a reader must know of scripts: what counts as a sample, work that may differ, and what
    the agent could not see.
    """
    reports = [
        (record.arm, report)
        for record in records
        if record.role != "control"
        for report in record.scripts
    ]
    notes = []
    if uncounted := dict.fromkeys(arm for arm, report in reports if report.samples_from is None):
        notes.append(
            f"Samples of {', '.join(uncounted)} could not be counted: iterations per second are"
            " compared, which is fair only where global batches are alike; 'samples_per_step'"
            " tells them"
        )
    if allowed := [row.field for row in differences if row.changes_work and row.allowed]:
        notes.append(f"Work differs, and is allowed to: {', '.join(allowed[:MAX_ALLOWED])}")
    unseen = dict.fromkeys(note for _, report in reports for note in report.notes)
    for note in unseen:
        arms = dict.fromkeys(arm for arm, report in reports if note in report.notes)
        notes.append(f"{', '.join(arms)}: {note.rstrip('.')}")
    return [*notes, *notes_on_files(records)]


def notes_on_files(records: Sequence[LaunchRecord]) -> list[str]:
    """What each arm writes outside the folders of its starts, with the remedy; and the trackers
    that are set offline.
    """
    written, trackers = dict[str, set[str]](), set[str]()
    for record in (record for record in records if record.role != "control"):
        for script in record.scripts:
            written.setdefault(record.arm, set()).update(script.written_files)
            trackers.update(script.trackers)
    files = "; ".join(
        f"{', '.join(sorted(names)[:MAX_FILES])} ({arm})"
        for arm, names in sorted(written.items())
        if names
    )
    notes = []
    if files:
        notes.append(
            f"Written outside the folder of the command: {files}. Each arm, the control and each"
            " launch starts its script again, and writes there, unless the command says {arm} and"
            " {launch} in the path, such as --output /tmp/{arm}-{launch}. A path that begins where"
            " the command starts is each start's own"
        )
    if trackers:
        offline = ", ".join(sorted(trackers))
        notes.append(f"Told to stay offline: {offline}; --trackers on leaves them as they are")
    return notes
