"""report.md, the first screen and all else folded by question; pull-request.md, the first screen as a comment."""

from __future__ import annotations

import os
import re

from reports.base import Report
from reports.formats.sections import sections, study_sections
from reports.formats.texts import caption, method, render_text
from reports.schema import Comparison, Study
from reports.tables.arm_tables import case_table, outcome_table, points_table, results_table, training_table, verdict_table
from reports.wording.first_screen import first_screen
from reports.wording.study_sentences import bases

JOBS = ("{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}", "{CI_JOB_URL}/artifacts/browse")
"""Where the files of a job are seen, by the variables of GitHub Actions and of GitLab."""
NOT_IN_MARKERS = re.compile(r"[^\w.+-]")


class MarkdownReport(Report):
    """GitHub's Markdown; what came from users and programs is escaped."""

    file_name = "report.md"

    def render(self, summary: Comparison | Study) -> bytes:
        """The first screen in ten lines for three arms, then a fold for each question."""
        shown = {"c": summary, "screen": first_screen(summary), "method": method(summary)}
        if isinstance(summary, Study):
            tables = {"results": results_table(summary), "points": points_table(summary)}
            return render_text("study.md.j2", sections=study_sections(summary), bases=bases(summary), **tables, **shown).encode()
        tables = {"outcomes": outcome_table(summary), "cases": case_table(summary)} if summary.cases else {}
        return render_text(
            "report.md.j2",
            sections=sections(summary),
            verdicts=verdict_table(summary),
            training=training_table(summary.training) if summary.training else None,
            divide=caption("arms", summary),
            **tables,
            **shown,
        ).encode()


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
            against=summary.against if isinstance(summary, Comparison) else None,
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
