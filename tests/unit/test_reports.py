"""The files: complete, the same bytes every time, safe whatever names and logs hold, and made without torch."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from measurement.records.results import ResultsFolder
from reports import REGISTRY, conclude, make_report, write_reports
from reports.base import Report
from reports.charts.comparison_charts import charts
from reports.charts.timeline import MAX_POINTS, pair_stride
from reports.formats.html import FILES as FILES_BESIDE
from reports.formats.html import HtmlReport, script_json
from reports.formats.terminal import comparison_lines
from reports.formats.texts import escape
from reports.schema import Comparison
from tests.kit.results_factory import FORMATS, Truth, make_plan, write_results

STORED = Path(__file__).parents[1] / "data" / "results-v1"
FILES = ["comparison.json", "report.csv", "report.html", "report.md"]
EVIL = "</script><script>alert(1)</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    statuses = {("horovod-mpi", launch): "failed" for launch in range(3)}
    truth = Truth(statuses=statuses, message=f"rank 1 said {EVIL}", log=f"a | b\n{EVIL}\n<img src=x onerror=alert(1)>")
    return write_results(tmp_path_factory.mktemp("results"), truth=truth)


@pytest.fixture(scope="module")
def comparison(folder):
    return write_reports(folder)


@pytest.fixture(scope="module")
def page(folder, comparison):
    """The page without the library that it inlines."""
    text = (folder.root / comparison_file("html")).read_text()
    return text[: text.index('<script type="application/json"')]


def comparison_file(name):
    return REGISTRY.resolve(name).file_name


@pytest.mark.slow
def test_every_registered_report_is_written(folder, comparison):
    assert sorted(p.name for p in folder.root.iterdir() if p.is_file()) == sorted([*FILES, "plan.yaml", "manifest.json"])
    customary = [name for name in REGISTRY.names() if make_report(name).is_customary]
    assert sorted(map(comparison_file, customary)) == sorted([*FILES, "curves.csv"])


@pytest.mark.parametrize("name", FORMATS)
def test_a_report_keeps_its_contract(name, comparison):
    """Held by every registered report: a file name, bytes, the same twice, and the arms in it (in junit.xml the candidates)."""
    report = REGISTRY.resolve(name)()
    assert isinstance(report, Report)
    assert Path(report.file_name).name == report.file_name
    first = report.render(comparison)
    assert isinstance(first, bytes) or (name, first) == ("curves", None), "only a training has curves"
    assert first == type(report)().render(comparison)
    shown = [arm.name for arm in comparison.arms if report.is_customary or arm.role == "candidate"]
    assert first is None or all(name in first.decode() for name in shown)


@pytest.mark.slow
def test_written_twice_the_bytes_are_the_same(folder, comparison, tmp_path):
    before = {name: (folder.root / name).read_bytes() for name in FILES}
    copy = shutil.copytree(folder.root, tmp_path / "copy")
    for name in FILES:
        (copy / name).unlink()
    write_reports(ResultsFolder(copy))
    assert {name: (copy / name).read_bytes() for name in FILES} == before


def test_json_holds_what_the_contract_names(folder, comparison):
    stored = json.loads((folder.root / "comparison.json").read_text())
    assert stored["schema_version"] == 1
    wanted = {"baseline", "candidate", "world_size", "hosts", "throughput_ratio", "ci_low", "ci_high", "confidence", "verdict"}
    assert all(wanted | {"launches", "pairs", "role", "more_minutes"} <= result.keys() for result in stored["results"])
    figures = {"throughput_per_s", "step_time_s", "step_terms_s", "peak_memory_bytes", "scaling_efficiency", "scaling_baseline"}
    assert all(figures | {"name", "status", "errors", "parity"} <= arm.keys() for arm in stored["arms"])
    assert Comparison.model_validate(stored) == comparison


def test_csv_has_a_row_per_arm_and_units_in_its_columns(folder, comparison):
    rows = list(csv.DictReader(io.StringIO((folder.root / "report.csv").read_text())))
    arm, row = comparison.arm("ddp-gloo"), next(row for row in rows if row["arm"] == "ddp-gloo")
    assert float(row["phase_data_wait_s"]) == arm.phases_s["data_wait"], "which the term of that name was written over"
    assert float(row["data_wait_s"]) == arm.step_terms_s.data_wait.value
    assert [row["arm"] for row in rows] == [arm.name for arm in comparison.arms]
    faster = next(row for row in rows if row["arm"] == "horovod-gloo")
    assert float(faster["throughput_ratio"]) == comparison.result("horovod-gloo").throughput_ratio
    assert faster["verdict"] == "faster"
    assert {"throughput_images_per_s", "step_time_p50_s", "exposed_exchange_s", "peak_memory_bytes"} <= rows[0].keys()
    failed = next(row for row in rows if row["arm"] == "horovod-mpi")
    assert (failed["status"], failed["throughput_ratio"]) == ("failed", "")
    for name in ("throughput_images_per_s", "exposed_exchange_s"):
        estimate = (
            comparison.arm("horovod-gloo").throughput_per_s
            if "images" in name
            else comparison.arm("horovod-gloo").exposed_exchange_s
        )
        bounds = [float(faster[f"{name}{end}"]) for end in ("_ci_low", "", "_ci_high")]
        assert bounds == [estimate.ci_low, estimate.value, estimate.ci_high] == sorted(bounds)


def test_markdown_begins_with_the_headline_and_shows_failures(folder, comparison):
    text = (folder.root / "report.md").read_text()
    assert text.splitlines()[0] == f"**{escape(comparison.headline)}.**"
    assert "| horovod-mpi | horovod / mpi / horovodrun | failed |" in text
    assert "<script>" not in text
    assert "threads" in text.split("What differed?")[1]


def test_the_page_answers_first_and_shows_everything(page, comparison):
    body = re.sub(r"\s+", " ", page)
    assert body.index(comparison.headline) < body.index("<h2>What failed?</h2>")
    questions = re.findall(r"<summary><h2>(.*?)</h2>", page)
    assert questions == [
        "What failed?",
        "Why?",
        "What if?",
        "How sure?",
        "What does it take?",
        "What differed?",
        "How was it measured?",
        "Raw data",
    ]
    assert "fusion_threshold_bytes" in page and "Synthetic CPU" in page


def test_the_page_escapes_what_users_and_programs_wrote(page):
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_data_inside_the_script_element_cannot_end_it():
    text = str(script_json({"name": EVIL}))
    assert "<" not in text
    assert json.loads(text) == {"name": EVIL}


def test_the_page_asks_the_network_for_nothing_and_stays_small(folder, page):
    assert set(re.findall(r"""(?:src|href)\s*=\s*["'](.*?)["']""", page)) == {"data:,", *(path for path, _ in FILES_BESIDE)}
    assert "url(" not in page and "@import" not in page
    assert (folder.root / "report.html").stat().st_size < 1.3e6


def test_every_chart_is_drawn_where_there_is_data(comparison):
    named = ["pairs", "machine", "distribution", "terms", "difference-0"]
    assert list(charts(comparison)) == named


@pytest.mark.slow
def test_without_any_timing_there_is_still_a_page(tmp_path):
    statuses = {(arm, launch): "failed" for arm in make_plan().compared_arms() for launch in range(3)}
    folder = write_results(tmp_path, truth=Truth(statuses=statuses))
    folder.manifest_path.unlink()
    comparison = write_reports(folder)
    assert charts(comparison) == {}
    assert "No comparison: all arms are failed" in (folder.root / "report.html").read_text()


@pytest.mark.slow
def test_twelve_arms_have_a_page(tmp_path):
    names = [f"horovod-{number}" for number in range(10)]
    found = conclude(
        write_results(tmp_path, truth=Truth(ratios=dict.fromkeys(names, 1.0)), plan=make_plan(names, launches=2, rounds=4))
    )
    assert len(charts(found)["pairs"]["data"]) == 11
    assert len(HtmlReport().render(found)) < 1.3e6


def test_many_pairs_are_thinned_evenly_and_the_page_says_so(comparison):
    result = comparison.result("horovod-gloo")
    table = {name: values * 400 for name, values in result.pair_table.items()}
    many = result.model_copy(update={"pairs": result.pairs * 400, "pair_table": table})
    others = [other for other in comparison.results if other.candidate != "horovod-gloo"]
    crowded = comparison.model_copy(update={"results": [*others, many]})
    assert pair_stride(crowded) == 3
    drawn = sum(len(trace["x"]) for trace in charts(crowded)["pairs"]["data"])
    assert 0.9 * MAX_POINTS < drawn <= MAX_POINTS
    assert b"One of every 3 pairs is drawn" in HtmlReport().render(crowded)


def test_the_first_screen_fits_80_columns_and_14_lines_plain_and_whole(comparison):
    text = io.StringIO()
    Console(file=text, width=80).print(comparison_lines(comparison))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 14, "the report's path has a line, too"
    assert "\x1b" not in text.getvalue()
    result = comparison.result("horovod-gloo")
    row = next(line for line in lines if line.startswith("horovod-gloo"))
    assert "faster" in row and f"{result.ci_low:.3f} to {result.ci_high:.3f}" in row
    assert "failed" in next(line for line in lines if line.startswith("horovod-mpi"))


@pytest.mark.slow
def test_the_stored_folder_of_schema_version_1_is_read(tmp_path):
    """As version 0.1.0 writes it. Where this fails, ``results.MIGRATIONS`` lacks an entry."""
    copy = shutil.copytree(STORED, tmp_path / "stored")
    found = write_reports(ResultsFolder(copy))
    result = found.result("horovod-gloo")
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
        "print(comparison_lines(write_reports(ResultsFolder(Path(sys.argv[1])))).renderables[2].row_count)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code, str(copy)], capture_output=True, text=True, cwd=root, check=False)
    assert (done.stderr, done.stdout.strip()) == ("", "2")
