"""Arms of one workload before and after: two commits of a real repository, and two real
environments, on real ranks."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from measurement.errors import PlanError
from measurement.plans.plan_file import check_plan
from measurement.records.results import ResultsFolder
from runners.planning.arms import resolve_arms
from runners.planning.check_process import require_own_work
from tests.conftest import TINY, ended_well, no_process_stays
from tests.kit.commands import git, run
from tests.kit.comparisons import Compared

TRAIN = """
import torch
from layers import net
from workloads.base import Workload

class Net(Workload):
    def build_model(self):
        return net()
    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)
    def batches(self, *, rank, world_size, device):
        generator = torch.Generator().manual_seed(1000 * self.seed + rank)
        while True:
            yield torch.randn(self.local_batch_size, 8, generator=generator).to(device)
    def compute_loss(self, model, batch):
        return (model(batch) - 1).square().mean()
    def count_samples(self, batch):
        return len(batch)
"""
LAYERS = """
from torch import nn

def net():
    return nn.Sequential(nn.Linear(8, {width}), nn.ReLU(), nn.Linear({width}, 1))
"""
PLANTED = "0.0.1"
"""The version that the other environment says numpy has."""


def make_repository(folder):
    """Commits of a narrow and a wide model, in a module beside the workload; then a comment that is
    not committed."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "trunk")
    (folder / "train.py").write_text(TRAIN)
    for width in (16, 32):
        (folder / "layers.py").write_text(LAYERS.format(width=width))
        git(folder, "add", ".")
        git(folder, "commit", "-qm", f"width {width}")
    git(folder, "tag", "narrow", "HEAD~1")
    (folder / "layers.py").write_text(LAYERS.format(width=32) + "# not committed\n")


def make_environment(folder, *, with_ringside):
    """A virtual environment; if asked, one that finds all that this one has, with another version
    of numpy beside it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = Path(next(folder.glob("lib/python*/site-packages")))
    if with_ringside:
        (site / "here.pth").write_text(
            f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        )
        planted = site / f"numpy-{PLANTED}.dist-info"
        planted.mkdir()
        (planted / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: numpy\nVersion: {PLANTED}\n"
        )
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison of the committed state with an older commit, with another environment, and with
    the files as they lie there."""
    root = tmp_path_factory.mktemp("before")
    make_repository(root / "own")
    python = make_environment(root / "env", with_ringside=True)
    own = {
        "trunk": {"commit": "trunk"},
        "narrow": {"commit": "narrow"},
        "env": {"python": str(python)},
    }
    arms = {name: {"backend": "ddp", "launcher": "spawn", **one} for name, one in own.items()}
    plan = {
        **TINY,
        "world_size": 1,
        "workload": "train.py:Net",
        "baseline": "trunk",
        "arms": arms,
        "measurement": {**TINY["measurement"], "control": False, "local_every": 0},
    }
    (root / "own" / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    command = [sys.executable, "-m", "runners.cli", "compare", "plan.yaml", "-o", "out"]
    with no_process_stays():
        done = run(*command, cwd=root / "own", timeout=900)
    ended_well(done)
    return Compared(done, ResultsFolder(root / "own" / "out"))


@pytest.mark.costly("before and after")
def test_each_arm_runs_its_own_commit_and_environment(compared):
    own, records = compared.folder.root.parent, compared.records
    assert set(compared.statuses.values()) == {"ok"}
    parameters = {arm: record.ranks[0].model["parameters"] for arm, record in records.items()}
    assert parameters == {"trunk": 321, "narrow": 161, "env": 321}
    assert records["narrow"].commit == git(own, "rev-parse", "narrow").strip()
    assert {rank.fingerprint["numpy"] for rank in records["env"].ranks} == {PLANTED}
    assert len({record.ranks[0].sources["layers.py"] for record in records.values()}) == 3
    assert (records["env"].unlike_work, records["env"].parity.compared_with) == ({}, "trunk")
    assert "model.tensors" in records["narrow"].unlike_work
    assert len(git(own, "worktree", "list").splitlines()) == 1


@pytest.mark.costly("before and after")
def test_what_was_asked_for_is_shown_and_unlike_work_gets_no_verdict(compared):
    found = compared.report
    differences = {one["field"]: one for one in found["differences"]}
    allowed = {field: one["allowed"] for field, one in differences.items()}
    assert allowed["host.numpy"] and allowed["source.layers.py"]
    assert not allowed["model.parameters"]
    withheld = {result["candidate"]: result["withheld_by"] for result in found["results"]}
    assert (withheld["narrow"], withheld["env"] != "work") == ("work", True)
    assert any(line.startswith("No verdict on narrow against trunk ") for line in found["findings"])
    assert compared.read("sources/narrow/layers.py") == LAYERS.format(width=16)


def test_an_environment_without_ringside_is_refused_with_the_remedy(tmp_path):
    python = make_environment(tmp_path / "env", with_ringside=False)
    refused = r"arm 'new': Ringside cannot be imported by .*No module named .*ringside ab 'COMMAND'"
    with pytest.raises(PlanError, match=refused):
        check_arm({"python": str(python)})


def check_arm(own, **changes):
    """As a comparison does before it starts: DDP's arm, and one with something of its own."""
    arms = {**TINY["arms"], "new": {"backend": "ddp", **own}}
    plan = check_plan({**TINY, "arms": arms, **changes}, source="test")
    require_own_work(resolve_arms(plan).values(), host=None)


@pytest.mark.costly
def test_what_is_imported_from_elsewhere_than_the_commit_is_refused(tmp_path, monkeypatch):
    make_repository(tmp_path / "own")
    git(tmp_path / "own", "rm", "-q", "--cached", "layers.py")
    git(tmp_path / "own", "commit", "-qm", "forgotten")
    monkeypatch.chdir(tmp_path / "own")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    refused = (
        r"arm 'new': '.*/own/layers.py' is imported from the working files, not from the commit"
    )
    with pytest.raises(PlanError, match=refused):
        check_arm({"commit": "trunk"}, workload="train.py:Net")
