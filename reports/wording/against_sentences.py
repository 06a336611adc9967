"""The sentences of a comparison with an earlier result: first of all that two dates were compared, not two arms."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from measurement.plans.plan import Plan
from measurement.records.record import Manifest
from reports.against_schema import Against, Change, ChangeWithheld
from reports.wording.formatting import apart, percent

MAX_NAMED = 3
WITHHELD: dict[ChangeWithheld, str] = {
    "launches": "a single launch tells nothing of how launches differ",
    "load": "the machine was not quiet",
    "work": "other work",
    "control": "the control deviates as much",
    "alone": "one arm at a time says otherwise",
    "stalls": "it hangs on few stalls",
}


def headline(found: Against, *, now: str) -> str:
    """One sentence on both dates, the worst that changed, and what the baseline did meanwhile."""
    digits = 10 if found.created_at[:10] != now[:10] else 16
    before, after = (at[:digits].replace("T", " ") for at in (found.created_at, now))
    dates = f"Two dates compared, not two arms ({before} and {after})"
    baseline = found.of_baseline
    meanwhile = f"; meanwhile the baseline {found.baseline} itself came out {moved(baseline)}" if baseline else ""
    return f"{dates}: {_worst(found)}{meanwhile}"


def _worst(found: Against) -> str:
    least = percent(found.allow_slower)
    named = [f"{figure_name(one)} {moved(one)}" for one in found.changes if one.verdict == found.verdict]
    match found.verdict:
        case "regressed":
            how = f"beyond {least}" if found.beyond else f"not shown to be beyond {least}"
            return f"regressed ({how}): {_listed(named)}"
        case "improved":
            return f"improved: {_listed(named)}"
        case "no regression":
            return f"no regression beyond {least}"
    open_ = [figure_name(one) for one in found.changes if one.verdict == "undecided"]
    return f"undecided whether {_listed(open_)} regressed"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{more}"


def figure_name(change: Change) -> str:
    """The arm; or its ratio, as ``horovod over ddp``; with the case of a micro-benchmark."""
    what = change.arm if change.baseline is None else f"{change.arm} over {change.baseline}"
    return what if change.case is None else f"{what} in {change.case}"


def moved(change: Change) -> str:
    """Such as ``5.2% slower``."""
    return f"{apart(change.change.value)} {'slower' if change.change.value < 1 else 'faster'}"


def together_line(found: Against) -> list[str]:
    """That all arms got slower together, where they did."""
    throughputs = [change for change in found.changes if change.baseline is None]
    ratios = [change for change in found.changes if change.baseline is not None]
    if not ratios or not all(change.verdict == "regressed" for change in throughputs):
        return []
    if any(change.verdict == "regressed" for change in ratios):
        return []
    return ["All arms are slower and their ratios are not: the machine is slower, or something that all arms share"]


def unmatched_line(arms: Sequence[str]) -> list[str]:
    """Which arms were not compared."""
    return [f"Not compared, since one of the two results has no timing: {', '.join(arms)}"] if arms else []


def remedy(plan: Plan, manifest: Manifest | None, *, has_changed: bool) -> str:
    """How to measure both states in turn, where something that is known has changed; else what a date may have done.

    Args:
        plan: of the earlier result.
        manifest: its own, for the revision that it ran.
        has_changed: whether sources or conditions differ.
    """
    if not has_changed:
        return "Nothing that Ringside records differs but the date; measure once more to see whether it stays"
    revisions = [value[:12] for name, value in manifest.sources.items() if name.endswith("/commit")] if manifest else []
    revision = revisions[0] if revisions else "OLD"
    first = "To leave the dates out, measure both states in turn"
    command = plan.arms[plan.baseline].command
    if command is not None:
        words = shlex.quote(command)
        return f"{first}: ringside ab {words} {words} --commit-a {revision} (or --python-a PYTHON, of the old environment)"
    return f"{first}: a plan with an arm that says 'commit: {revision}', or 'python:' of the old environment, beside one of today"
