"""The sentence on what limits the speed: the input, the exchange, the library, unlike ranks or computing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from reports.conclusions.bottleneck import Limit, limit_of
from reports.schema import StepShares


def limit_sentence(shares: Mapping[str, StepShares], *, hosts: int) -> str | None:
    """What limits each arm; arms with the same limit are named together. No full stop at the end; None without arms.

    Args:
        shares: by arm; the control left out, which is the baseline once more.
        hosts: that the ranks ran on; on one of them no network lies between.
    """
    found = {name: limit_of(own) for name, own in shares.items()}
    parts = []
    for limit in get_args(Limit):
        names = [name for name in found if found[name] == limit]
        if names:
            where = "" if len(names) == len(shares) else f" in {_listed(names)}"
            parts.append(_clause(limit, where, [shares[name] for name in names], hosts))
    return ". ".join(parts) or None


def _clause(limit: Limit, where: str, shares: Sequence[StepShares], hosts: int) -> str:
    waiting = percents([own.data_wait for own in shares])
    exposed = percents([own.exposed_exchange or 0.0 for own in shares])
    match limit:
        case "input":
            return (
                f"The input is the limit{where}: {waiting} of the step is waiting for data; more loader workers (loader_workers) "
                "or a faster data set will help, the network will not"
            )
        case "exchange":
            what = "The network" if hosts > 1 else "Exchange between ranks of one host"
            return f"{what} is the limit{where}: {exposed} of the step is exposed exchange, {waiting} waiting for data"
        case "library":
            overhead = percents([own.library_overhead or 0.0 for own in shares])
            return f"The library is the limit{where}: {overhead} of the step is its overhead besides exchange"
        case "imbalance":
            unlike = percents([own.imbalance or 0.0 for own in shares])
            return f"Unlike ranks are the limit{where}: {unlike} of the step is waiting for the slowest"
        case "computing":
            return f"Computing takes most of the step{where}: {waiting} is waiting for data, {exposed} exposed exchange"
    return f"The input is not the limit{where}: {waiting} of the step is waiting for data (exposed exchange was not measured)"


def percents(shares: Sequence[float]) -> str:
    """Shares as whole percents, from the least to the greatest, such as ``62 to 65%``; noise puts none below 0 or above 100."""
    low, high = (round(100 * min(max(share, 0.0), 1.0)) for share in (min(shares), max(shares)))
    return f"{low}%" if low == high else f"{low} to {high}%"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
