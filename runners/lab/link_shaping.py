"""The links between a plan's hosts where these are a lab's: shaped as the plan says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from measurement.errors import PlanError
from measurement.link_rate import parse_plan_rate
from measurement.plan import Plan
from runners.lab import namespaces
from runners.lab.links import require_shaping, reshape
from runners.lab.state import LabSettings, load_settings


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
