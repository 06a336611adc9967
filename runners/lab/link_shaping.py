"""The links between a plan's hosts where these are a lab's: shaped as the plan says, and what passes over them counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from measurement.errors import LabError, PlanError
from measurement.link_rate import parse_plan_rate
from measurement.plan import Plan
from runners.lab import namespaces
from runners.lab.links import link_bytes, require_shaping, reshape
from runners.lab.state import LabSettings, load_settings

Counters = Mapping[str, tuple[int, int]]
"""Bytes sent and received so far, by host."""


def require_lab(plan: Plan) -> None:
    """Refuse a plan that wants links shaped where they are not Ringside's to shape.

    Raises:
        PlanError: this is no host of a lab.
        LabError: the kernel cannot do it.
    """
    if plan.link_rate is None:
        return
    rate = parse_plan_rate(plan.link_rate)
    if not namespaces.is_inside():
        raise PlanError(
            f"link_rate '{plan.link_rate}': only the links of a lab can be shaped, and this is none of its hosts; make one and run "
            "inside: ringside lab up --hosts 2; ringside lab run -- ringside compare PLAN"
        )
    require_shaping(LabSettings(rate_bits_per_s=rate))


@contextmanager
def shaped_links(link_rate: str | None) -> Iterator[None]:
    """The lab's links at this rate, afterwards again at that which the lab was made with; None: as they are."""
    if link_rate is None:
        yield
        return
    settings = load_settings()
    try:
        reshape(settings, parse_plan_rate(link_rate))
        yield
    finally:
        reshape(settings, settings.rate_bits_per_s)


def link_counter(plan: Plan) -> Callable[[], Counters]:
    """Reads what has passed over the links of the hosts; always nothing where they are not a lab's.

    Nor where waiting arms are not stopped: theirs could not be told from what the block sends.
    """
    if plan.hosts is None or not plan.measurement.freeze or not namespaces.is_inside():
        return dict
    return _count


def _count() -> Counters:
    try:
        return {host: (link.tx_bytes, link.rx_bytes) for host, link in link_bytes().items()}
    except LabError:  # a lab that goes away is told by the ranks that go with it
        return {}


def passed(before: Counters, after: Counters) -> dict[str, tuple[int, int]]:
    """What passed between two readings."""
    return {host: (sent - before[host][0], got - before[host][1]) for host, (sent, got) in after.items() if host in before}
