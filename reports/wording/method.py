"""How it was measured and what the figures mean: the paragraphs of a template, filled from a comparison or a study itself."""

from __future__ import annotations

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from reports.conclusions import disturbances
from reports.conclusions.step_terms import LIMIT
from reports.conclusions.training_results import FEWEST
from reports.conclusions.verdict import LOAD_POWER
from reports.schema import Comparison
from reports.statistics.budget import PILOTS
from reports.statistics.intervals import TRIM
from reports.study_schema import Study
from reports.wording import formatting


def method(shown: Comparison | Study) -> list[str]:
    """The method section of a report, one paragraph an entry."""
    template = _texts().get_template("study_method.md.j2" if isinstance(shown, Study) else "method.md.j2")
    constants = {"pilots": PILOTS, "trim": TRIM, "limit": LIMIT, "load_power": LOAD_POWER, "fewest_seeds": FEWEST}
    text = template.render(c=shown, q=formatting, d=disturbances, **constants)
    return [paragraph.replace("\n", " ") for paragraph in re.split(r"\n\s*\n", text.strip())]


@cache
def _texts() -> Environment:
    """Plain text, which each format escapes."""
    return Environment(
        loader=PackageLoader("reports.wording"),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
