"""What every registered workload, backend and report must keep, and the examples of the documents
with them."""

from __future__ import annotations

import itertools
import re
from importlib.metadata import EntryPoint

import pytest
import torch

import backends
import workloads
from backends import backend_class, make_backend
from measurement.errors import PlanError
from runners.launchers import make_launcher
from runners.planning.workload import resolve_workload
from tests.conftest import documented_files
from tests.kit.dataset_files import write_data
from tests.unit.test_data_workloads import are_equal
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


def drawn(workload, *, rank=0):
    """Three batches, each as one tensor."""
    batches = itertools.islice(workload.batches(rank=rank, world_size=2, device=CPU), 3)
    parts = (batch if isinstance(batch, tuple) else (batch,) for batch in batches)
    return [torch.cat([part.double().flatten() for part in each]) for each in parts]


@pytest.fixture(params=[*TRAINED, "Regression", "Spirals"])
def workloads_alike(request, readme_workloads, tmp_path):
    """Two of equal arguments, and the labels that a sample of them has."""
    name = request.param
    options = {**SMALL.get(name, {}), **write_data(name, tmp_path / "data")}
    setup = resolve_workload(readme_workloads.get(name, name), options)
    made = [setup.build(local_batch_size=4, seed=3) for _ in range(2)]
    return *made, LABELS_PER_SAMPLE.get(name, 1)


@pytest.mark.slow
def test_a_workload_keeps_its_contract(workloads_alike):
    one, other, labels = workloads_alike
    assert are_equal(drawn(one), drawn(other)), "equal arguments, equal batches"
    assert not are_equal(drawn(one), drawn(one, rank=1)), "each rank has its own shard"
    models = []
    for made in (one, other):
        torch.manual_seed(1)
        models.append(made.build_model())
    model, twin = models
    assert are_equal(model.parameters(), twin.parameters())
    batch = next(one.batches(rank=0, world_size=2, device=CPU))
    assert one.count_samples(batch) == 4 * labels
    optimizer, loss = one.build_optimizer(model), one.compute_loss(model, batch)
    assert loss.shape == ()
    loss.backward()
    optimizer.step()
    assert not are_equal(model.parameters(), twin.parameters())
    assert one.sample_unit
    one.require_data()
    held_out = shard_sums(one, model, rank=0, world_size=1, device=CPU)
    assert bool(held_out.count) == any(
        True for _ in one.evaluation_batches(rank=0, world_size=1, device=CPU)
    )


@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("name", sorted(set(workloads.REGISTRY.table) - set(TRAINED)))
def test_a_micro_benchmark_keeps_its_contract(name, world_size):
    setup = resolve_workload(name, {})
    one, other = (setup.build_micro_benchmark(local_batch_size=4, seed=3) for _ in range(2))
    cases = one.cases(world_size)
    assert len({case.name for case in cases}) == len(cases) > 0
    assert all(case.size > 0 and case.messages > 0 and case.busbw_factor > 0 for case in cases)
    assert cases == other.cases(world_size), "the same on every rank"
    for ranks in one.groups(world_size):
        assert list(ranks) == sorted(set(ranks)) and set(ranks) < set(range(world_size))


@pytest.mark.parametrize("name", backends.REGISTRY.table)
def test_a_backend_says_what_it_takes(name):
    cls = backend_class(name)
    for transport in cls.transports or (None,):
        needs = cls(transport=transport).needs()
        gives = [make_launcher(launcher).gives(transport) for launcher in cls.customary_launchers]
        assert any(needs <= given for given in gives), f"none can start it over {transport}"
        assert all(
            isinstance(value, str) for value in cls(transport=transport).environment().values()
        )
    with pytest.raises(PlanError, match="unknown option 'nonsense'"):
        make_backend(name, transport=None, options={"nonsense": 1})
    cls().check(world_size=1)
    assert make_backend(name, transport=None, options={}, micro_steps=2).micro_steps == 2


def test_a_workload_of_an_installed_package_is_found_without_importing_torchvision(monkeypatch):
    """That import takes seconds, and each rank would pay for it."""
    registry = workloads.REGISTRY
    point = EntryPoint(name="theirs", value=registry.table["digits"], group=registry.group)
    monkeypatch.setattr("measurement.registry.entry_points", lambda **_: [point])
    monkeypatch.setattr("workloads._torchvision_models", lambda: pytest.fail("imported"))
    assert workload_class("theirs") == workload_class("digits")
