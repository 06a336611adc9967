"""report.md, the first screen and all else folded by question; pull-request.md, the first screen as a comment."""

from __future__ import annotations

import os
import re

from reports.base import Report
from reports.formats.texts import content, render_text
from reports.schema import Comparison, Study
from reports.wording.first_screen import first_screen

JOBS = ("{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}", "{CI_JOB_URL}/artifacts/browse")
"""Where the files of a job are seen, by the variables of GitHub Actions and of GitLab."""
NOT_IN_MARKERS = re.compile(r"[^\w.+-]")


class MarkdownReport(Report):
    """GitHub's Markdown; what came from users and programs is escaped."""

    file_name = "report.md"

    def render(self, summary: Comparison | Study) -> bytes:
        """The first screen in ten lines for three arms, then a fold for each question."""
        template = "study.md.j2" if isinstance(summary, Study) else "report.md.j2"
        return render_text(template, **content(summary)).encode()


class PullRequestReport(Report):
    """Markdown of GitHub and GitLab. Its first line is a comment that nobody sees, the same for every result of a plan."""

    file_name = "pull-request.md"
    is_customary = False

    def render(self, summary: Comparison | Study) -> bytes:
        """Some 15 lines."""
        return render_text(
            "pull-request.md.j2",
            c=summary,
            screen=first_screen(summary),
            against=summary.against,
            marker=NOT_IN_MARKERS.sub("_", summary.name),
            link=summary.link or _job(),
        ).encode()


def _job() -> str | None:
    """The page of the job that runs this; None outside of CI."""
    for page in JOBS:
        try:
            return page.format_map(os.environ)
        except KeyError:
            continue
    return None
