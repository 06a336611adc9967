"""How quantities are written for people: enough digits to act on, the unit always there, a dash where there is none."""

from __future__ import annotations

from reports.schema import ArmSummary, Estimate, RatioSummary

NONE = "–"


def ratio(value: float | None) -> str:
    """A ratio with three decimals."""
    return NONE if value is None else f"{value:.3f}"


def percent(share: float) -> str:
    """A share, such as a confidence or a threshold, with no more digits than it has."""
    return f"{share * 100:g}%"


def interval(result: RatioSummary) -> str:
    """The bounds of a ratio's interval."""
    if result.ci_low is None or result.ci_high is None:
        return NONE
    return f"{result.ci_low:.3f} to {result.ci_high:.3f}"


def rate(estimate: Estimate | None) -> str:
    """Samples per second, four significant digits at least."""
    if estimate is None:
        return NONE
    return f"{estimate.value:,.0f}" if estimate.value >= 1000 else f"{estimate.value:.4g}"


def rate_interval(estimate: Estimate | None) -> str:
    """The bounds of a throughput."""
    if estimate is None or estimate.ci_low is None or estimate.ci_high is None:
        return NONE
    bounds = (rate(Estimate(value=bound)) for bound in (estimate.ci_low, estimate.ci_high))
    return " to ".join(bounds)


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds with three significant digits, never in powers of ten."""
    if seconds is None:
        return NONE
    value = seconds * 1e3
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def exposed(estimate: Estimate | None) -> str:
    """Exposed communication in milliseconds per step, with its interval."""
    if estimate is None:
        return NONE
    if estimate.ci_low is None or estimate.ci_high is None:
        return milliseconds(estimate.value)
    return f"{milliseconds(estimate.value)} ({milliseconds(estimate.ci_low)} to {milliseconds(estimate.ci_high)})"


def gibibytes(number: int | None) -> str:
    """Bytes as GiB."""
    return NONE if number is None else f"{number / 2**30:.2f}"


def arm_kind(arm: ArmSummary) -> str:
    """Backend, transport and launcher."""
    return " / ".join(part for part in (arm.backend, arm.transport, arm.launcher) if part)
