"""What keeps a verdict away, in words: too few launches or runs, and load where no round was quiet; with what to do."""

from __future__ import annotations

from measurement.records.record import Manifest
from reports.estimate import Caution
from reports.schema import RatioSummary
from reports.wording.formatting import ratio, significant

CAUTIONS: dict[Caution, str] = {
    "one launch": (
        "one launch gives a ratio but no verdict, since the variance between launches is unknown; measure three or more "
        "(the plan's measurement.launches)"
    ),
    "two launches": (
        "with two launches, their variance is poorly estimated; measure three or more (the plan's measurement.launches)"
    ),
    "two runs": "with two runs of an arm, their variance is poorly estimated; make five or more of each, alternating",
    "one run": (
        "one run of an arm gives a ratio but no verdict: launches of one job differ by 4 to 8%, and by 40% on a busy machine; "
        "repeat each at least five times, alternating, or let 'ringside compare' interleave them"
    ),
}


def caution_of(result: RatioSummary) -> str | None:
    """What keeps the interval away, or wide."""
    if result.caution is None:
        return None
    why, _, remedy = CAUTIONS[result.caution].partition("; ")
    if result.caution in ("two launches", "two runs") and result.verdict == "undecided":
        why = f"{result.caution} disagree, or agree by chance"
    return f"{why}; {remedy}"


def no_verdict_by_load(result: RatioSummary) -> str:
    """Why load withholds a verdict, and what to do."""
    quiet = "" if result.quiet_ratio is None else f" (ratio {ratio(result.quiet_ratio)})"
    if result.load_reach is None:
        return f"the undisturbed rounds{quiet} do not say so"
    rounds = f"the undisturbed rounds{quiet} are too few to decide" if quiet else "no round was undisturbed"
    return f"{rounds}; load alone may cause a factor of {significant(result.load_reach)}; measure on a quiet machine"


def beyond_load(result: RatioSummary) -> str:
    """Why there is a verdict though no round was quiet."""
    if result.load_reach is None:
        return ""
    return f"; load alone may cause a factor of {significant(result.load_reach)}, and this is beyond it"


def elsewhere_lines(manifest: Manifest) -> list[str]:
    """Launches that a user measured in another environment than the first."""
    return [
        f"Launch{'es' if len(other.launches) > 1 else ''} {', '.join(map(str, sorted(other.launches)))} (counted from 0) ran in "
        f"another environment than the rest (--resume-elsewhere): {'; '.join(other.differences)}; ratios of both are mixed"
        for other in manifest.elsewhere
        if other.launches
    ]
