"""Every way gradients can meet, held to the same float64 reference in one comparison."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from backends.single import DataParallel
from measurement.errors import PlanError
from tests.conftest import REPOSITORY, needs_horovod
from tests.kit.comparisons import compare

pytestmark = pytest.mark.usefixtures("no_processes_left")


@needs_horovod
@pytest.mark.costly
def test_all_transports_under_one_launcher_pass_the_gate(tmp_path):
    arms = {
        "ddp": {"backend": "ddp", "transport": "mpi", "launcher": "mpirun"},
        "horovod-gloo": {"backend": "horovod", "transport": "gloo", "launcher": "mpirun"},
        "server": {"backend": f"{REPOSITORY / 'examples' / 'parameter_server.py'}:ParameterServer", "launcher": "spawn"},
    }
    records = compare(tmp_path, arms=arms).records
    assert set(records) == set(arms)
    for record in records.values():
        assert (record.status, record.exit_codes) == ("ok", [0]), record.error
        assert record.parity.gradient_error < 1e-5
    described = {arm: record.ranks[1].backend for arm, record in records.items()}
    assert [described[arm]["transport"] for arm in arms] == ["mpi", "gloo", "gloo"]
    assert described["ddp"]["mpi_library"] == "mpi4py"
    assert "MPI" in described["ddp"]["mpi_version"]
    assert described["horovod-gloo"]["controller"] == "gloo"
    assert [records[arm].launcher for arm in arms] == ["mpirun", "mpirun", "spawn"]


def test_data_parallel_is_refused_without_a_gpu_and_passes_through():
    backend = DataParallel()
    with pytest.raises(PlanError, match="this run is on the CPU; use 'ddp'"):
        backend.check_device("cpu")
    model = nn.Linear(3, 2)
    wrapped = backend.prepare(model, lambda model: torch.optim.SGD(model.parameters(), lr=0.1)).model
    assert isinstance(wrapped, nn.DataParallel)
    if not torch.cuda.is_available():
        rows = torch.randn(5, 3)
        assert torch.equal(wrapped(rows), model(rows))
