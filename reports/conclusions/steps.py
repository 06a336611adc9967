"""Raw steps, summed up as they are read: what every figure is made of, in a thousandth of the space.

Two tables are kept. ``rank_blocks`` has every rank's sums over each block; ``slowest`` has, of each step of a block, the row of the
rank that took longest, for which the others wait. Time and memory to make them are linear in the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from measurement.records.record import PHASES, LaunchRecord
from measurement.records.results import ResultsFolder

PLACE = ["launch", "arm"]
BLOCK = ["round", "block", "kind", "case"]
"""Constant within a ``turn`` of a launch and arm. ``case`` is null where the workload is trained."""
TIMES = ["step_s", *(f"{phase}_s" for phase in PHASES)]
RANK_BLOCK_TYPES: dict[str, Any] = {
    "launch": "int64",
    "arm": str,
    "turn": "int64",
    "rank": "int64",
    "round": "int64",
    "block": "int64",
    "kind": str,
    "case": "string",
    "steps": "int64",
    "samples": "int64",
    **dict.fromkeys(TIMES, "float64"),
}
SLOWEST_TYPES: dict[str, Any] = {
    **{name: RANK_BLOCK_TYPES[name] for name in ("launch", "arm", "turn")},
    "step": "int64",
    "rank": "int64",
    "kind": str,
    "case": "string",
    **dict.fromkeys(TIMES, "float64"),
}


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps of any number of launches and arms."""

    rank_blocks: pd.DataFrame
    """Columns ``RANK_BLOCK_TYPES``: ``steps`` is their number, ``samples`` and times are sums. By launch, arm, turn and rank."""
    slowest: pd.DataFrame
    """Columns ``SLOWEST_TYPES``. By launch, arm, turn and step."""

    @classmethod
    def of(cls, raw: pd.DataFrame) -> Steps:
        """Sum up a table of raw steps, ``launch`` and ``arm`` besides ``measurement.records.record.STEP_COLUMNS``, in any order."""
        if "launch" not in raw or not len(raw):
            return cls.joined([])
        return cls.joined(_sum_up(own, launch, arm) for (launch, arm), own in raw.groupby(PLACE, sort=False))

    @classmethod
    def joined(cls, parts: Iterable[Steps]) -> Steps:
        """Put parts together; a block may be spread over several of them."""
        found = list(parts)
        sums = _concat([part.rank_blocks for part in found], RANK_BLOCK_TYPES)
        key = [*PLACE, "turn", "rank"]
        if sums.duplicated(key).any():
            added = sums.groupby(key, sort=False)[["steps", "samples", *TIMES]].sum().reset_index()
            sums = added.merge(sums.drop_duplicates(key)[[*key, *BLOCK]], on=key)[list(RANK_BLOCK_TYPES)]
        slowest = _concat([part.slowest for part in found], SLOWEST_TYPES)
        slowest = slowest.sort_values([*PLACE, "turn", "step", "step_s", "rank"], ascending=[True] * 4 + [False, True])
        slowest = slowest.drop_duplicates([*PLACE, "turn", "step"])
        return cls(rank_blocks=sums.sort_values(key, ignore_index=True), slowest=slowest.reset_index(drop=True))

    def valid(self, records: Sequence[LaunchRecord]) -> Steps:
        """Those whose launch is ok, whose arm was never wrong, and of blocks that every rank finished without a skipped step."""
        wrong = {record.arm for record in records if record.status == "wrong"}
        good = [record for record in records if record.status == "ok" and record.arm not in wrong]
        places = [(record.launch, record.arm, record.world_size) for record in good]
        counted = pd.DataFrame(places, columns=[*PLACE, "world_size"]).astype({"launch": "int64", "arm": str})
        key = [*PLACE, "turn"]
        turns = self.rank_blocks.groupby(key)["steps"].agg(["size", "min", "max"]).reset_index().merge(counted, on=PLACE)
        skipping = {(record.launch, record.arm, block.turn) for record in good for block in record.blocks if block.skipped_steps}
        takes_all = np.array([place not in skipping for place in turns[key].itertuples(index=False, name=None)], dtype=bool)
        turns = turns.loc[takes_all]
        whole = turns.loc[(turns["size"] == turns["world_size"]) & (turns["min"] == turns["max"]), key]
        return Steps(rank_blocks=self.rank_blocks.merge(whole, on=key), slowest=self.slowest.merge(whole, on=key))

    def where(self, **values: Any) -> Steps:
        """Those with these values, such as ``arm="ddp", kind="sync"``; columns that both tables have."""
        blocks, slowest = self.rank_blocks, self.slowest
        for name, value in values.items():
            blocks, slowest = blocks[blocks[name] == value], slowest[slowest[name] == value]
        return Steps(rank_blocks=blocks, slowest=slowest)

    def without_arm(self, arm: str) -> Steps:
        """Those of all other arms."""
        blocks, slowest = self.rank_blocks, self.slowest
        return Steps(rank_blocks=blocks[blocks["arm"] != arm], slowest=slowest[slowest["arm"] != arm])

    def by_iteration(self) -> Steps:
        """These steps with themselves as samples, counted once for all ranks: of scripts whose samples could not be counted."""
        first = self.rank_blocks.groupby([*PLACE, "turn"])["rank"].transform("min")
        steps = self.rank_blocks["steps"].where(self.rank_blocks["rank"] == first, 0)
        return Steps(rank_blocks=self.rank_blocks.assign(samples=steps), slowest=self.slowest)

    def only_launches(self, launches: Sequence[int]) -> Steps:
        """Those of these launches."""
        blocks, slowest = self.rank_blocks, self.slowest
        return Steps(rank_blocks=blocks[blocks["launch"].isin(launches)], slowest=slowest[slowest["launch"].isin(launches)])

    def without_launches(self, launches: Sequence[int]) -> Steps:
        """Those of all other launches."""
        if not launches:
            return self
        blocks, slowest = self.rank_blocks, self.slowest
        return Steps(rank_blocks=blocks[~blocks["launch"].isin(launches)], slowest=slowest[~slowest["launch"].isin(launches)])

    def as_of(self, *, arm: str, launch: int) -> Steps:
        """These steps under the name of another arm and launch."""
        place: dict[str, Any] = {"arm": arm, "launch": launch}
        return Steps(rank_blocks=self.rank_blocks.assign(**place), slowest=self.slowest.assign(**place))

    def __len__(self) -> int:
        """The number of steps, each counted once for all ranks."""
        return len(self.slowest)


