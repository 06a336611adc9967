"""A user's folder with modules that have the names of our packages: it works, or one line names the
clash before anything runs."""

from __future__ import annotations

import sys

import pytest

from measurement.records.results import ResultsFolder
from tests.conftest import HAS_HOROVOD, HOROVOD, ended_well, write_plan
from tests.kit.commands import run

pytestmark = pytest.mark.usefixtures("no_processes_left")
LOUD = "raise SystemExit('a file of the user was imported in the place of a package')\n"
WORKLOAD = """
import torch
from torch import nn
from torch.utils.data import Dataset

from workloads.supervised import SGDOptions, SGDTrained


class Points(Dataset):
    def __len__(self):
        return 1 << 14  # one epoch, and so one start of the loaders

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 2


class Own(SGDTrained):
    Options = SGDOptions

    def build_model(self):
        return nn.Linear(4, 2)

    def read_training_set(self):
        return Points()

    def read_held_out_set(self):
        return Points()
"""


@pytest.fixture
def folder(tmp_path):
    """All six names.

    ``workloads.py`` holds the user's own workload, ``runners.py`` what a test leaves of it."""
    (tmp_path / "reports").mkdir()
    for name in ("runners", "measurement", "backends", "install", "reports/__init__"):
        (tmp_path / f"{name}.py").write_text(LOUD)
    (tmp_path / "workloads.py").write_text(WORKLOAD)
    return tmp_path


@pytest.mark.costly
def test_a_comparison_in_a_folder_with_all_six(folder):
    """The driver, the check of the workload, ranks of two launchers and the reports."""
    arms = {"ddp": {"backend": "ddp", "launcher": "spawn"}}
    if HAS_HOROVOD:
        arms["hvd"] = {**HOROVOD, "launcher": "horovodrun"}
    write_plan(folder, workload="workloads.py:Own", world_size=1, local_batch_size=4, arms=arms)
    ended_well(run("ringside", "compare", "plan.yaml", "-o", "out", cwd=folder))
    assert {record.status for record in ResultsFolder(folder / "out").records()} == {"ok"}


@pytest.mark.parametrize("command", ["ringside compare plan.yaml", "ringside-ddp"])
def test_runners_on_pythonpath_is_named(folder, command):
    done = run(*command.split(), cwd=folder.parent, PYTHONPATH=str(folder))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"'{folder}/runners.py' is on PYTHONPATH" in done.stderr
    assert done.stderr.endswith("in the place of our package 'runners'; rename it\n")


@pytest.mark.costly
def test_the_doctor_names_the_clash(folder):
    done = ended_well(run(sys.executable, "-P", "-m", "runners.cli", "doctor", cwd=folder))
    assert "python / names: rename it, or start from another folder" in done.stdout
    assert "has the name of a package of ringside's" in " ".join(done.stdout.split())
