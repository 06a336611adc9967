"""The command line: bad input is one message on stderr and exit code 2, and nothing is written."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import ringside, ringside_here, write_plan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"arms": {"ddp": {"backend": "horovod", "launcher": "torchrun"}}},
            "launcher 'torchrun' cannot start backend 'horovod'",
        ),
        ({"arms": {"ddp": {"backend": "horovd"}}}, "unknown backend 'horovd'; did you mean 'horovod'?"),
        ({"world_size": 0}, "world_size = 0"),
        ({"workload": "resnet81"}, "unknown workload 'resnet81'"),
        ({"workload": "mnist", "workload_options": {"data_dir": "/nowhere"}}, "workload 'mnist' finds"),
    ],
)
def test_a_plan_that_cannot_run(tmp_path, changes, message):
    done = ringside_here("compare", write_plan(tmp_path, **changes), "-o", tmp_path / "out")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("ringside: ")
    assert message in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "no-such-plan.yaml"], "plan 'no-such-plan.yaml' does not exist"),
        (["compare", "README.md"], "not valid YAML at line"),
        (["report", "no-such-folder"], "does not exist; give the folders that runs wrote (their -o), or one above them"),
        (["report", "plans"], "'plans' holds no run with a plan.yaml; give the folders that"),
    ],
)
def test_a_path_that_is_wrong(arguments, message):
    done = ringside_here(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path):
    """In a process of its own, as all mistakes end one."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    done = ringside("compare", write_plan(tmp_path), "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "is not empty and holds no plan.yaml" in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_doctor_tells_what_was_found():
    done = ringside("doctor")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["torch", "torch", "ok", f"{torch.__version__},"] in [row[:4] for row in rows]
    assert ["transport", "gloo", "ok"] in [row[:3] for row in rows]
    assert ("Remedies" in done.stdout) != ("Nothing is missing." in done.stdout)