def read_steps(folder: ResultsFolder, records: Sequence[LaunchRecord]) -> Steps:
    """All steps of the records, summed up part by part."""
    return Steps.joined(_sum_up(part, record.launch, record.arm) for record in records for part in folder.parts_of_steps(record))


def means_by_rank(rank_blocks: pd.DataFrame, names: Sequence[str], *, by: Sequence[str] = ("launch", "rank")) -> pd.DataFrame:
    """Mean seconds per step of these times, for each launch and rank."""
    sums = rank_blocks.groupby(list(by))[[*names, "steps"]].sum()
    return sums[list(names)].div(sums["steps"], axis="index")


def _sum_up(raw: pd.DataFrame, launch: Any, arm: Any) -> Steps:
    """Sum up raw steps of one launch of one arm."""
    raw = raw if _is_in_order(raw) else raw.sort_values(["turn", "rank", "step"])  # sums of floats depend on their order
    place = {"launch": launch, "arm": arm}
    turns = raw.drop_duplicates("turn")[["turn", *BLOCK]]
    sums = raw.groupby(["turn", "rank"], sort=False)[["samples", *TIMES]].sum()
    sums = sums.assign(steps=raw.groupby(["turn", "rank"], sort=False).size()).reset_index().merge(turns, on="turn").assign(**place)
    longest = raw["step_s"] == raw.groupby(["turn", "step"], sort=False)["step_s"].transform("max")
    slowest = raw.loc[longest].sort_values("rank", kind="stable").drop_duplicates(["turn", "step"]).assign(**place)
    rank_blocks, slowest = sums[list(RANK_BLOCK_TYPES)], slowest[list(SLOWEST_TYPES)]
    return Steps(rank_blocks=rank_blocks.astype(RANK_BLOCK_TYPES), slowest=slowest.astype(SLOWEST_TYPES))


def _is_in_order(raw: pd.DataFrame) -> bool:
    """Whether rows come by turn, rank and step, as they are written."""
    turns, ranks, steps = (np.diff(raw[name].to_numpy(dtype=np.int64)) for name in ("turn", "rank", "step"))
    return bool(((turns > 0) | ((turns == 0) & ((ranks > 0) | ((ranks == 0) & (steps > 0))))).all())


def _concat(tables: Sequence[pd.DataFrame], types: dict[str, Any]) -> pd.DataFrame:
    empty = pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in types.items()})
    return pd.concat([empty, *tables], ignore_index=True).astype(types)
