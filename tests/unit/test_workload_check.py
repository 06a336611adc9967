"""What a trial finds in workloads as people write them: each mistake with its line and its
remedy."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn

from backends import make_backend
from measurement.errors import PlanError
from runners.planning.workload import resolve_workload
from runners.planning.workload_check import check_workload
from tests.conftest import write_plan
from tests.kit.engines import make_job
from tests.kit.refusals import refusal, refused_command
from tests.outside import mistakes
from workloads.tensors import digest_of

IDIOMS = Path(__file__).parent.parent / "outside" / "idioms.py"
MISTAKES = IDIOMS.with_name("mistakes.py")


def check(name, *, file=IDIOMS, backend="single", transport=None, options=None, **more):
    """The notes of a trial as rank 0 of two; a ``PlanError`` with what cannot work."""
    setup = resolve_workload(f"{file}:{name}", options or {})
    job = make_job(setup.reference, backend=backend, local_batch_size=2, world_size=2, **more)
    return check_workload(
        setup,
        job,
        rank=0,
        device=torch.device("cpu"),
        backend=make_backend(backend, transport=transport, options={}),
    )


def error_of(name, **more):
    with pytest.raises(PlanError) as caught:
        check(name, **more)
    return str(caught.value)


TOLD = {
    "NoOptimizerClass": [
        "build_optimizer() gave LambdaLR; return a torch.optim.Optimizer, or a list of them"
    ],
    "TupleLoss": ["compute_loss() gave a tuple; return one loss alone"],
    "LossPerSample": [
        "compute_loss() gave a Tensor of shape [2, 1]; return one loss alone, the mean"
    ],
    "OwnBackward": ["compute_loss() ran backward() by itself; add the losses up"],
    "NanLoss": ["the loss of the first batch is nan"],
    "NoBatches": ["batches() gave none to rank 0 of 2"],
    "CountsTensors": [
        "count_samples() gave torch.Size([2, 10]); return how many samples the batch holds"
    ],
    "RaisesInLoss": ["compute_loss raised KeyError: 'mae', at ", 'weights["mae"] * nn.functional'],
    "SparseUnderAdam": [
        "the optimizer's step raised RuntimeError: Adam does not support sparse gradients"
    ],
    "Exits": ["build_model raised SystemExit: no GPU"],
    "OwnLoss": [
        "compute_loss raised AttributeError: the wrapped model of DDP has no attribute loss",
        "call model(...)",
        "DDP exchanges only what passes its forward",
    ],
    **dict.fromkeys(
        ("InnerModule", "PartAlone", "KeptModel", "NeverCalled"),
        ("compute_loss() does not call the model that it is given; call model(...)",),
    ),
}


@pytest.mark.parametrize(("name", "messages"), TOLD.items())
def test_a_mistake_is_told_with_its_line_and_its_remedy(name, messages):
    """Also what libraries would fail on later."""
    file = MISTAKES if hasattr(mistakes, name) else IDIOMS
    error = error_of(name, file=file)
    assert error.startswith(f"workload '{file}:{name}': ")
    assert all(message in error for message in [*messages, f"{file.name}:"]), error


BROKEN = """
from torch import nn, optim
from workloads.base import Workload

class Net(Workload):
    def build_model(self): return nn.Linear(2, 1)
    def build_optimizer(self, model): return optim.SGD(model.parameters())
    def batches(self, *, rank, world_size, device): return []
    def compute_loss(self, model, batch): return model(batch)
    def count_samples(self, batch): return 1
    def {method}(self, *_, **__): raise OSError("planted")
