"""Texts in Markdown from templates, and of them how it was measured and what the figures mean."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from measurement.errors import in_report
from measurement.records.record import GATE_STEPS
from reports.conclusions import disturbances
from reports.conclusions.machine import is_far_off
from reports.conclusions.step_terms import LIMIT
from reports.conclusions.training_results import FEWEST
from reports.conclusions.verdict import LOAD_POWER
from reports.schema import Comparison, Study
from reports.statistics.budget import PILOTS
from reports.statistics.intervals import TRIM
from reports.tables import machine_tables
from reports.wording import formatting
from reports.wording.causes import trace_sentence
from reports.wording.first_screen import MOST_LINES

SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#&~$"})


def method(shown: Comparison | Study) -> list[str]:
    """The method section of a report, one paragraph an entry."""
    constants = {
        "gate_steps": GATE_STEPS,
        "pilots": PILOTS,
        "trim": TRIM,
        "limit": LIMIT,
        "load_power": LOAD_POWER,
        "fewest_seeds": FEWEST,
    }
    template = "study_method.md.j2" if isinstance(shown, Study) else "method.md.j2"
    paragraphs = re.split(r"\n\s*\n", render_text(template, c=shown, d=disturbances, **constants).strip())
    return [paragraph.replace("\n", " ") for paragraph in paragraphs]


def render_text(template: str, **shown: Any) -> str:
    """A template filled. What comes from users and programs it passes through its filter ``md``, which is ``escape``."""
    return _texts().get_template(template).render(shown)


def caption(name: str, shown: Comparison | Study) -> str:
    """What the figures of a section mean, without a full stop; empty where they say it themselves."""
    macro = getattr(_texts().get_template("captions.md.j2").module, name, None)
    return macro(shown).strip().replace("\n", " ") if macro else ""


@cache
def templates(*, autoescape: bool) -> Environment:
    """Where templates are found. Strict Jinja: a name that is not known is an error."""
    found = Environment(
        loader=PackageLoader("reports.formats"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"q": formatting, "most_lines": MOST_LINES}
    return found


@cache
def _texts() -> Environment:
    texts = templates(autoescape=False)
    texts.filters["md"] = escape
    texts.tests["is_far_off"] = lambda arm: any(map(is_far_off, arm.links))
    texts.globals |= {"machine_tables": machine_tables, "trace_sentence": trace_sentence}
    return texts


def escape(text: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    flat = " ".join(in_report(str(text)).split()).translate(SPECIAL)
    return flat.replace("://", ":\\/\\/")
