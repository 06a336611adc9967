"""What every registered workload, backend and report must keep, and the examples of the documents
with them."""

from __future__ import annotations

import itertools
import re
from importlib.metadata import EntryPoint

import pytest
import torch

import backends
import reports
import workloads
from backends import backend_class, make_backend
from measurement.errors import PlanError
from runners.launchers import REGISTRY as LAUNCHERS
from runners.launchers import make_launcher
from runners.planning.workload import resolve_workload
from tests.conftest import documented_files
from tests.kit.dataset_files import write_data
from workloads import Workload, workload_class
from workloads.base import shard_sums

CPU = torch.device("cpu")
TRAINED = [
    name for name in workloads.REGISTRY.table if issubclass(workload_class(name)[0], Workload)
]
SMALL = {"synthetic": {"model": "squeezenet1_1", "image_size": 64, "num_classes": 4}}
LABELS_PER_SAMPLE = {"language_model": 16}


@pytest.fixture(scope="session")
def readme_workloads(tmp_path_factory):
    """The documents' examples as a user would save them, by class."""
    folder, paths = tmp_path_factory.mktemp("user"), {}
    for name, code in documented_files().items():
        for cls in re.findall(r"class (\w+)\(Workload\)", code):
            (folder / name).write_text(code)
            paths[cls] = f"{folder / name}:{cls}"
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TRAINED, "Regression", "Spirals"])
def test_a_workload_keeps_its_contract(name, readme_workloads, tmp_path):
    options = {**SMALL.get(name, {}), **write_data(name, tmp_path / "data")}
    setup = resolve_workload(readme_workloads.get(name, name), options)
    made = [setup.workload(local_batch_size=4, seed=3, options=setup.options) for _ in range(2)]
    first, again = (
        list(itertools.islice(workload.batches(rank=0, world_size=2, device=CPU), 3))
        for workload in made
    )
    other = next(made[0].batches(rank=1, world_size=2, device=CPU))
    flat = [
        torch.cat([t.double().flatten() for t in (b if isinstance(b, tuple) else (b,))])
        for b in [*first, *again, other]
    ]
    assert all(torch.equal(a, b) for a, b in zip(flat[:3], flat[3:6], strict=True)), (
        "equal arguments, equal batches"
    )
    assert not torch.equal(flat[0], flat[6]), "each rank has its own shard"
    assert made[0].count_samples(first[0]) == 4 * LABELS_PER_SAMPLE.get(name, 1)
    torch.manual_seed(1)
    model = made[0].build_model()
    torch.manual_seed(1)
    twin = made[1].build_model()
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )
    optimizer = made[0].build_optimizer(model)
    before = [parameter.clone() for parameter in model.parameters()]
    loss = made[0].compute_loss(model, first[0])
    assert loss.shape == ()
    loss.backward()
    optimizer.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert made[0].sample_unit
    made[0].require_data()
    metrics = shard_sums(made[0], model, rank=0, world_size=1, device=CPU).metrics()
    assert bool(metrics) == any(
        True for _ in made[0].evaluation_batches(rank=0, world_size=1, device=CPU)
    )


@pytest.mark.parametrize("name", sorted(set(workloads.REGISTRY.table) - set(TRAINED)))
def test_a_micro_benchmark_keeps_its_contract(name):
    setup = resolve_workload(name, {})
    made = [setup.build_micro_benchmark(local_batch_size=4, seed=3) for _ in range(2)]
    for world_size in (2, 3, 8):
        cases = made[0].cases(world_size)
        assert len({case.name for case in cases}) == len(cases) > 0
        assert all(case.size > 0 and case.messages > 0 and case.busbw_factor > 0 for case in cases)
        assert cases == made[1].cases(world_size), "the same on every rank"
        groups = [list(ranks) for ranks in made[0].groups(world_size)]
        assert all(
            ranks == sorted(set(ranks)) and set(ranks) < set(range(world_size)) for ranks in groups
        )
    assert made[0].sample_unit == ("samples" if name == "loaders" else "bytes")


@pytest.mark.parametrize("name", backends.REGISTRY.table)
def test_a_backend_says_what_it_takes(name):
    cls = backend_class(name)
    assert set(cls.customary_launchers) <= set(LAUNCHERS.table)
    for transport in cls.transports or (None,):
        gives = [make_launcher(launcher).gives(transport) for launcher in cls.customary_launchers]
        backend = cls(transport=transport)
        assert any(backend.needs() <= given for given in gives), (
            f"no customary launcher can start it over {transport}"
        )
    with pytest.raises(PlanError, match="unknown option 'nonsense'"):
        make_backend(name, transport=None, options={"nonsense": 1})
    cls().check(world_size=1)
    environment = cls(transport=cls.transports[0] if cls.transports else None).environment()
    assert all(isinstance(value, str) for value in environment.values())
    assert make_backend(name, transport=None, options={}, micro_steps=2).micro_steps == 2


@pytest.mark.parametrize(
    "registry",
    [workloads.REGISTRY, backends.REGISTRY, reports.REGISTRY, LAUNCHERS],
    ids=lambda registry: registry.kind,
)
def test_a_name_of_our_own_is_found_without_reading_every_installed_package(registry, monkeypatch):
    """That takes 0.02 s of a core where 150 are installed, and planning looks names up two hundred
    times."""
    monkeypatch.setattr("measurement.registry.entry_points", lambda **_: pytest.fail("read"))
    for name in registry.table:
        assert isinstance(registry.resolve(name), type)
    if registry is workloads.REGISTRY:
        assert workload_class("digits")[1] == {}


def test_a_workload_of_an_installed_package_is_found_without_importing_torchvision(monkeypatch):
    """That import takes seconds, and each rank would pay for it."""
    point = EntryPoint(
        name="theirs", value=workloads.REGISTRY.table["digits"], group=workloads.REGISTRY.group
    )
    monkeypatch.setattr("measurement.registry.entry_points", lambda **_: [point])
    monkeypatch.setattr("workloads._torchvision_models", lambda: pytest.fail("imported"))
    assert workload_class("theirs") == workload_class("digits")
