"""The command line: bad input is one message on stderr and exit code 2, and nothing is written."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from runners.planning.arms import resolve_arms
from runners.planning.plan_reading import is_plan, read_plan
from tests.conftest import REPOSITORY, ringside, ringside_here, write_plan
from tests.kit.commands import run_python
from tests.kit.refusals import refused_command


def test_a_plan_that_cannot_run_is_refused_in_one_line(tmp_path):
    plan = write_plan(tmp_path, workload="mnist", workload_options={"data_dir": "/nowhere"})
    (line,) = refused_command("compare", plan, "-o", tmp_path / "out").splitlines()
    assert line.startswith("ringside: ") and "MNIST in '/nowhere' cannot be read" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["compare", "locl"],
            "unknown plan 'locl'; did you mean 'local'?",
        ),
        (
            ["check", "examples/parameter_server.py"],
            "'examples/parameter_server.py' is a file; name a workload in it",
        ),
        (["compare", "README.md"], "not valid YAML at line"),
        (
            ["report", "no-such-folder"],
            "wrote (their -o), or one above them",
        ),
        (["report", "plans"], "'plans' holds no run; give the folders that"),
        (["report", "no-such"], "'no-such' does not exist; give the folders that"),
    ],
)
def test_a_path_that_is_wrong_is_named_in_one_line(arguments, message):
    (line,) = refused_command(*arguments).splitlines()
    assert message in line


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path):
    """In a process of its own, as all mistakes end one."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    done = ringside("compare", write_plan(tmp_path), "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "is not empty and holds no plan.yaml" in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_the_version_is_printed():
    assert ringside_here("--version").stdout == f"ringside {version('ringside')}\n"


def test_a_plan_is_found_by_name_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("local", "local.yaml", "plans/local.yaml"):
        assert read_plan(Path(name)).name == "local"
    (tmp_path / "local").write_text((REPOSITORY / "plans" / "mnist.yaml").read_text())
    assert read_plan(Path("local")).name == "mnist", "a file of that name wins"
    plans = [name for name in ("local", "resnet18", "x.yaml", "mine.py:Mine") if is_plan(name)]
    assert plans == ["local", "x.yaml"]


def test_init_writes_a_plan_that_runs_as_it_is_and_overwrites_nothing(tmp_path):
    path = tmp_path / "mine.yaml"
    assert ringside_here("init", path).returncode == 0
    plan = read_plan(path)
    assert list(resolve_arms(plan)) == ["ddp", "ddp-control", "horovod"]
    path.write_text("mine")
    assert "cannot be written, and stays as it is: [Errno 17] File exists" in refused_command(
        "init", path
    )
    assert path.read_text() == "mine"


def test_a_signal_before_the_command_line_is_read_ends_without_a_traceback():
    done = run_python(
        "import os, signal\nfrom runners.processes.process_exit import run_command\n"
        "run_command(lambda: os.kill(os.getpid(), signal.SIGTERM))"
    )
    assert (done.returncode, done.stderr) == (143, "")