"""


@pytest.mark.parametrize(
    ("method", "what", "training"),
    [
        ("__init__", "constructor", None),
        ("require_data", "require_data", None),
        ("batches_per_epoch", "batches_per_epoch", {"epochs": 1}),
    ],
)
def test_what_raises_before_ranks_start_is_one_message(tmp_path, method, what, training):
    """It was a traceback, and exit code 1."""
    (tmp_path / "own.py").write_text(BROKEN.format(method=method))
    plan = write_plan(
        tmp_path,
        workload=f"{tmp_path}/own.py:Net",
        arms=["ddp", "fsdp2"],
        training=training,
        measurement={"local_every": 0, "control": False},
    )
    error = refused_command("compare", plan, "-o", tmp_path / "out")
    assert f"{what} raised OSError: planted, at " in error and "11 |     def" in error
    assert not (tmp_path / "out").exists()


def test_what_works_and_should_be_known_is_told():
    assert check("Recommender") == []
    assert check("Unused") == ["no gradient from the first batch: '0.spare.weight', '0.spare.bias'"]
    assert (
        "'0.spare.weight', '0.spare.bias' got none from a batch; give the arm options"
        in error_of("Unused", backend="ddp", transport="gloo")
    )


class Evaluated(mistakes.Plain):
    def batches_per_epoch(self, *, world_size):
        return 1000

    def evaluation_batches(self, **place):
        return self.batches(**place)

    def evaluation_sums(self, model, batch):
        return 0.5


def test_what_evaluates_is_tried_before_a_training():
    assert check("Evaluated", file=__name__) == []
    assert "evaluation_sums raised AttributeError: 'float' object" in error_of(
        "Evaluated", file=__name__, tries=3
    )


ORDINARY = ("Plain", "Scheduled", "TwoOptimizers", "Tied", "Uneven", "Finite")
ONLY_LOOK_WRONG = ("Checkpointed", "Scripted")


@pytest.mark.parametrize("name", [*ORDINARY, *ONLY_LOOK_WRONG])
def test_ordinary_idioms_have_nothing_to_mend(name):
    assert check(name, file=MISTAKES if name in ONLY_LOOK_WRONG else IDIOMS) == []


@pytest.mark.parametrize("kind", sorted(mistakes.KINDS))
def test_batches_hold_what_people_put_there(monkeypatch, kind):
    monkeypatch.setattr(mistakes.Batches, "kind", kind)
    assert check("Batches", file=mistakes.__name__) == []

    def digest(rank):
        batches = mistakes.Batches(local_batch_size=4, seed=1)
        digest = hashlib.sha256()
        digest_of(digest, next(batches.batches(rank=rank, world_size=2, device=None)))
        return digest.hexdigest()

    assert digest(0) == digest(0) != digest(1)


def check_model(
    backend, model, *, transport="gloo", options=None, optimizer=None, missing=(), sparse=()
):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    asked = make_backend(backend, transport=transport, options=options or {})
    return asked.check_model(model, optimizer, missing=list(missing), sparse=list(sparse))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64])
def test_tensors_that_horovod_cannot_carry_are_refused_by_name(dtype):
    error = refusal(check_model, "horovod", nn.Linear(2, 1).to(dtype))
    name = str(dtype).removeprefix("torch.")
    assert f"reduces no {name} gradients, which 'weight' has" in error


@pytest.mark.parametrize("backend", ["ddp", "naive", "fsdp2", "horovod"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.complex64])
def test_what_is_not_trained_may_be_of_any_ordinary_dtype(backend, dtype):
    model = nn.Linear(2, 1)
    model.frozen = nn.Parameter(torch.ones(4).to(dtype), requires_grad=False)
    model.register_buffer("kept", torch.ones(4).to(dtype))
    assert check_model(backend, model) == []


class Around(torch.optim.Optimizer):
    """Steps another optimizer, as Lookahead does."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, inner.defaults)

    def step(self, closure=None):
        return self.inner.step(closure)


class Sealed(Around):
    param_groups = property(lambda self: self.inner.param_groups)

    def __init__(self, inner):
        self.inner = inner


def test_what_becomes_of_optimizers_that_groups_alone_do_not_make():
    model = nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    for backend in ("horovod", "ddp"):
        assert check_model(backend, model, optimizer=Around(inner)) == []
    sealed = refusal(check_model, "horovod", model, optimizer=Sealed(inner))
    assert "which optimizer class 'Sealed' does not allow (AttributeError" in sealed
    zero = {"zero_redundancy_optimizer": True}
    around = refusal(check_model, "ddp", model, optimizer=Around(inner), options=zero)
    assert "ZeroRedundancyOptimizer rebuilds the optimizer" in around


def test_what_a_backend_makes_of_parameters_without_gradient():
    def check_without(backend, **options):
        return check_model(backend, nn.Linear(2, 1), options=options, missing=["spare.weight"])

    assert "{find_unused_parameters: true}" in refusal(check_without, "ddp")
    assert check_without("ddp", find_unused_parameters=True) == []
    (note,) = check_without("horovod")
    assert note.startswith("Horovod exchanges zeros for 'spare.weight', which get no gradient")
    assert check_without("fsdp2") == check_without("naive") == []


@pytest.mark.parametrize(
    ("backend", "transport", "options", "message"),
    [
        ("ddp", "gloo", {"comm_hook": "fp16"}, "without comm_hook only"),
        ("ddp", "mpi", {}, "over gloo or nccl"),
        ("fsdp2", "gloo", {}, "build the embedding with sparse=False"),
        ("horovod", "mpi", {"op": "Adasum"}, "use op 'Average'"),
    ],
)
def test_sparse_gradients_are_refused_where_they_cannot_be_exchanged(
    backend, transport, options, message
):
    given = {"transport": transport, "options": options, "sparse": ["rows.weight"]}
    error = refusal(check_model, backend, nn.Linear(2, 1), **given)
    assert "sparse" in error and message in error


def test_what_is_no_model_is_refused_before_anything_starts():
    unfinished = refused_command("check", f"{IDIOMS}:Unfinished")
    wanted = "has yet to define batches, build_optimizer, compute_loss, count_samples, which every"
    assert wanted in unfinished
    assert "'collectives' is a micro-benchmark" in refused_command("check", "collectives")


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            "import gpt_model_missing\n",
            ["No module named 'gpt_model_missing'; install 'gpt_model_missing', or put it beside"],
        ),
        ("import torch\n\nclass Mine(\n", ["SyntaxError", ":3"]),
        (
            "import argparse\nargs = argparse.ArgumentParser().parse_args()\n",
            ["calls parse_args() when imported", ":2", "__main__"],
        ),
        ("import sys\nsys.exit('usage')\n", ["when imported, by sys.exit('usage')", ":2"]),
    ],
)
def test_a_file_that_cannot_be_loaded_is_told_with_its_line(tmp_path, text, messages):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(PlanError, match="cannot be loaded") as caught:
        resolve_workload(f"{path}:Mine", {})
    assert all(message in str(caught.value) for message in messages), str(caught.value)
