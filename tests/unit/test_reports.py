"""The files: complete, the same bytes every time, safe whatever names and logs hold, and made
without torch."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from measurement.plans.plan import FLOOR
from measurement.records.results import ResultsFolder
from reports import REGISTRY, conclude, make_report, write_reports
from reports.base import Report
from reports.by_key import table_by_key
from reports.charts.comparison_charts import charts
from reports.formats.html import HtmlReport
from reports.wording.formatting import interval, rate, ratio
from tests.conftest import run_here
from tests.kit.commands import run_python
from tests.kit.results_factory import (
    FORMATS,
    Truth,
    concluded,
    make_plan,
    on_terminal,
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
    text = (folder.root / comparison_file("html")).read_text()
    return text[: text.index('<script type="application/json"')]


def comparison_file(name):
    return REGISTRY.resolve(name).file_name


@pytest.mark.slow
def test_every_registered_report_is_written(folder, comparison):
    assert sorted(p.name for p in folder.root.iterdir() if p.is_file()) == sorted(
        [*FILES, "plan.yaml", "manifest.json"]
    )
    customary = [name for name in REGISTRY.names() if make_report(name).is_customary]
    assert sorted(map(comparison_file, customary)) == sorted(FILES)


@pytest.mark.parametrize("name", FORMATS)
def test_a_report_keeps_its_contract(name, comparison):
    """Held by every registered report: a file name, bytes, the same twice, and the arms in it (in
    junit.xml the candidates)."""
    report = REGISTRY.resolve(name)()
    assert isinstance(report, Report)
    assert Path(report.file_name).name == report.file_name
    first = report.render(comparison)
    assert isinstance(first, bytes)
    assert first == type(report)().render(comparison)
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
@pytest.mark.parametrize(("status", "words"), [("failed", "failed"), ("wrong", "computes wrongly")])
def test_without_any_timing_there_is_still_a_page(tmp_path, status, words):
    statuses = {
        (arm, launch): status
        for arm in (*make_plan().compared_arms(), FLOOR)
        for launch in range(3)
    }
    folder = write_results(tmp_path, statuses=statuses)
    folder.manifest_path.unlink()
    comparison = write_reports(folder)
    assert (charts(comparison), comparison.block_table["arm"]) == ({}, [])
    assert (
        f"No comparison: ddp-gloo {words}; horovod-gloo {words}"
        in (folder.root / "report.html").read_text()
    )


@pytest.mark.slow
def test_twelve_arms_have_a_page(tmp_path):
    names = [f"horovod-{number}" for number in range(10)]
    comparison = concluded(tmp_path, ratios=dict.fromkeys(names, 1.0), launches=2, rounds=4)
    assert len(charts(comparison)["launches"]["data"]) == 2 * 12
    assert len(HtmlReport().render(comparison)) < 1.3e6


def test_the_first_screen_fits_80_columns_and_14_lines_plain_and_whole(comparison):
    lines = on_terminal(comparison).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 14, "the report's path has a line, too"
    assert not any("\x1b" in line for line in lines)


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


@pytest.mark.slow
def test_an_arm_of_two_speeds_is_seen_launch_by_launch(tmp_path):
    """Each launch is a dot of its arm's row; the mean alone would hide that no launch ran at it."""
    faster = {launch: Truth(ratios={"horovod-gloo": 1.3}) for launch in (1, 3)}
    comparison = concluded(
        tmp_path, truth=Truth(ratios={"horovod-gloo": 1.0}), truths=faster, launches=5
    )
    dots, mean = charts(comparison)["launches"]["data"][-2:]
    assert dots["customdata"] == [0, 1, 2, 3, 4] and dots["y"] == sorted(dots["y"])
    assert {launch for launch, speed in enumerate(dots["x"]) if speed > mean["x"][0] * 1.1} == {
        1,
        3,
    }
    assert mean["x"] == [comparison.arm("horovod-gloo").throughput_per_s.value]
    assert "launches" not in charts(concluded(tmp_path / "one", launches=1))


def printed(folder, *flags):
    from runners.cli import app

    done = run_here(lambda: app(["report", str(folder.root), *flags]))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("path", "value"), [("results.1.candidate", "horovod-gloo"), ("measurement.launches", "3")]
)
def test_one_value_of_the_json_is_printed_alone(folder, path, value):
    """With the exit code of the report: an arm failed."""
    assert printed(folder, "--json", path) == (1, f"{value}\n", "")


def test_a_figure_of_the_json_is_printed_with_all_its_digits(folder, comparison):
    value = comparison.result("horovod-gloo").throughput_ratio
    path = "results.horovod-gloo.throughput_ratio"
    assert printed(folder, "--json", path) == (1, f"{value!r}\n", "")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "results.horovod.ci_low",
            "value below 'results' in comparison.json 'horovod'; did you mean 'horovod-mpi'? (known: 0 to 2, ",
        ),
        (
            "result",
            "value in comparison.json 'result'; did you mean 'results'? (known: against, arms, ",
        ),
        ("baseline.x", "value below 'baseline' in comparison.json 'x' (known: none)"),
        (
            "block_table.turn.-1",
            "value below 'block_table.turn' in comparison.json '-1' (known: 0 to ",
        ),
    ],
)
def test_a_path_that_leads_nowhere_is_told_with_what_is_there(path, message, folder):
    code, out, errors = printed(folder, "--json", path)
    assert (code, out) == (2, "") and errors.startswith(f"ringside: unknown {message}"), errors


@pytest.mark.slow
def test_a_key_of_one_value_gives_the_comparisons_own_figures(tmp_path):
    folder = write_results(tmp_path)
    sound = conclude(folder)
    shown = {row.entries[1].text: row for row in table_by_key(folder, "workload").rows}
    assert [*shown] == [arm.name for arm in sound.arms]
    for result in sound.results:
        speed = sound.arm(result.candidate).throughput_per_s
        value, _, throughput, _, *figures = (
            entry.text for entry in shown[result.candidate].entries
        )
        assert (value, throughput, *figures) == (
            "digits",
            rate(speed),
            ratio(result.throughput_ratio),
            interval(result),
        )


@pytest.mark.slow
def test_a_key_shows_in_which_launch_or_rank_an_arm_is_faster(tmp_path):
    faster = {launch: Truth(ratios={"horovod-gloo": 1.3}) for launch in (1, 3)}
    folder = write_results(
        tmp_path, truth=Truth(ratios={"horovod-gloo": 1.0}), truths=faster, launches=4
    )
    rows = [
        row for row in table_by_key(folder, "launch").rows if row.entries[1].text == "horovod-gloo"
    ]
    assert [row.group for row in rows] == ["0", "1", "2", "3"] and {
        row.entries[-1].text for row in rows
    } == {"\N{EN DASH}"}
    assert [float(row.entries[-2].text) > 1.1 for row in rows] == [False, True, False, True]
    assert printed(folder, "--by", "rank")[1].count("horovod-gloo") == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--by", "ranks"],
            "unknown key 'ranks'; did you mean 'rank'? (known: arm, backend, block, launch, ",
        ),
        (
            ["--by", "rank", "--json", "arms"],
            "--by looks into one results folder; leave other folders and flags out",
        ),
    ],
)
def test_a_key_that_no_record_has_is_told_with_those_that_there_are(flags, message, folder):
    code, out, errors = printed(folder, *flags)
    assert (code, out) == (2, "") and errors.startswith(f"ringside: {message}"), errors
