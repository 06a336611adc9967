"""One table for every format: the same rows everywhere, and what an entry is, not what it says, decides how it looks."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from reports import conclude, write_reports
from reports.formats.html import HtmlReport
from reports.formats.markdown import MarkdownReport
from reports.formats.terminal import STYLES, comparison_table, rich_table
from reports.tables.table import Column, Entry, Row, Table, row
from reports.tables.verdict_table import verdict_table
from tests.unit.results_factory import Truth, make_plan, write_results

GREEN, RED = "\x1b[1;32m", "\x1b[1;31m"


def on_terminal(made):
    text = io.StringIO()
    Console(file=text, width=120, force_terminal=True, color_system="standard").print(made)
    return text.getvalue()


@pytest.fixture(scope="module")
def misleading(tmp_path_factory):
    """Arms are called like verdicts: ``slower`` is 10% faster, ``faster`` is 10% slower, ``failed`` is like the baseline."""
    ratios = {"slower": 1.1, "faster": 0.9, "failed": 1.0}
    return conclude(write_results(tmp_path_factory.mktemp("misleading"), truth=Truth(ratios=ratios), plan=make_plan(ratios)))


def test_an_arm_called_like_a_verdict_has_no_verdicts_colour(misleading):
    text = on_terminal(comparison_table(misleading))
    assert re.findall(re.escape(GREEN) + r"(\w+)", text) == ["faster"]
    assert re.findall(re.escape(RED) + r"(\w+)", text) == ["slower"]
    rows = {row.entries["arm"].text: row.entries for row in verdict_table(misleading).rows}
    assert {name: entries["verdict"].kind for name, entries in rows.items() if name in ("slower", "faster")} == {
        "slower": "faster",
        "faster": "slower",
    }
    assert {entries["arm"].kind for entries in rows.values()} == {"plain"}
    page = HtmlReport().render(misleading).decode()
    assert re.findall(r'<span class="verdict (faster|slower)">(\w+)</span>', page) == [("faster", "faster"), ("slower", "slower")]
    assert '<span class="failed">' not in page


def test_markdown_html_and_terminal_show_the_same_verdicts(misleading):
    wanted = [
        (row.entries["arm"].text, row.entries["ratio"].text, row.entries["verdict"].text) for row in verdict_table(misleading).rows
    ]
    assert len(wanted) == 5
    markdown = MarkdownReport().render(misleading).decode()
    lines = [line.split(" | ") for line in markdown.split("## Arms")[1].split("##")[0].strip().splitlines()[2:]]
    assert [(line[0].removeprefix("| "), line[4], line[6].removesuffix(" |")) for line in lines] == wanted
    page = HtmlReport().render(misleading).decode().split("<h2>Verdicts</h2>")[1].split("</table>")[0]
    rows = [re.sub(r"<small>.*?</small>", "", row) for row in page.split("<tr>")[2:]]
    cells = [[re.sub(r"<.*?>", "", cell).strip() for cell in re.findall(r"<td.*?>(.*?)</td>", row)] for row in rows]
    assert [(row[0], row[4], row[6]) for row in cells] == wanted
    plain = [re.sub(r"\x1b\[[\d;]*m", "", line).split() for line in on_terminal(comparison_table(misleading)).splitlines()[2:7]]
    assert all({name, ratio, *verdict.split()} <= set(line) for (name, ratio, verdict), line in zip(wanted, plain, strict=True))


def test_the_terminal_tells_what_would_decide_besides_measuring_on(misleading):
    line = "Page faults per step"
    for verdict in ("undecided", "slower"):
        results = [result.model_copy(update={"verdict": verdict}) for result in misleading.results]
        told = misleading.model_copy(update={"remedies": [line], "results": results})
        assert (line in on_terminal(comparison_table(told))) == (verdict == "undecided")


def test_a_style_follows_from_the_kind_alone():
    column = Column(name="a", title="a")
    rows = [Row(entries={"a": Entry(text="anything", kind="faster")}), Row(entries={"a": Entry(text="faster")})]
    lines = on_terminal(rich_table(Table(columns=[column], rows=rows))).splitlines()
    assert STYLES["faster"] == "bold green"
    assert [GREEN in line for line in lines if "anything" in line or "faster" in line] == [True, False]


def test_columns_are_picked_and_shortened_by_name():
    columns = [Column(name=name, title=name.upper()) for name in ("a", "b")]
    first = row({"a": Entry(text="long (1 to 2)", short="long"), "b": "x"}, group="g")
    table = Table(columns=columns, rows=[first, row({"a": "y", "b": "z"}, group="h")])
    assert [[entry.text for entry in line] for line in table.only("b", "a").lines()] == [["x", "long (1 to 2)"], ["z", "y"]]
    assert [entry.text for entry in table.without("b").narrowed("a").lines()[0]] == ["long"]
    assert [entry.text for entry in table.lines()[0]] == ["long (1 to 2)", "x"], "the table itself stays as it is"
    assert {name: len(own.rows) for name, own in table.groups().items()} == {"g": 1, "h": 1}


def test_findings_are_left_out_where_the_headline_holds_them_and_not_where_it_only_contains_their_words(misleading):
    assert misleading.headline_holds == ["findings"]
    assert misleading.headline_findings == 3
    assert misleading.beside_headline == [*misleading.findings[3:], misleading.control]
    contained = misleading.model_copy(update={"findings": [misleading.findings[0], "slower"], "headline_findings": 1})
    assert "- slower\n" in MarkdownReport().render(contained).decode()
    assert "<li>slower.</li>" in HtmlReport().render(contained).decode()


def test_a_failed_control_is_said_once(tmp_path):
    truth = Truth(ratios={"horovod-gloo": 1.07}, control_ratio=1.06, noise=0.01)
    found = conclude(write_results(tmp_path, truth=truth, plan=make_plan(["horovod-gloo"])))
    assert found.headline_holds == ["control", "findings"]
    assert found.headline == f"{found.control}. {found.findings[0]}"
    assert found.beside_headline == []
    assert MarkdownReport().render(found).decode().count("The A/A control failed") == 1


def test_a_workload_that_is_trained_has_null_for_its_case(tmp_path):
    folder = write_results(tmp_path)
    found = write_reports(folder)
    stored = json.loads((tmp_path / "comparison.json").read_text())
    assert {result["case"] for result in stored["results"]} == {None}
    assert set(stored["block_table"]["case"]) == {None}
    assert len(stored["block_table"]["case"]) == sum(arm.blocks for arm in found.arms) + 4 * 3 * 3, "local blocks are in it, too"
