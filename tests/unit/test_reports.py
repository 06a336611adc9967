"""The files: complete, the same bytes every time, safe whatever names and logs hold, and made
without torch."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from measurement.records.results import ResultsFolder
from reports import REGISTRY, conclude, make_report, write_reports
from reports.by_key import table_by_key
from reports.wording.formatting import interval, rate, ratio
from tests.conftest import run_here
from tests.kit.commands import run_python
from tests.kit.results_factory import (
    FORMATS,
    write_results,
)

STORED = Path(__file__).parents[1] / "data" / "results-v1"
FILES_BESIDE = ["comparison.json", "report.csv", "plan.yaml", "manifest.json", "launch-000/"]
FILES = ["comparison.json", "report.csv", "report.html", "report.md"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    statuses = {("horovod-mpi", launch): "failed" for launch in range(3)}
    return write_results(tmp_path_factory.mktemp("results"), statuses=statuses)


@pytest.fixture(scope="module")
def comparison(folder):
    return write_reports(folder)


@pytest.fixture(scope="module")
def page(folder, comparison):
    """The page without the library that it inlines."""
    text = (folder.root / "report.html").read_text()
    return text[: text.index('<script type="application/json"')]


@pytest.mark.slow
def test_every_customary_report_is_written(folder, comparison):
    files = {path.name for path in folder.root.iterdir() if path.is_file()}
    assert files == {*FILES, "plan.yaml", "manifest.json"}
    customary = {name for name in REGISTRY.names() if make_report(name).is_customary}
    assert {REGISTRY.resolve(name).file_name for name in customary} == set(FILES)


@pytest.mark.parametrize("name", FORMATS)
def test_a_report_keeps_its_contract(name, comparison):
    """Held by every registered report: a file name, bytes, the same twice, and the arms in it (in
    junit.xml the candidates)."""
    report = make_report(name)
    assert Path(report.file_name).name == report.file_name
    first = report.render(comparison)
    assert first == make_report(name).render(comparison)
    shown = [arm.name for arm in comparison.arms if report.is_customary or arm.role == "candidate"]
    assert all(name in first.decode() for name in shown)


def test_the_page_asks_the_network_for_nothing_and_stays_small(folder, page):
    assert set(re.findall(r"""(?:src|href)\s*=\s*["'](.*?)["']""", page)) == {
        "data:,",
        *FILES_BESIDE,
    }
    assert "url(" not in page and "@import" not in page
    assert (folder.root / "report.html").stat().st_size < 1.3e6


@pytest.mark.slow
def test_the_stored_folder_of_schema_version_1_is_read(tmp_path):
    """As version 0.1.0 writes it. Where this fails, ``results.MIGRATIONS`` lacks an entry."""
    copy = shutil.copytree(STORED, tmp_path / "stored")
    comparison = write_reports(ResultsFolder(copy))
    result = comparison.result("horovod-gloo")
    assert (result.launches, result.pairs, result.verdict) == (2, 8, "faster")
    assert result.throughput_ratio == pytest.approx(1.1, rel=0.05)


@pytest.mark.process
@pytest.mark.slow
def test_reports_need_no_torch(folder, tmp_path):
    copy = shutil.copytree(folder.root, tmp_path / "copy")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path; from measurement.records.results import ResultsFolder; from reports import write_reports\n"
        "from reports.formats.terminal import comparison_lines\n"
        "lines = comparison_lines(write_reports(ResultsFolder(Path(sys.argv[1])))).renderables\n"
        "print(next(line.row_count for line in lines if hasattr(line, 'row_count')))"
    )
    done = run_python(code, copy)
    assert (done.stderr, done.stdout.strip()) == ("", "2")


def printed(folder, *flags):
    from runners.cli import app

    done = run_here(lambda: app(["report", str(folder.root), *flags]))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("results.1.candidate", lambda comparison: "horovod-gloo"),
        ("measurement.launches", lambda comparison: 3),
        (
            "results.horovod-gloo.throughput_ratio",
            lambda comparison: comparison.result("horovod-gloo").throughput_ratio,
        ),
    ],
)
def test_one_value_of_the_json_is_printed_alone_with_all_its_digits(
    folder, comparison, path, value
):
    """With the exit code of the report: an arm failed."""
    assert printed(folder, "--json", path) == (1, f"{value(comparison)}\n", "")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--json results.horovod.ci_low",
            "unknown value below 'results' in comparison.json 'horovod'; did you mean 'horovod-mpi'?",
        ),
        (
            "--json block_table.turn.-1",
            "unknown value below 'block_table.turn' in comparison.json '-1' (known: 0 to ",
        ),
        ("--by ranks", "unknown key 'ranks'; did you mean 'rank'? (known: arm, backend, block, "),
        (
            "--by rank --json arms",
            "--by looks into one results folder; leave other folders and flags out",
        ),
    ],
)
def test_what_is_asked_of_a_folder_that_lacks_it_is_told_with_what_is_there(flags, message, folder):
    code, out, errors = printed(folder, *flags.split())
    assert (code, out) == (2, "") and errors.startswith(f"ringside: {message}"), errors


@pytest.mark.slow
def test_a_key_of_one_value_gives_the_comparisons_own_figures(tmp_path):
    folder = write_results(tmp_path)
    sound = conclude(folder)
    shown = {
        row.entries[1].text: [entry.text for entry in row.entries]
        for row in table_by_key(folder, "workload").rows
    }
    assert [*shown] == [arm.name for arm in sound.arms]
    for result in sound.results:
        speed = sound.arm(result.candidate).throughput_per_s
        figures = [rate(speed), ratio(result.throughput_ratio), interval(result)]
        assert shown[result.candidate][:1] == ["digits"]
        assert [shown[result.candidate][at] for at in (2, 4, 5)] == figures
