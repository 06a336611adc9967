"""Text is UTF-8 in any locale: where it is read or written, and where programs are spoken with."""

import ast
import os
from pathlib import Path

import pytest

from measurement.errors import PlanError
from measurement.records.results import ResultsFolder
from runners.protocol import ErrorReply
from runners.rank.worker import describe_error
from tests.conftest import parsed

HOUSE = Path(__file__).parents[2]
ROOMS = ("measurement", "workloads", "backends", "runners", "reports", "install")
NO_TEXT = (
    "os.open",
    "archive.open",
    "Image.open",
    "tarfile.open",
    "gzip.open",
    "lzma.open",
    "bz2.open",
    "webbrowser.open",
)


def without_encoding(tree):
    """The lines of a module where the locale would decide."""
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(node.func)
        given = {word.arg for word in node.keywords}
        values = [*node.args, *(word.value for word in node.keywords)]
        modes = [value.value for value in values if isinstance(value, ast.Constant)]
        is_binary = any(
            isinstance(mode, str) and set(mode) <= set("rwaxb+") and "b" in mode for mode in modes
        )
        is_file = name == "open" or (
            name.endswith((".open", ".fdopen", ".read_text", ".write_text")) and name not in NO_TEXT
        )
        is_text_file = is_file and not is_binary and "encoding" not in given
        if is_text_file or (name.startswith("subprocess.") and "text" in given):
            yield node.lineno


def test_an_error_of_a_file_whose_name_is_no_utf8_can_be_told():
    message = describe_error(PlanError("image 'caf\udce9.jpg' cannot be read")).message
    assert message == "PlanError: image 'caf\N{REPLACEMENT CHARACTER}.jpg' cannot be read"
    ErrorReply(cause="bad input", message=message, excerpt=[], at_s=0.0).model_dump_json()


def test_every_file_and_program_is_read_in_a_named_encoding():
    places = [
        f"{file.relative_to(HOUSE)}:{line}"
        for room in ROOMS
        for file in sorted((HOUSE / room).rglob("*.py"))
        for line in without_encoding(parsed(file))
    ]
    assert not places


def test_a_results_folder_whose_name_is_no_utf8_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(PlanError, match="has a name that is not UTF-8; give another with -o"):
        ResultsFolder(tmp_path / os.fsdecode(b"caf\xe9"))
