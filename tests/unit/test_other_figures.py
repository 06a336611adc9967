"""Another tool's figures from a CSV: how they are compared, what is said of them, and each cell that cannot be read."""

from __future__ import annotations

import json

import pytest

from measurement.errors import PlanError
from reports.other_figures import conclude_figures, read_figures
from tests.conftest import ringside_here

OLD = [(10.0, 1000), (10.1, 1000), (20.5, 2000), (19.9, 2000), (20.2, 2000)]
NEW = [(18.0, 2000), (18.2, 2000), (18.3, 2000), (18.1, 2000)]


def write(tmp_path, text, name="figures.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def whole(tmp_path):
    """Columns in another order, one that is ignored, a blank line, and a run of two rows."""
    runs = [0, 0, 1, 2, 3]
    old = [f"{seconds},old,{run},{samples}," for run, (seconds, samples) in zip(runs, OLD, strict=True)]
    new = [f'{seconds}, new ,"{run}",{samples},text' for run, (seconds, samples) in enumerate(NEW)]
    return write(tmp_path, "\n".join(["Seconds,arm,run,samples,note", *old, "", *new]) + "\n")


def test_rows_of_a_run_are_summed_and_other_columns_ignored(tmp_path):
    figures = read_figures(whole(tmp_path))
    assert list(figures) == ["old", "new"]
    assert figures["old"]["0"] == (2000, pytest.approx(20.1))
    assert figures["new"]["3"] == (2000, 18.1)


@pytest.mark.slow
def test_they_are_compared_unpaired_and_said_to_be_somebody_elses_clock(tmp_path):
    done = ringside_here("report", whole(tmp_path), "-o", tmp_path / "out", "--baseline", "new")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("By another tool's clock: old is ")
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    (result,) = found["results"]
    assert (result["verdict"], result["run_order"], result["launches"], result["pairs"]) == ("slower", "unknown", 4, 0)
    assert result["throughput_ratio"] == pytest.approx(0.9, abs=0.01)
    assert (found["figures_of"], found["runs"]["old"]) == (str(tmp_path / "figures.csv"), ["0", "1", "2", "3"])
    assert found["warnings"][0].startswith("Somebody else's clock: ")
    assert not any("came before all of the other" in line for line in found["warnings"])
    for name in ("report.md", "report.html"):
        assert "somebody else&#39;s clock" in (text := (tmp_path / "out" / name).read_text()) or "somebody else's clock" in text
        assert "parity" not in text.lower() or name == "report.html"


@pytest.mark.slow
def test_the_file_gives_the_same_bytes_each_time(tmp_path):
    path = whole(tmp_path)
    first, second = (conclude_figures(path, name="same").model_dump_json() for _ in range(2))
    assert first == second


def test_one_run_of_each_gives_a_ratio_and_no_verdict(tmp_path):
    path = write(tmp_path, "arm,run,samples,seconds\na,1,100,1\nb,1,100,2\n")
    result = conclude_figures(path, name="one").result("b")
    assert (result.verdict, result.throughput_ratio, result.caution) == ("undecided", pytest.approx(0.5), "one run")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; give a CSV with a header"),
        ("arm,run,samples,seconds\n", "has no rows below its header"),
        ("a,1,100,1\n", r"line 1: the header has 'a,1,100,1'; it must name each of arm, run, samples, seconds once"),
        ("arm;run;samples;seconds\na;1;100;1\n", "line 1: the header has"),
        ("arm,run,samples,seconds,arm\na,1,100,1,b\n", "line 1: the header has"),
        ("arm,run,samples,seconds\na,1,100,1\n\na,2,100\n", "line 4: it has 3 columns"),
        ("arm,run,samples,seconds\na,1,many,1\n", "line 2: samples is 'many'; give a number"),
        ("arm,run,samples,seconds\na,1,10,-1\n", "line 2: seconds is '-1'; give a number that is not below 0"),
        ("arm,run,samples,seconds\na,1,10,nan\n", "line 2: seconds is 'nan'"),
        ("arm,run,samples,seconds\na,1,0.5,1\n", "line 2: samples is '0.5'; give a whole number"),
        ("arm,run,samples,seconds\na b,1,10,1\n", "line 2: arm 'a b' may hold only letters"),
        ("arm,run,samples,seconds\na,,10,1\n", "line 2: run is empty"),
        ("arm,run,samples,seconds\na,1,0,1\n", "run '1' of arm 'a' has 0 samples in 1 seconds"),
        ("arm,run,samples,seconds\na,1,1e300,1\n", "at most 9007199254740992 samples"),
        ('arm,run,samples,seconds\na,"1"x,10,1\n', "line 2: it is no CSV"),
    ],
)
def test_what_cannot_be_read_is_one_message_with_its_line(tmp_path, text, message):
    with pytest.raises(PlanError, match=message):
        read_figures(write(tmp_path, text))


def test_files_that_are_none(tmp_path):
    assert "does not exist" in ringside_here("report", tmp_path / "none.csv").stderr
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe")
    assert "cannot be read" in ringside_here("report", tmp_path / "bytes.csv").stderr
    done = ringside_here("report", whole(tmp_path), tmp_path / "figures.csv")
    assert (done.returncode, "is reported by itself" in done.stderr) == (2, True)
    done = ringside_here("report", whole(tmp_path), "--baseline", "x")
    assert "--baseline 'x' is no arm of" in done.stderr
