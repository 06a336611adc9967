"""pull-request.md: the first screen as a comment of some 15 lines, whose marker lets a bot replace the one before."""

from __future__ import annotations

import os
import re

from reports.base import Report
from reports.formats.markdown import escape, marks_line
from reports.schema import Comparison
from reports.study_schema import Study
from reports.wording.first_screen import MOST_LINES, Candidate, first_screen
from reports.wording.formatting import percent_apart

JOBS = ("{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}", "{CI_JOB_URL}/artifacts/browse")
"""Where the files of a job are seen, by the variables of GitHub Actions and of GitLab."""
NOT_IN_MARKERS = re.compile(r"[^\w.+-]")


class PullRequestReport(Report):
    """Markdown of GitHub and GitLab. Its first line is a comment that nobody sees, the same for every result of a plan."""

    file_name = "pull-request.md"
    is_customary = False

    def render(self, comparison: Comparison | Study) -> bytes:
        return _text(comparison)

    def render_study(self, study: Study) -> bytes:
        return self.render(study)


def _text(shown: Comparison | Study) -> bytes:
    screen = first_screen(shown)
    against = shown.against if isinstance(shown, Comparison) else None
    changes = {one.arm: one for one in against.changes if one.baseline is None and one.case is None} if against else {}
    rows = [_row(one) for one in screen.candidates[:MOST_LINES]]
    header = ["arm", "verdict", f"against {escape(shown.baseline)}", "interval", "cause", *(["since then"] if changes else [])]
    for row, candidate in zip(rows if changes else [], screen.candidates, strict=False):
        change = changes.get(candidate.arm)
        row.append(escape(f"{change.verdict}: {percent_apart(change.change.value)}") if change else "")
    left, link = len(screen.candidates) - len(rows), shown.link or _job()
    lines = [
        f"<!-- ringside: {NOT_IN_MARKERS.sub('_', shown.name)} -->",
        f"### {escape(against.headline if against else screen.headline)}\n",
        *(f"| {' | '.join(row)} |" for row in ([header, ["---"] * len(header), *rows] if rows else [])),
        "",
        *([f"- and {left} more in the report"] if left > 0 else []),
        *([f"- Now: {escape(screen.headline)}", f"- {escape(against.remedy)}"] if against else []),
        *([f"- {marks_line(screen)}"] if screen.marks else []),
        f"- {escape(screen.compared)}",
        *([f"- Next: {escape(screen.next_step)}"] if screen.next_step else []),
        *([f"- [The whole report](<{link}>)"] if link else []),
        "",
    ]
    return "\n".join(lines).encode()


def _row(candidate: Candidate) -> list[str]:
    ends = [percent_apart(bound) for bound in (candidate.low, candidate.high) if bound is not None]
    arm = f"{candidate.arm} at {candidate.point}" if candidate.point else candidate.arm
    shown = [escape(text) for text in (candidate.verdict, candidate.percent, " to ".join(ends), candidate.cause)]
    return [escape(arm), f"**{shown[0]}**", *shown[1:]]


def _job() -> str | None:
    """The page of the job that runs this; None outside of CI."""
    for page in JOBS:
        try:
            return page.format_map(os.environ)
        except KeyError:
            continue
    return None
