"""What the process group over MPI does without MPI: the import, the table of reductions, copies of
tensors that MPI cannot take."""

from __future__ import annotations

import sys
from unittest.mock import Mock, call

import pytest
import torch
import torch.distributed as dist

from backends.mpi import library as mpi_library
from backends.mpi import operations as mpi_staging
from backends.mpi.operations import Stage, find_reduction
from measurement.errors import PlanError
from tests.kit.commands import run_python


@pytest.mark.process
@pytest.mark.slow
def test_the_import_registers_and_starts_nothing():
    done = run_python(
        "import sys, importlib, backends.mpi.process_group as group, torch.distributed as dist\n"
        "importlib.reload(group)\n"
        "assert dist.Backend('mpi4py') == 'mpi4py' and 'MPI4PY' in dist.Backend._plugins\n"
        "assert not [name for name in sys.modules if name.startswith('mpi4py')]\n"
    )
    assert done.returncode == 0, done.stderr


def test_without_mpi4py_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    mpi_library.load_mpi.cache_clear()
    with pytest.raises(
        PlanError, match=r"needs mpi4py and an MPI library .* pip install 'mpi4py>=4'"
    ):
        mpi_library.load_mpi()


@pytest.mark.parametrize(
    ("op", "dtype", "why"),
    [
        (dist.ReduceOp.AVG, torch.bool, "MPI has no ReduceOp"),
        (dist.ReduceOp.MAX, torch.complex64, "MPI has no ReduceOp"),
        (dist.ReduceOp.BAND, torch.float32, "MPI has no ReduceOp"),
        (dist.ReduceOp.SUM, torch.float8_e4m3fn, "convert the tensor first"),
    ],
)
def test_reductions_that_mpi_has_not_are_refused(op, dtype, why):
    with pytest.raises(NotImplementedError, match=why):
        find_reduction(op, dtype)


@pytest.mark.parametrize("is_aware", [True, False])
def test_copies_of_gpu_tensors_wait_for_the_callers_stream_and_are_awaited(monkeypatch, is_aware):
    """The order of events on a GPU, with a host tensor in its place: after the caller's work, and
    before anyone goes on."""
    stream = Mock()
    monkeypatch.setattr(mpi_staging, "_copy_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(mpi_staging, "pinned", lambda size, dtype: torch.empty(size, dtype=dtype))
    tensor = torch.arange(3.0)
    stage = Stage(tensor)
    stage._ready, stage._is_host_needed = stream, not is_aware
    place = stage.update(tensor)
    assert (place is tensor) == is_aware
    asked = [name for name, *_ in stream.method_calls]
    assert asked == ["wait_event"] * (not is_aware) + ["synchronize"]
    place.add_(1)
    stage.flush()
    assert stream.method_calls[-1] == call.synchronize()
    assert tensor.tolist() == [1.0, 2.0, 3.0]
