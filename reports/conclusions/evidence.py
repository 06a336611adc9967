"""Everything that an arm's figures and its ratio to the baseline are concluded from, worked out
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from measurement.conditions.differences import Difference
from measurement.plans.plan import FLOOR, Plan
from measurement.records.record import Case, LaunchRecord, Manifest
from measurement.records.step_tables import HOST_USE_TYPES, empty
from reports.conclusions.machine import find_stalls, tabulate_counters
from reports.conclusions.step_terms import Terms
from reports.conclusions.steps import Steps, tabulate_blocks
from reports.statistics.budget import error_share


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was measured of a comparison's arms, the floor left out."""

    plan: Plan
    records: Sequence[LaunchRecord]
    """By launch."""
    steps: Steps
    """Those that count."""
    blocks: pd.DataFrame
    """``reports.conclusions.steps.tabulate_blocks``."""
    stalls: pd.DataFrame
    """``reports.conclusions.machine.find_stalls``."""
    block_counters: pd.DataFrame
    """``reports.conclusions.machine.tabulate_counters``."""
    host_use: pd.DataFrame
    """``measurement.records.results.ResultsFolder.host_use``."""
    terms: Terms
    """Terms of the steps, with the floor as reference."""
    minutes: float
    """Minutes of blocks so far."""
    spent_minutes: float
    """Minutes of launches so far, starts and checks included."""
    unlike_work: Mapping[str, Sequence[Difference]]
    """By arm, what of its work differs from the baseline's and withholds a verdict."""
    error_share: float
    """That this analysis may spend (``reports.statistics.budget``)."""

    @classmethod
    def gather(
        cls,
        plan: Plan,
        records: Sequence[LaunchRecord],
        steps: Steps,
        *,
        host_use: pd.DataFrame | None,
        manifest: Manifest | None,
        unlike_work: Mapping[str, Sequence[Difference]] | None = None,
    ) -> Evidence:
        """Work it out from all records, the floor's among them, and all of their steps.

        ``manifest``: None: no driver ran it.
        """
        of_arms = [record for record in records if record.arm != FLOOR]
        valid, counters = steps.valid(records), tabulate_counters(records)
        timed = valid.without_arm(FLOOR)
        beside = empty(HOST_USE_TYPES) if host_use is None else host_use
        return cls(
            plan=plan,
            records=of_arms,
            steps=timed,
            blocks=tabulate_blocks(timed),
            stalls=find_stalls(timed.slowest),
            block_counters=counters[counters["arm"] != FLOOR],
            host_use=beside[beside["arm"] != FLOOR],
            terms=Terms.find(records, valid),
            minutes=sum(measuring_seconds(plan, records).values()) / 60,
            spent_minutes=sum(launch_seconds(records).values()) / 60,
            unlike_work=unlike_work or {},
            error_share=error_share(
                manifest.looks if manifest else [], until_decided=plan.measurement.until_decided
            ),
        )

    @property
    def threshold(self) -> float:
        """A ratio within this of 1 is of no practical interest."""
        return self.plan.measurement.noise_threshold

    @property
    def confidence(self) -> float:
        """With which intervals hold."""
        return self.plan.measurement.confidence

    @property
    def cases(self) -> list[Case]:
        """Those of a micro-benchmark; none where the workload is trained."""
        return cases_of(self.records)

    @property
    def are_runs(self) -> bool:
        """Whether people started the runs themselves, so that arms took no turns."""
        return self.plan.measurement.mode == "separate"


def cases_of(records: Sequence[LaunchRecord]) -> list[Case]:
    """The cases of a micro-benchmark; none where the workload is trained."""
    return next((record.cases for record in records if record.cases), [])


def launch_seconds(records: Sequence[LaunchRecord]) -> dict[int, float]:
    """Wall time of each launch; of one whose driver was killed, what is known."""
    by_launch: dict[int, float] = {}
    for record in records:
        known = (record.start_s or 0.0) + (record.measuring_s or 0.0)
        seconds = known if record.launch_s is None else record.launch_s
        by_launch[record.launch] = max(by_launch.get(record.launch, 0.0), seconds)
    return by_launch


def measuring_seconds(plan: Plan, records: Sequence[LaunchRecord]) -> dict[int, float]:
    """Wall time of the blocks of each launch.

    Arms of a launch share it, unless they ran one after the other.
    """
    launches: dict[int, list[float]] = {}
    for record in records:
        blocks_s = (
            record.measuring_s
            if record.measuring_s is not None
            else sum(block.wall_s for block in record.blocks)
        )
        launches.setdefault(record.launch, []).append(blocks_s)
    whole = max if plan.measurement.mode == "interleaved" else sum
    return {launch: whole(seconds) for launch, seconds in launches.items()}
