"""The sentences of a comparison with an earlier result: first of all that two dates were compared, not two arms."""

from __future__ import annotations

import shlex

from measurement.plans.plan import Plan
from measurement.records.record import Manifest
from reports.parts_schema import Against, Change
from reports.wording.formatting import apart, percent

MAX_NAMED = 3


def headline(found: Against, *, now: str) -> str:
    """One sentence on both dates, the worst that changed, and what the baseline did meanwhile."""
    digits = 10 if found.created_at[:10] != now[:10] else 16
    before, after = (at[:digits].replace("T", " ") for at in (found.created_at, now))
    baseline = found.of_baseline
    meanwhile = f"; meanwhile the baseline {found.baseline} itself came out {moved(baseline)}" if baseline else ""
    return f"Two dates compared, not two arms ({before} and {after}): {_worst(found)}{meanwhile}"


def _worst(found: Against) -> str:
    least = percent(found.allow_slower)
    worst = [one for one in found.changes if one.verdict == found.verdict]
    more = f" and {len(worst) - MAX_NAMED} more" if len(worst) > MAX_NAMED else ""
    changed = ", ".join(f"{figure_name(one)} {moved(one)}" for one in worst[:MAX_NAMED]) + more
    match found.verdict:
        case "regressed":
            return f"regressed ({'' if found.beyond else 'not shown to be '}beyond {least}): {changed}"
        case "improved":
            return f"improved: {changed}"
        case "no regression":
            return f"no regression beyond {least}"
    return f"undecided whether {', '.join(map(figure_name, worst[:MAX_NAMED]))}{more} regressed"


def figure_name(change: Change) -> str:
    """The arm; or its ratio, as ``horovod over ddp``; with the case of a micro-benchmark."""
    what = change.arm if change.baseline is None else f"{change.arm} over {change.baseline}"
    return what if change.case is None else f"{what} in {change.case}"


def moved(change: Change) -> str:
    """Such as ``5.2% slower``."""
    return f"{apart(change.change.value)} {'slower' if change.change.value < 1 else 'faster'}"


def together_line(found: Against) -> list[str]:
    """That all arms got slower together, where they did."""
    throughputs, ratios = ({one.verdict for one in found.changes if (one.baseline is None) == is_own} for is_own in (True, False))
    if throughputs != {"regressed"} or not ratios or "regressed" in ratios:
        return []
    return ["All arms are slower and their ratios are not: the machine is slower, or something that all arms share"]


def remedy(plan: Plan, manifest: Manifest | None, *, has_changed: bool) -> str:
    """How to measure both states in turn, where something that is known has changed; plan and manifest are the earlier ones."""
    if not has_changed:
        return "Nothing that Ringside records differs but the date; measure once more to see whether it stays"
    sources = manifest.sources if manifest else {}
    revision = next((value[:12] for name, value in sources.items() if name.endswith("/commit")), "OLD")
    command = plan.arms[plan.baseline].command
    if command is None:
        how = f"a plan with an arm that says 'commit: {revision}', or 'python:' of the old environment, beside one of today"
    else:
        words = shlex.quote(command)
        how = f"ringside ab {words} {words} --commit-a {revision} (or --python-a PYTHON, of the old environment)"
    return f"To leave the dates out, measure both states in turn: {how}"
