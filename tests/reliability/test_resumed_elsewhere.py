"""A comparison that goes on where versions, machine or sources are others: refused, or told in its
report."""

from __future__ import annotations

import json

import pytest

from measurement.records.results import ResultsFolder
from tests.conftest import ended_well, ringside, write_plan
from tests.kit.changed import changed

pytestmark = pytest.mark.usefixtures("no_processes_left")

WORKLOAD = """
import torch
from torch import nn

from helper import SIZE
from workloads.base import Workload


class Small(Workload):
    def build_model(self):
        return nn.Linear(SIZE, 2)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def batches(self, *, rank, world_size, device):
        generator = torch.Generator().manual_seed(rank)
        while True:
            yield torch.randn(self.local_batch_size, SIZE, generator=generator)

    def count_samples(self, batch):
        return len(batch)

    def compute_loss(self, model, batch):
        return model(batch).square().mean()
"""
FLAT = """
from backends.torch_distributed import Naive


class Flat(Naive):
    pass
"""
FILES = {"small.py": WORKLOAD, "helper.py": "SIZE = 3\n", "plugin/flat.py": FLAT}
SHORT = {"rounds": 2, "block_steps": 2, "local_every": 0}


@pytest.fixture
def measured(tmp_path):
    """A comparison of a workload and a backend in files of the user's, of one launch: its plan and
    its folder."""
    folder = tmp_path
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    arms = {"ddp": "ddp", "flat": f"{folder / 'plugin' / 'flat.py'}:Flat"}
    plan = write_plan(
        folder,
        workload=f"{folder / 'small.py'}:Small",
        world_size=1,
        threads=1,
        arms=arms,
        measurement=SHORT,
    )
    ended_well(compared(plan, folder / "out", launches=1))
    return plan, folder / "out"


def compared(plan, out, *more, launches):
    """In a process of its own, which imports the files as they are now."""
    return ringside("compare", plan, "-o", out, "--set", f"measurement.launches={launches}", *more)


def launches_of(out):
    return sorted({record.launch for record in ResultsFolder(out).records()})


@pytest.mark.costly
def test_it_is_refused_with_every_difference_and_goes_on_if_asked(measured):
    plan, out = measured

    manifest = ResultsFolder(out).read_manifest()
    older = manifest.driver | {"torch": "2.0.1", "cpu": "Another CPU", "mpi4py": None}
    ResultsFolder(out).write_manifest(changed(manifest, driver=older, ringside_version="0.0.9"))
    for name in ("helper.py", "plugin/flat.py"):
        path = plan.parent / name
        path.write_text(f"{path.read_text()}\nMORE = 1\n")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    refused = compared(plan, out, launches=2)
    assert refused.returncode == 2
    (message,) = refused.stderr.splitlines()
    assert message.startswith(
        f"ringside: '{out}' was measured in another environment (ringside: 0.0.9 -> "
    )
    for difference in ("torch: 2.0.1 -> ", "cpu: Another CPU -> ", "helper.py: ", "flat.py: "):
        assert difference in message
    assert "cores: " not in message
    assert "give another folder with -o" in message and "--resume-elsewhere" in message
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before

    ended_well(compared(plan, out, "--resume-elsewhere", launches=2))
    manifest = ResultsFolder(out).read_manifest()
    assert [other.launches for other in manifest.elsewhere] == [[1]]
    assert launches_of(out) == [0, 1]
    assert (out / "sources" / "helper.py").read_text() == "SIZE = 3\n"
    assert "MORE" in (out / "sources-1" / "helper.py").read_text()
    warning = warning_of(out)
    assert warning.startswith("Launch 1 (counted from 0) ran in another environment than the rest")
    assert "torch: 2.0.1 -> " in warning and "flat.py: " in warning
    assert "Launch 1 (counted" in (out / "report.md").read_text()

    ended_well(compared(plan, out, launches=3))
    assert [other.launches for other in ResultsFolder(out).read_manifest().elsewhere] == [[1, 2]]
    assert warning_of(out).startswith("Launches 1, 2 (counted")


def warning_of(out):
    """What the report says of launches elsewhere."""
    warnings = json.loads((out / "comparison.json").read_text())["warnings"]
    (warning,) = [line for line in warnings if "--resume-elsewhere" in line]
    return warning
