"""What holds training back, the input, the network or neither: the definitions, the threshold and the sentence, in one place.

Both shares are of the mean synchronised step. Waiting for data is what the loop itself waits for its next batch; with no loader
workers all of the loading. Exposed communication is what a step takes longer with gradient exchange than without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import pandas as pd

from reports.schema import Estimate, StepShares

LIMIT = 0.25
"""Share of a step from which its cause is called the limit: without it, throughput would rise by at least a third. Where neither
share reaches it, more than half of the step is computing."""

Limit = Literal["input", "network", "computing", "not the input"]
"""The last where exposed communication was not measured, so that nobody can tell the network from computing."""
LIMITS: tuple[Limit, ...] = get_args(Limit)


def data_wait_share(sync: pd.DataFrame) -> float:
    """The share of its synchronised steps that the rank which waits most spends waiting for data; 0 to 1.

    That rank counts because all others wait for it in the exchange, wherever a backend has them wait.

    Args:
        sync: the synchronised steps of one arm that count, at least one, columns ``rank``, ``data_wait_s`` and ``step_s``.
    """
    sums = sync.groupby("rank")[["data_wait_s", "step_s"]].sum()
    return float((sums["data_wait_s"] / sums["step_s"]).max())


def exposed_comm_share(exposed: Estimate | None, sync_blocks: pd.DataFrame) -> float | None:
    """Exposed communication over the mean step of the slowest rank; below 0 where noise has it so; None if not measured.

    Args:
        exposed: seconds per step, as ``ArmSummary.exposed_comm_s``.
        sync_blocks: the arm's synchronised blocks, columns ``block_s`` and ``steps`` (``reports.blocks.tabulate_blocks``).
    """
    if exposed is None:
        return None
    return exposed.value / float(sync_blocks["block_s"].sum() / sync_blocks["steps"].sum())


def limit_of(shares: StepShares) -> Limit:
    """What holds an arm back: the larger share, where it reaches ``LIMIT``."""
    exposed = shares.exposed_comm
    if shares.data_wait >= max(LIMIT, exposed or 0.0):
        return "input"
    if exposed is None:
        return "not the input"
    return "network" if exposed >= LIMIT else "computing"


def limit_sentence(shares: Mapping[str, StepShares]) -> str | None:
    """What the arms' shares amount to; arms with the same limit are named together. No full stop at the end; None without any.

    Args:
        shares: by arm; the control left out, which is the baseline once more.
    """
    found = {name: limit_of(own) for name, own in shares.items()}
    parts = []
    for limit in LIMITS:
        names = [name for name in found if found[name] == limit]
        if names:
            where = "" if len(names) == len(shares) else f" in {_listed(names)}"
            parts.append(_clause(limit, where, [shares[name] for name in names]))
    return ". ".join(parts) or None


def _clause(limit: Limit, where: str, shares: Sequence[StepShares]) -> str:
    waiting = percents([own.data_wait for own in shares])
    exposed = percents([own.exposed_comm or 0.0 for own in shares])
    match limit:
        case "input":
            return (
                f"The input is the limit{where}: {waiting} of the step is waiting for data; more loader workers (loader_workers) "
                "or a faster data set will help, the network will not"
            )
        case "network":
            return f"The network is the limit{where}: {exposed} of the step is exposed communication, {waiting} waiting for data"
        case "computing":
            return f"Computing takes most of the step{where}: {waiting} is waiting for data, {exposed} exposed communication"
    return f"The input is not the limit{where}: {waiting} of the step is waiting for data (exposed communication was not measured)"


def percents(shares: Sequence[float]) -> str:
    """Shares as whole percents, from the least to the greatest, such as ``62 to 65%``; what noise puts below 0 is 0."""
    low, high = (round(100 * max(share, 0.0)) for share in (min(shares), max(shares)))
    return f"{low}%" if low == high else f"{low} to {high}%"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
