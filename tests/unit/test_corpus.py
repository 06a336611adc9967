"""What is concluded from stored results of real runs stays as it was, to the last digit and word,
or the difference is listed."""

from __future__ import annotations

import json
import lzma
import re

import pytest

from tests.conftest import REPOSITORY
from tests.kit import corpus
from tests.kit.corpus import CASES, PRINTED, compare

STORED = corpus.expected()
CASE = "three-arms"
MAX_BYTES = 400_000
"""Of all that is kept."""


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    corpus.unpack(folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_nothing_that_stays_changes_its_answer(case, root):
    """Where a difference is meant: python -m tests.kit.corpus accept --why 'reason'."""
    assert corpus.lines_of(case, compare(STORED[case], corpus.rebuild(case, root))) == []


def test_what_is_kept_is_small_and_names_no_machine():
    assert sum(path.stat().st_size for path in corpus.DATA.iterdir() if path.is_file()) < MAX_BYTES
    assert STORED.keys() == CASES.keys()
    content = (
        lzma.decompress(corpus.RECORDS.read_bytes())
        + "".join(text for case in STORED.values() for text in case.values()).encode()
    )
    assert set(re.findall(rb"/(?:tmp|home|root|work)/[a-z]+[/\"]", content)) <= {
        b"/home/user/",
        b"/tmp/ringside",
    }


@pytest.mark.parametrize(("digit", "differs"), [(13, False), (11, True)])
@pytest.mark.parametrize("name", ["comparison.json", "report.html", "comparison.prom"])
def test_a_number_apart_in_its_11th_digit_differs_and_in_its_13th_does_not(name, digit, differs):
    control = json.loads(STORED[CASE]["comparison.json"])["arms"][1]
    throughput = control["throughput_per_s"]["value"]
    number, other = repr(throughput), repr(throughput * (1 + 3 * 10.0**-digit))
    text = STORED[CASE][name]
    assert number in text
    changes = compare({name: text}, {name: text.replace(number, other)})
    assert bool(changes) is differs
    if differs:
        line = corpus.lines_of(CASE, changes)[0]
        assert line.startswith(f"{CASE} {name}: ") and number in line and other in line


@pytest.mark.parametrize("name", ["report.md", PRINTED, "report.html", "pull-request.md"])
def test_another_word_differs(name):
    other = STORED[CASE][name].replace("slower", "slowest", 1)
    (difference, *_) = compare(STORED[CASE], STORED[CASE] | {name: other})
    assert re.search("stored .*slower.*, rebuilt .*slowest", difference.words)


def test_accepted_differences_are_written_down_with_the_reason(tmp_path, monkeypatch):
    for name in ("EXPECTED", "ACCEPTED"):
        monkeypatch.setattr(corpus, name, tmp_path / name)
    stored = {case: {"x.json": '{"one": 1}'} for case in "ab"}
    rebuilt = {case: {"x.json": "{}"} for case in "ab"}
    corpus.accept("one is no longer known", stored, rebuilt)
    assert corpus.expected() == rebuilt
    text = (tmp_path / "ACCEPTED").read_text()
    assert text == "\n## one is no longer known\n\n- x.json: .one went (a, b)\n"


def test_the_published_schema_accepts_what_is_written():
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    schema = json.loads((REPOSITORY / "docs" / "comparison.schema.json").read_text())
    stored = [files["comparison.json"] for files in STORED.values() if "comparison.json" in files]
    assert len(stored) > 10
    for comparison in map(json.loads, stored):
        assert list(validator(schema).iter_errors(comparison)) == []
    assert not validator(schema).is_valid(comparison | {"arms": "none"})
