"""One table for every format: the same rows everywhere, and what an entry is, not what it says,
decides how it looks."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from reports import conclude
from reports.formats.html import HtmlReport
from reports.formats.terminal import comparison_lines
from tests.kit.results_factory import Truth, make_plan, write_results

pytestmark = pytest.mark.slow  # results of whole comparisons are composed

GREEN, RED = "\x1b[1;32m", "\x1b[1;31m"


def on_terminal(made):
    text = io.StringIO()
    Console(file=text, width=120, force_terminal=True, color_system="standard").print(made)
    return text.getvalue()


@pytest.fixture(scope="module")
def misleading(tmp_path_factory):
    """Arms are called like verdicts: ``slower`` is 10% faster, ``faster`` is 10% slower, ``failed``
    is like the baseline."""
    ratios = {"slower": 1.1, "faster": 0.9, "failed": 1.0}
    return conclude(
        write_results(
            tmp_path_factory.mktemp("misleading"),
            truth=Truth(ratios=ratios),
            plan=make_plan(ratios),
        )
    )


def test_an_arm_called_like_a_verdict_has_no_verdicts_colour(misleading):
    text = on_terminal(comparison_lines(misleading))
    assert re.findall(re.escape(GREEN) + r"(\w+)", text) == ["faster"]
    assert re.findall(re.escape(RED) + r"(\w+)", text) == ["slower"]
    page = HtmlReport().render(misleading).decode()
    spans = re.findall(r'<span class="verdict (faster|slower)">(\w+)</span>', page)
    assert set(spans) == {("faster", "faster"), ("slower", "slower")}
    assert '<span class="failed">' not in page
