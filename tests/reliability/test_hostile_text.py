"""Names, messages and logs that hold markup, quotes, escape sequences or very much: every report
shows them as text."""

from __future__ import annotations

import io
import json
import re
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from rich.console import Console

from measurement.errors import PlanError, printable
from measurement.records.record import Case
from reports import write_reports
from reports.formats.terminal import comparison_lines
from runners.processes.process_exit import exit_code_of
from runners.progress import LaunchProgress
from tests.kit.results_factory import Truth, make_manifest, make_plan, write_results

EVIL = "</script><script>alert('1')</script><img src=x onerror=\"alert(1)\">[red]{{7*7}}`*_|[a](https://evil.example)&lt;"
TERMINAL = "\x1b[2J\x1b]0;title\x07\x1b]52;c;aGk=\x1b\\\x9b31m\x00\x08\r\u202egnp\x7f"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff\ufffe]")


def written(root, text, *, has_cases):
    """A folder whose records hold a text wherever they hold any that is free, with its reports; and
    the comparison."""
    case = Case(name=f"{text}/1024", operation=text, message_bytes=1024)
    cases = [case] if has_cases else []
    truth = Truth(statuses={("horovod-mpi", 0): "failed"}, message=text, log=text, cases=cases)
    plan = make_plan(launches=2).model_copy(
        update={"reports": ["html", "markdown", "junit", "csv"]}
    )
    folder = write_results(root / "results", plan=plan, truth=truth)
    told = {"notes": [text], "driver": {"host": text, "cpu": text}}
    folder.write_manifest(make_manifest(plan).model_copy(update=told))
    for record in folder.records():
        path = folder.launch_folder(record.launch, record.arm) / "record.json"
        content = json.loads(path.read_text())
        content |= {"hosts": [text], "sample_unit": text, "options": {text: text}}
        for rank in content["ranks"]:
            rank |= {"host": text, "device": text}
            rank |= {"backend": {text: text}, "environment": {text: text}}
            rank["fingerprint"] |= {"cpu": text, "host": text}
        if content["error"]:
            content["error"] |= {"hosts": [text], "excerpt": [text], "log_tail": {text: text}}
        content["parity"] |= {"notes": [text], "failures": [text]}
        path.write_text(json.dumps(content))
    return folder, write_reports(folder)


class Shape(HTMLParser):
    """The elements of a page with the names of their attributes; scripts by their kind."""

    def __init__(self, page):
        super().__init__()
        self.elements = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, tuple(name for name, _ in attributes)))


def texts_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_in(part)


@pytest.fixture(scope="module", params=["trained", "cases"])
def hostile(request, tmp_path_factory):
    """The folder and the comparison of a hostile text, and the page of a harmless one."""
    root, has_cases = tmp_path_factory.mktemp("hostile"), request.param == "cases"
    plain, _ = written(root / "plain", "harmless", has_cases=has_cases)
    folder, comparison = written(root / "evil", EVIL + TERMINAL, has_cases=has_cases)
    return folder.root, comparison, (plain.root / "report.html").read_text()


def test_a_page_has_the_elements_that_it_has_with_harmless_text(hostile):
    root, _, plain = hostile
    page = (root / "report.html").read_text()
    assert Shape(page).elements == Shape(plain).elements
    assert "alert(" in page and not CONTROL.search(page)
    assert "49" not in page.split("<title>")[1].split("</title>")[0], "no template in a template"


def test_figures_hold_no_markup_but_our_own(hostile):
    root, _, _ = hostile
    page = (root / "report.html").read_text()
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)[1])
    found = "\n".join(texts_in(figures))
    assert "alert(" in found and not CONTROL.search(found)
    assert set(re.findall("<[^>]*>", found)) <= {*["<extra>", "</extra>", "<b>", "</b>", "<br>"]}


def test_markdown_shows_its_characters(hostile):
    root, _, _ = hostile
    text = (root / "report.md").read_text()
    assert "alert" in text and not CONTROL.search(text)
    ours = re.sub("</?(details|summary)>|<br>", "", text)
    assert not re.search(r"(?<!\\)[<\[`]", ours), "each is escaped"
    assert "https://evil" not in text, "no link is made of it"


def test_junit_is_xml(hostile):
    root, _, _ = hostile
    text = (root / "junit.xml").read_text()
    assert not CONTROL.search(text)
    assert {element.tag for element in ElementTree.fromstring(text).iter()} <= {
        *("testsuites", "testsuite", "testcase", "properties", "property", "failure", "skipped")
    }


def test_a_terminal_is_sent_our_own_colours_only(hostile):
    _, comparison, _ = hostile
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=200, color_system="truecolor").print(
        comparison_lines(comparison)
    )
    assert not CONTROL.search(re.sub("\x1b\\[[0-9;]*m", "", out.getvalue()))


def test_what_is_said_on_the_way_is_not_obeyed(capsys):
    def refuse():
        raise PlanError(f"a name {EVIL}{TERMINAL}")

    assert exit_code_of(refuse) == 2
    with LaunchProgress(seconds_per_launch=1.0) as progress:
        progress.say(f"failed: {EVIL}[/nothing]{TERMINAL}")
        progress._console = Console(file=sys.stderr, force_terminal=True)
        progress.say(f"failed: {EVIL}[/nothing]{TERMINAL}")
    told = capsys.readouterr().err
    assert told.count("ringside: a name </script>") == 1 and told.count("[/nothing") == 2
    assert not CONTROL.search(re.sub("\x1b\\[[0-9;]*m", "", told))


def test_escape_sequences_are_left_out_and_the_rest_is_seen():
    text = "a\x1b[2Jb\x1b]0;title\x07c\x1b]52;c;aGk=\x1b\\d\x9b31m\x00\r\u202e\x7f\ud800\uffff\x1b(B \u00e9\t\n"
    assert printable(text) == "abcd\ufffd31m" + 6 * "\ufffd" + " \u00e9\t\n"


def test_very_much_text_is_no_longer_a_report(tmp_path):
    folder, _ = written(tmp_path, "x<" * 200_000, has_cases=False)
    reports = ("report.html", "report.md", "junit.xml")
    assert sum((folder.root / name).stat().st_size for name in reports) < 4 << 20
