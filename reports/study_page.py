"""A study's report.html: one file that opens offline, the answer first."""

from __future__ import annotations

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from reports.html import headline_parts, pages, script_json
from reports.study_charts import study_charts
from reports.study_schema import Study
from reports.study_text import METHOD, bases, links_caption, links_table, points_table, results_table


def study_page(study: Study) -> bytes:
    """UTF-8 HTML of about 5 MB, nearly all of it Plotly."""
    figures = study_charts(study)
    text = (
        pages()
        .get_template("study.html.j2")
        .render(
            s=study,
            headline=headline_parts(study.headline),
            results=results_table(study),
            points=points_table(study),
            links=links_table(study),
            links_caption=links_caption(study),
            bases=bases(study),
            method=METHOD,
            figures=figures,
            figures_json=script_json(figures),
            plotly=Markup(get_plotlyjs()),
        )
    )
    return text.encode()
