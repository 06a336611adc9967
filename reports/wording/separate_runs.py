"""The sentences on runs that people started themselves: what they could have shown, and how they lay in time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.schema import Comparison, RatioSummary
from reports.wording.formatting import apart, percent

FEW_RUNS = 5
"""Of each arm; fewer tell their own variance badly."""


def run_lines(results: Sequence[RatioSummary]) -> list[str]:
    """For each candidate the smallest difference that its runs could have shown, and what the order of the runs may hide."""
    found = []
    for result in results:
        if result.run_order is None or result.case is not None:
            continue
        if result.ci_low is not None and result.ci_high is not None:
            smallest = math.exp(math.log(result.ci_high / result.ci_low) / 2)
            paired = "in pairs, since they alternated" if result.run_order == "alternating" else "unpaired"
            found.append(
                f"{result.candidate}: the smallest difference from {result.baseline} that these runs could have shown is "
                f"{apart(smallest)} ({paired})"
            )
        if result.run_order == "one after the other":
            found.append(
                f"All runs of one of {result.candidate} and {result.baseline} came before all of the other: a machine that became "
                "slower or faster meanwhile would look the same as a difference between them; let runs alternate"
            )
        if 2 < result.launches < FEW_RUNS:
            found.append(
                f"{result.candidate}: {result.launches} runs of each tell badly how much runs differ; make {FEW_RUNS} or more"
            )
    return found


def runs_method(comparison: Comparison) -> list[str]:
    """How the runs were made and are compared."""
    said = "; ".join(f"{arm}: {', '.join(folders)}" for arm, folders in comparison.runs.items())
    return [
        "People started these runs themselves, each by its own command; a run is one launch, whose model is built once. No driver "
        f"interleaved them, stopped what waits, or ran a control. Runs: {said}.",
        "Ratio: of the geometric means over runs of each run's total throughput, all samples over all seconds. Interval: "
        f"{percent(comparison.measurement['confidence'])} confidence for all candidates together (Šidák); where the runs of two "
        "arms alternated, Student's t of neighbours' differences; else Welch's t, which shares no variance between arms. What "
        "one long run may come out at is the prediction interval of the same.",
        "Verdict: faster or slower where the interval excludes 1 and the ratio is at least "
        f"{percent(comparison.measurement['noise_threshold'])} from 1; equivalent where the whole interval lies within that; else "
        "undecided.",
    ]
